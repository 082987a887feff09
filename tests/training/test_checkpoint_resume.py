"""A run that was interrupted and continued ends as if nothing had happened, bit for bit."""

import pytest
from needs import needs_backend

pytestmark = pytest.mark.timeout(900)  # the first test waits for all training runs

STEPS_PER_EPOCH = 12
# Their optimizers' states are Keras's, a count of steps among them.
IN_TENSORFLOW = ("horovod-tf", "horovod-keras")
INTERRUPTED = [pytest.param(backend, "stop", marks=needs_backend(backend)) for backend in IN_TENSORFLOW]
INTERRUPTED += [(backend, interruption) for backend in ("mpi", "ddp") for interruption in ("epoch", "stop")]


def named_run(folder, backend, name, file, **more):
    options = {
        "backend": backend,
        "train_samples": STEPS_PER_EPOCH * 64 - 5,  # the last global batch is ragged
        "batch_size": 32,  # on each of two ranks
        "data_dir": str(folder),
        "checkpoint": str(folder / f"resumed-{backend}-{file}.pt"),
    }
    extra = {key: more.pop(key) for key in ("stop_after", "shift") if key in more}
    return {"name": f"resume-{backend}-{name}", "options": options | more} | extra


def training_runs(folder):
    runs = []
    for backend in ("mpi", "ddp"):
        runs += [
            named_run(folder, backend, "whole", "whole"),
            named_run(folder, backend, "epoch-first", "epoch", max_steps=STEPS_PER_EPOCH),
            named_run(folder, backend, "epoch-second", "epoch", resume=True),
            named_run(folder, backend, "stop-first", "stop", stop_after=STEPS_PER_EPOCH + 8),
            named_run(folder, backend, "stop-second", "stop", resume=True),
            named_run(folder, backend, "other-seed", "stop", resume=True, seed=7),
            named_run(folder, backend, "no-file", "nothing", resume=True),
        ]
    runs += [
        named_run(folder, "ddp", "node-first", "node-{node}", max_steps=STEPS_PER_EPOCH + 4),
        named_run(folder, "ddp", "node-shifted", "node-{node}", resume=True, shift=1),  # rank 1 has the file
        named_run(folder, "ddp", "node-second", "node-{node}", resume=True),  # rank 0 has it
        named_run(folder, "mpi", "fewer-samples", "stop", resume=True, train_samples=STEPS_PER_EPOCH * 32),
        named_run(folder, "mpi", "larger-batch", "stop", resume=True, batch_size=64),
        named_run(folder, "mpi", "more-workers", "stop", resume=True, batch_size=16, emulate_workers=4),
    ]
    for backend in IN_TENSORFLOW:
        adam = {"optimizer": "adam", "lr": 0.001}
        runs += [
            named_run(folder, backend, "whole", "whole", **adam),
            named_run(folder, backend, "stop-first", "stop", stop_after=STEPS_PER_EPOCH + 8, **adam),
            named_run(folder, backend, "stop-second", "stop", resume=True, **adam),
        ]
    masks = {"network": "classic", "optimizer": "sgd"}
    runs.append(named_run(folder, "horovod-tf", "masks-first", "masks", max_steps=STEPS_PER_EPOCH, **masks))
    again = named_run(folder, "horovod-tf", "masks-second", "masks", resume=True, batch_size=64, **masks)
    return {2: runs, 1: [again]}


def without_times(rows):
    times = ("seconds", "samples_per_s", "communication_s")
    return [{key: value for key, value in row.items() if key not in times} for row in rows]


@pytest.mark.parametrize(("backend", "interruption"), INTERRUPTED)
def test_resumed_run_equals_the_uninterrupted(trained, backend, interruption):
    outcomes = trained.outcomes
    whole = outcomes[f"resume-{backend}-whole"][0]["record"]
    first = outcomes[f"resume-{backend}-{interruption}-first"][0]["record"]
    assert first["stopped"] == (interruption == "stop"), "asked for on the last rank alone"
    second = outcomes[f"resume-{backend}-{interruption}-second"][0]["record"]
    assert first["weights_sha256"] != whole["weights_sha256"]
    assert len(first["epochs"]) == 1
    assert not second["stopped"]
    assert second["weights_sha256"] == whole["weights_sha256"]
    assert without_times(second["epochs"]) == without_times(whole["epochs"])


@needs_backend("horovod-tf")
def test_dropout_in_tensorflow_goes_on_with_new_masks_on_another_number_of_ranks(trained):
    """The states of its random numbers are each rank's own, so they can't be shared out anew."""
    (rank,) = trained.outcomes["resume-horovod-tf-masks-second"]
    assert len(rank["record"]["epochs"]) == 2


def test_rank_0_decides_where_each_node_has_files_of_its_own(trained):
    """A rank that resumes and one that starts afresh would average gradients of different weights."""
    outcomes = trained.outcomes
    for rank in outcomes["resume-ddp-node-shifted"]:
        assert "resumed-ddp-node-1.pt: no checkpoint to resume from" in rank["error"], "also on the rank that has one"
    second, whole = (outcomes[f"resume-ddp-{name}"][0]["record"] for name in ("node-second", "whole"))
    assert second["weights_sha256"] == whole["weights_sha256"], "nothing had been written in between"
    assert not (trained.folder / "resumed-ddp-node-1.pt").exists()


def test_other_steps_per_epoch_are_refused_so_that_epoch_and_rate_stay_right(trained):
    for name, change in (
        ("fewer-samples", "train_samples 763 (now 384)"),
        ("larger-batch", "global_batch 64 (now 128)"),
    ):
        for rank in trained.outcomes[f"resume-mpi-{name}"]:
            assert f"written with {change}" in rank["error"]


def test_more_workers_with_the_same_global_batch_go_on(trained):
    for rank in trained.outcomes["resume-mpi-more-workers"]:
        assert len(rank["record"]["epochs"]) == 2, rank


@pytest.mark.parametrize("backend", ["mpi", "ddp"])
def test_wrong_checkpoint_is_refused_on_every_rank(trained, backend):
    outcomes = trained.outcomes
    for rank in outcomes[f"resume-{backend}-other-seed"]:
        assert "written with seed 1 (now 7)" in rank["error"]
    for rank in outcomes[f"resume-{backend}-no-file"]:
        assert "no checkpoint to resume from" in rank["error"]
