"""Every figure is drawn with what its notebook gives it, and all of its words can be read, in light and dark."""

import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from drawn import check_layout, hollow, words
from matplotlib.colors import to_hex
from record_fixtures import run

from workshop_lib import picture
from workshop_lib.errors import InputError
from workshop_lib.forecast import figures as forecasting
from workshop_lib.forecast.benchmark import row
from workshop_lib.notebook.figures.accuracy import solution_curve, worker_curve
from workshop_lib.notebook.figures.loss import loss_curve
from workshop_lib.notebook.figures.scaling import serial_part
from workshop_lib.notebook.live_sweep import SpeedRun, speeds
from workshop_lib.notebook.palette import TINTS
from workshop_lib.notebook.pictures import PICTURES
from workshop_lib.paths import ROOT
from workshop_lib.training.schedules import DECAYS
from workshop_lib.training.timeline import timeline

from lessons.compute_nodes import figures as compute_nodes
from lessons.context_parallelism import figures as context
from lessons.context_parallelism.blocks import contiguous
from lessons.context_parallelism.emulated import RingRun
from lessons.ddp import figures as ddp
from lessons.experts import figures as experts
from lessons.feeding_the_ranks import figures as feeding
from lessons.gradient_noise import critical_batch
from lessons.gradient_noise import figures as noise
from lessons.horovod_pytorch import figures as horovod
from lessons.hyperparameter_search import figures as hyperparameter
from lessons.hyperparameter_search import seeds as of_seeds
from lessons.large_batch import figures as large_batch
from lessons.large_batch import recipes
from lessons.large_batch_optimizers import figures as optimizers
from lessons.less_communication import figures as less
from lessons.mpi_basics import figures as mpi_basics
from lessons.pipelines import figures as pipelines
from lessons.runs_that_survive import figures as survive
from lessons.runs_that_survive.fault_injection import Fault, FaultScore, TrainingRun
from lessons.synchronous_sgd import figures as synchronous_sgd
from lessons.where_the_time_goes import figures as time_goes
from lessons.where_the_time_goes import flops
from lessons.zero_and_fsdp import figures as zero

MB = 1_000_000
BACKWARD = {"backward": 40.0, "ready": [10.0, 25.0, 40.0], "messages": [[11.0, 20.0], [26.0, 38.0]], "end": 55.0}
# (step, start, end, (when it came to the meeting, when it left)) of each rank, in seconds
EVEN = timeline([[(1, 0.0, 0.010, ((0.008, 0.009),))], [(1, 0.0, 0.010, ((0.006, 0.009),))]])
LATE = timeline([[(1, 0.0, 0.030, ((0.008, 0.029),))], [(1, 0.0, 0.030, ((0.028, 0.029),))]])
STEP_MS = [np.array([[6.0, 1.0, 0.5]]), np.array([[6.5, 0.5, 0.5]])]  # computing, waiting and Allreduce of each rank
FOLLOWED = [(0, 0.1, 2.3, 0.05), (5, 0.2, 1.0, 3.0)]  # step, rate, loss, curvature
LAYERS = np.linspace(0.1, 4, 12).reshape(3, 4)
PREDICTED = pd.DataFrame(
    [[2, 5, 1e-3, 1.1e-3, 0.9e-3, 2e-3], [2, 5, 4e-3, 3e-3, 2e-3, 5e-3]],
    columns=["ranks", "repeats", "predicted_s", "measured_s", "measured_min_s", "measured_max_s"],
)
LEARNED = recipes.recorded("large_batch")[0]
SPEEDS = pd.DataFrame(
    [(1, True, 2, 1, 2000, 1900, 2100), (1, False, 1, 2, 7000, 6900, 7100), (2, False, 1, 2, 12_000, 11_000, 13_000)],
    columns=["ranks", "bound", "threads", "cores", "samples_per_s", "slowest", "fastest"],
)
FAULT_FREE = TrainingRun([(5.0, 1), (6.0, 11)], weights={"a"})
FAULTY = TrainingRun([(0.0, 1), (2.0, 11)], [(1.0, Fault(6, 0, "kill", 0.0))], {"a"})
SHARES = [[0.2, 0.1, 3.0], [0.4, 0.2, 2.0]]
TENSORS = horovod.HorovodTimeline(
    [horovod.TensorSpan(name, 0, horovod.TRANSFER, start, start + 9) for name, start in (("bias", 1), ("weight", 12))],
    [horovod.Ready("bias", 0, 1, 4.0)],
    [0.0, 10.0],
)


