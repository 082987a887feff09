"""By the forecast, the runs of each notebook take at most ten minutes with the cluster profile on 8 to 64 GPUs."""

import json
import re
from dataclasses import replace

import pytest

from workshop_lib.lessons.forecasting.forecast import Settings, forecast
from workshop_lib.machine import catalogue
from workshop_lib.notebook.profile import PROFILES
from workshop_lib.paths import ROOT
from workshop_lib.training.options import TrainOptions

LIMIT_S = 600
SOURCES = ROOT / "notebooks" / "source"
SWEEP = "08_scaling_curves"
RUN_SECONDS = json.loads((SOURCES / "run_seconds.json").read_text(encoding="utf-8"))
RECORDED_S = {name: sum(parts.values()) for name, parts in RUN_SECONDS.items()}
GPUS = (8, 16, 32, 64)
# The only published speed of such a small network on a GPU. It is a slow one, because the input limits it.
MODEL = catalogue.model("mnist-classic")
MACHINE = catalogue.machine("thetagpu")
# Measured on two cores, which 32 and 64 ranks had to share. Ranks with cores of their own start sooner.
START_S = 0.5
START_S_PER_RANK = 0.17
IMAGES = 60_000


def cluster(gpus):
    return replace(PROFILES["cluster"], ranks=gpus)


def start_s(ranks):
    return START_S + START_S_PER_RANK * ranks


def training_s(options, ranks):
    steps = options.epochs * -(-(options.train_samples or IMAGES) // (options.batch_size * ranks))
    [point] = forecast(MODEL, MACHINE, Settings("ddp", options.batch_size), [ranks])
    return 1.0 + steps * point.step_s  # a second for what happens around the steps, such as the tests


def runs_of_the_sweep(sizes):
    """The options of 08's runs on each number of ranks, as its cell defines them."""
    source = (SOURCES / f"{SWEEP}.py").read_text(encoding="utf-8")
    names = {"sizes": sizes, "samples": sizes.sweep_samples or IMAGES, "TrainOptions": TrainOptions}
    [backends] = re.findall(r"^backends = .*$", source, re.MULTILINE)
    exec(backends, names)
    return names["backends"]


@pytest.mark.parametrize("gpus", GPUS)
def test_the_sweep_ends_in_ten_minutes(gpus):
    sizes = cluster(gpus)
    seconds = 0.0
    for ranks in sizes.sweep_ranks:
        runs = runs_of_the_sweep(sizes)
        seconds += sizes.repeats * (start_s(ranks) + sum(training_s(each, ranks) for each in runs))
    assert seconds < LIMIT_S


@pytest.mark.parametrize("name", sorted(RECORDED_S.keys() - {SWEEP}))
def test_the_other_notebooks_end_in_ten_minutes_on_the_most_gpus(name):
    """Their recorded seconds, and with 64 ranks slower starts and more images for each training."""
    sizes = cluster(max(GPUS))
    lines = (SOURCES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    code = "\n".join(line for line in lines if not line.startswith("#"))
    starts = len(re.findall(r"ranks\.start\(|\.restart\(|scripts\.run\(|real_run\(|examine\(", code))
    trainings = len(re.findall(r"(?<!def )\b(?:train|TrainOptions)\(|scripts\.run\(", code))
    seconds = RECORDED_S[name] + starts * start_s(sizes.ranks)
    if re.search(r"sizes\.(train|sweep)_samples", code):
        on_one_gpu = forecast(MODEL, MACHINE, Settings("ddp", 64), [1])[0]
        seconds += trainings * sizes.epochs * IMAGES / on_one_gpu.samples_per_s
    assert seconds < LIMIT_S
