"""Records and checkpoints that earlier versions wrote are read, and fit the options that they were written with.

The checkpoints in earlier_files are without their weights, so that they are small.
"""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from workshop_lib.results import curves, records
from workshop_lib.training import checkpoint
from workshop_lib.training.options import TrainOptions

FOLDER = Path(__file__).with_name("earlier_files")
RUNS = {record["what"]["backend"]: record for record in records.read(FOLDER / "runs.jsonl")}


def options_of(record):
    what = {each.name: record["what"][each.name] for each in fields(TrainOptions)}
    carrier = "mpi" if what["comm"] == "mpi" else "auto"  # a record has what carried the messages in the end
    return TrainOptions(**what | {"comm": carrier})


def read(backend, options):
    wanted = checkpoint.must_match(options, world_size=2, train_size=640, framework="PyTorch")
    return checkpoint.read(FOLDER / f"{backend}.pt", wanted)


@pytest.mark.parametrize("backend", RUNS)
def test_a_checkpoint_fits_the_options_that_its_run_s_record_holds(backend):
    options = options_of(RUNS[backend])
    assert read(backend, options)["record"]["epochs"] == RUNS[backend]["epochs"][:1]
    for change in ({"decay": "inverse"}, {"seed": 9}, {"nesterov": True, "optimizer": "sgd", "momentum": 0.25}):
        with pytest.raises(checkpoint.CheckpointError, match="written with"):
            read(backend, replace(options, **change))


def test_a_record_is_drawn_with_the_options_it_holds_and_with_defaults_for_the_others():
    first = RUNS["mpi"]
    older = {name: value for name, value in first["what"].items() if name not in ("network", "label_smoothing")}
    frame = curves.to_frame([first, first | {"what": older}])
    assert list(frame["label_smoothing"]) == [0.1, 0.0]
    assert list(frame["network"]) == ["workshop", "workshop"]
    assert set(frame["decay"]) == {"step"} and set(frame["data_dir"]) == {"MNIST"}
    assert list(curves.to_frame(RUNS.values())["backend"]) == ["mpi", "ddp-mpi", "fsdp"]