def zigzag(tokens, rank, ranks):
    chunks = np.arange(tokens).reshape(2 * ranks, -1)
    return contiguous(tokens, 0, 1)[np.concatenate([chunks[rank], chunks[2 * ranks - 1 - rank]])]


def messages(sizes):
    """Rows of benchmark.py, for two ranks."""
    seconds = [4e-6, 1e-6, 2e-6, 3e-6, 8e-6]
    return [row(way, 2, n, [n * s for s in seconds]) for way in ("MPI", "gloo", "ring") for n in sizes]


def to_a_target():
    pairs = {"long run, to 97%": noise.measured.pairs(recipes.recorded("steps_to_target"))}
    return noise.steps_to_target(pairs, {name: critical_batch.fit(*pair) for name, pair in pairs.items()}, "MNIST")


# What each notebook draws, with the arguments that it gives. What it measures on the spot is made up here.
CASES = {
    "01_mpi_basics": {
        "collectives": lambda: mpi_basics.collectives([[0, 1], [10, 11]], [{"gather": [0, 10]}, {"gather": None}]),
        "allreduces": lambda: mpi_basics.allreduces(
            {128: 6e-5, MB: 0.027}, {128: 9e-4, MB: 2.6e-3}, ranks=16, machine="ethernet-10g"
        ),
        "message_times": lambda: mpi_basics.message_times({8: 2e-6, 1000: 3e-6, MB: 1e-3}, 2e-6, 1e-9),
    },
    "02_synchronous_sgd": {
        "step_times": lambda: synchronous_sgd.step_times(
            {"64 samples on every rank": STEP_MS, "192 on the last": STEP_MS}
        ),
        "threes": lambda: synchronous_sgd.threes([np.zeros((784, 10))] * 2, np.zeros((784, 10))),
    },
    "03_horovod_pytorch": {"draw": lambda: horovod.draw({"default": TENSORS, "without the cache": TENSORS})},
    "05_ddp": {
        "saved": lambda: ddp.saved(
            [dict.fromkeys((0.1, 1, 10), [{"after": BACKWARD, "during": BACKWARD}])] * 2, emulated_on="ethernet-10g"
        ),
        "typical_overlap": lambda: ddp.typical_overlap([[{"after": BACKWARD, "during": BACKWARD}]] * 2),
        "steps": lambda: ddp.steps({"all ranks alike": EVEN, "the last rank 20 ms late": LATE}),
    },
    "06_zero_and_fsdp": {"stages": lambda: zero.stages(ranks=4)},
    "07_large_batch": {
        "worker_curve": lambda: worker_curve(recipes.recorded("large_batch")),
        "by_epoch": lambda: large_batch.by_epoch(
            recipes.recorded("large_batch") + recipes.recorded("large_batch_solution"), 128
        ),
        "clinic": lambda: large_batch.clinic(dict.fromkeys(("healthy", *"ABCDE"), LEARNED)),
        "limits": lambda: large_batch.limits(
            {"1.28 at once": FOLLOWED, "0.64 after warm-up": FOLLOWED}, lambda curvature: 3 / curvature
        ),
    },
    "07b_gradient_noise": {
        "arrows": lambda: noise.arrows(1.5, {1: [(3.0, 5.0), (-3.0, 5.0)], 64: [(2.0, 2.0)]}, "MNIST, 20 batches"),
        "noise": lambda: noise.noise([10, 20, 30], [40.0, np.nan, 400.0], [10.0, np.nan, 300.0], "MNIST, 2 ranks"),
        "steps_to_target": to_a_target,
        "number_line": lambda: noise.number_line({"noise scale, lowest": 5.4, "critical batch, to 97%": 80.0}),
    },
    "07d_large_batch_optimizers": {
        "layer_rates": lambda: optimizers.layer_rates({"16 workers": LAYERS, "128 workers": LAYERS}),
        "search": lambda: optimizers.search(optimizers.tried(recipes.recorded("large_batch_search")), "128 workers"),
    },
    "07c_less_communication": {
        "less_communication": lambda: less.less_communication(recipes.recorded("less_communication")),
        "step_times": lambda: less.step_times({0.1: {"fp32": 260}, 10: {"fp32": 25}}, "ethernet-10g"),
    },
    "08_scaling_curves": {
        "solution_curve": lambda: solution_curve([run("horovod", n, (1000.0 * n,) * 3) for n in (4, 8, 16)]),
        "serial_part": lambda: serial_part(0.05),
        "speeds": lambda: speeds([SpeedRun("mpi", 1, 9e3), SpeedRun("ddp", 2, 1.6e4, disturbed=True)], [1, 2, 4]),
    },
    "08b_where_the_time_goes": {
        "bound_or_free": time_goes.bound_or_free,
        "bound_or_free, measured": lambda: time_goes.bound_or_free(SPEEDS),
        "roofline": lambda: time_goes.roofline(
            flops.Limits(2e10, 1e10),
            [flops.Layer(name, "Linear 4 to 2", 1000 * n, 500, 1e-6) for n, name in enumerate(("workshop", "vit"), 1)],
        ),
    },
    "08c_forecasting": {
        "allreduce_times": lambda: forecasting.allreduce_times(messages([4**power for power in range(1, 14)])),
        "predicted_beside_measured": lambda: forecasting.predicted_beside_measured(PREDICTED, PREDICTED[1:]),
    },
    "09_feeding_the_ranks": {
        "scaling": lambda: feeding.scaling(
            {"shards": [{"ranks": n, "images_per_s": 900 * n**0.5, "waiting": 0.1 * n} for n in (1, 2, 4, 8)]}, 1000
        ),
        "ways": lambda: feeding.ways(
            [{"way": "own part", "ranks": 8, "file_bytes": MB, "seconds": 0.1, "opens": 8, "nbytes": MB}]
        ),
        "feeding_shares": lambda: feeding.feeding_shares(
            {"in turn": np.array([[0, 3.0, 2.0]])}, "An epoch of 8 batches"
        ),
    },
    "10_compute_nodes": {
        "binding": lambda: compute_nodes.binding(
            [{"rank": r, "host": "ab"[r // 2], "cores": [2 * r, 2 * r + 1], "threads": 2} for r in range(4)], "Bound"
        )
    },
    "11b_pipelines": {
        "GPipe": lambda: pipelines.example("GPipe", ranks=3, micro_batches=4),
        "both": lambda: pipelines.example("GPipe", "1F1B", ranks=4, micro_batches=8),
    },
    "11c_context_parallelism": {
        "overlap": lambda: context.overlap(
            {"1,000 tokens per rank": {"Sendrecv": RingRun([(0, 1), (3, 4)], 4), "Isend": RingRun([(0, 1), (2, 3)], 3)}}
        ),
        "who_computes": lambda: context.who_computes({"in order": contiguous, "zigzag": zigzag}, ranks=4),
        "busy": lambda: context.busy({"in order": [1.0, 2.0, 3.0, 4.0], "zigzag": [2.5] * 4}, "scores"),
    },
    "11d_experts": {
        "busiest": lambda: experts.busiest({"no balance loss": [SHARES] * 3, "balance loss": [SHARES] * 3})
    },
    "13b_runs_that_survive": {
        "checkpoint_interval": lambda: survive.checkpoint_interval(60, 3 * 3600, 300, jobs=5),
        "progress": lambda: survive.progress({"yours": FaultScore(FAULT_FREE, FAULTY)}),
    },
    "14_hyperparameter_search": {
        "wrong_winner": lambda: hyperparameter.wrong_winner(of_seeds.recorded(), [1, 2, 3, 5, 10, 20])
    },
}


@pytest.mark.parametrize(("notebook", "name"), [(notebook, name) for notebook, each in CASES.items() for name in each])
def test_every_word_of_a_figure_can_be_read(notebook, name):
    check_layout(CASES[notebook][name]())


def test_the_losses_of_a_run_can_be_read(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 3.5}\n{"step": 2, "loss": 2.5, "held_out_loss": 2.7}\n'
    )
    check_layout(loss_curve([tmp_path / "metrics.jsonl"]))


@pytest.mark.parametrize(("draw", "arguments", "complaint"), [(synchronous_sgd.step_times, ({},), "at least one")])
def test_what_cannot_be_drawn_is_refused_in_a_sentence(draw, arguments, complaint):
    with pytest.raises(InputError, match=complaint):
        draw(*arguments)


@pytest.mark.parametrize(("cores", "too_many"), [(1, True), (2, False)])
def test_more_ranks_than_cores_are_marked(monkeypatch, cores, too_many):
    monkeypatch.setattr(forecasting, "usable_cores", lambda: cores)
    figure = forecasting.allreduce_times(messages([4, 1024]))
    assert all(hollow(axes) == too_many for axes in figure.axes)
    assert ("An allreduce on 2* ranks" in words(figure)) == too_many


def test_the_slowest_rank_of_each_turn_counts():
    by_rank = [[{"after": {"end": end}} for end in ends] for ends in ([60, 90, 70], [61, 80, 75])]
    assert ddp.durations_ms(by_rank)["after"].tolist() == [61, 90, 75]


def test_a_sum_has_the_colors_of_all_ranks():
    (axes,) = mpi_basics.collectives([[1, 2], [10, 20]], [{"allreduce": np.array([11, 22])}] * 2).axes
    filled = [to_hex(patch.get_facecolor()).upper() for patch in axes.patches if patch.get_fill()]
    assert filled == [TINTS[0]] * 2 + [TINTS[1]] * 2 + TINTS[:2] * 4


def test_every_figure_is_checked():
    """Here, or where it's drawn from what another test has measured."""
    tests = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    checked = "".join(text for text in tests if "check_layout" in text)
    for path in [*ROOT.glob("workshop_lib/**/*.py"), *ROOT.glob("notebooks/lessons/**/*.py")]:
        for name in re.findall(r"^@(?:figures\.)?styled\ndef ([a-z]\w+)", path.read_text(), re.MULTILINE):
            assert re.search(rf"\b{name}\b", checked), f"no test draws {name} in {path.name}: add it to CASES"


@pytest.mark.parametrize("name", sorted(path.stem for path in PICTURES.glob("*.svg")))
def test_a_picture_has_words_and_they_are_large_enough(name):
    shown = picture(name)
    sizes = [float(each) for each in re.findall(r'font-size="([\d.]+)"', shown.svg)]
    assert ElementTree.fromstring(shown.svg).get("viewBox") and sizes and min(sizes) >= 12
    assert len(shown.svg) < 40_000 and len(shown.in_words) > 100 and shown.in_words == repr(shown)


def test_a_picture_is_an_image_with_words_that_darkens_in_a_dark_theme():
    image = ElementTree.fromstring(picture("ring")._repr_html_() + "</img>")
    assert "workshop-figure" in image.get("class") and "the sum of all" in image.get("alt")
    assert set(DECAYS) <= {*re.findall(r">(\w+)</text>", picture("decays").svg)}, "the names that a learner can give"
    with pytest.raises(ValueError, match="no picture 'rign'"):
        picture("rign")


@pytest.mark.parametrize(
    "draw", [ddp.saved_percent, lambda data: ddp.saved(data, "a machine"), synchronous_sgd.step_times]
)
def test_a_figure_without_data_names_the_cell_that_measures_it(draw):
    for data in ([{}, {}], {}):
        with pytest.raises(InputError, match="nothing to draw yet.*[rR]un the cell above"):
            draw(data)
