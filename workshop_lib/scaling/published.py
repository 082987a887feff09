"""Scaling that others have published, and what the forecast says to it."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from workshop_lib.scaling import catalogue
from workshop_lib.scaling.forecast import Point, Settings, forecast

HOROVOD = "arXiv:1802.05799; github.com/horovod/horovod, docs/benchmarks.md of 2017 for 128 GPUs"
GOYAL = "arXiv:1706.02677"
SDL = "github.com/argonne-lcf/sdl_ai_workshop, 01_distributedDeepLearning"
ALCF = "ALCF, workshop material on data-parallel training on Polaris"
BINDING = (
    "More than perfect: the run on one GPU was slow. A process bound to too few cores feeds its GPU too "
    "slowly, and every point is compared with it."
)


@dataclass(frozen=True)
class Published:
    """Efficiencies by number of devices, against `baseline` devices; the batch is each device's.

    account: why forecast and measurement differ, where they do.
    """

    what: str
    model: str
    machine: str
    settings: Settings
    efficiency: dict[int, float]
    source: str
    baseline: int = 1
    samples_per_s: float | None = None  # of one device, where it is the published one
    account: str = ""


def _of_times(times_s: dict[int, float]) -> dict[int, float]:
    return {n: times_s[1] / (n * s) for n, s in times_s.items() if n > 1}


def _of_speeds(samples_per_s: dict[int, float]) -> dict[int, float]:
    return {n: speed / (n * samples_per_s[1]) for n, speed in samples_per_s.items() if n > 1}


_HOROVOD = {
    "inception-v3": {128: 0.90, 512: 0.90},
    "resnet-101": {128: 0.90, 512: 0.90},
    "vgg-16": {128: 0.79, 512: 0.68},
}

EVERYTHING = [
    *(
        Published(f"Horovod, {model}", model, "horovod-p100", Settings("horovod", 64), shares, HOROVOD)
        for model, shares in _HOROVOD.items()
    ),
    Published(
        "Goyal et al., ResNet-50", "resnet-50", "goyal-p100", Settings("unfused", 32), {256: 0.90}, GOYAL,
        baseline=8,
        account=(
            "If each of 161 gradients takes the 0.6 ms that links and an estimated latency of 30 us "
            "give, backward hides nearly all of it. From the paper alone the rest cannot be told: a "
            "larger latency (with 60 us it would be about 91 %), GPUs that wait for the slowest, or "
            "the network's load."
        ),
    ),
    Published(
        "ThetaGPU, MNIST, DDP", "mnist-classic", "thetagpu", Settings("ddp", 64),
        _of_times({1: 11.7, 4: 2.64, 8: 1.37, 16: 0.80, 32: 0.49}), SDL,
        account=f"{BINDING} With many GPUs an epoch is 0.5 s and 29 steps, and its start and end show.",
    ),
    Published(
        "ThetaGPU, MNIST, Horovod, 32 epochs", "mnist-classic", "thetagpu", Settings("horovod", 64),
        _of_times({1: 499.8, 2: 283.9, 4: 100.4, 8: 58.8, 16: 63.8, 32: 55.7}), SDL, samples_per_s=3842,
        account=(
            f"{BINDING} Start-up and tests, which more GPUs do not shorten, are in the time: "
            "56 s are left on 32."
        ),
    ),
    Published(
        "Polaris, MNIST, Keras", "mnist-classic", "polaris", Settings("horovod", 64),
        _of_times({1: 30.4, 2: 24.2, 4: 19.8, 8: 17.9}), ALCF, samples_per_s=1974,
        account=(
            "About 16 s an epoch do not shrink with more GPUs, which is neither arithmetic nor "
            "messages: what each process does for itself, such as input, callbacks and tests."
        ),
    ),
    Published(
        "Polaris, ResNet-34", "resnet-34", "polaris", Settings("horovod", 64),
        _of_speeds({1: 281, 2: 382, 4: 689, 8: 1341}), ALCF,
        account=(
            "281 +- 76 images/s is a baseline of which a quarter is noise, and a tenth of what an "
            "A100 can do: the input limits it. From 2 GPUs on, each brings about 170 to 190 images/s."
        ),
    ),
]  # fmt: skip


def beside_forecast(entries: Iterable[Published] = EVERYTHING) -> pd.DataFrame:
    """One row an entry and number of devices: published, forecast, and the forecast if nothing or everything
    overlapped.

    Efficiencies are shares; difference_points is forecast - published in percentage points.
    """
    rows = []
    for entry in entries:
        model, machine = catalogue.model(entry.model), catalogue.machine(entry.machine)
        if entry.samples_per_s:
            machine = machine.with_speed(model, entry.samples_per_s)
        base, *points = forecast(model, machine, entry.settings, [entry.baseline, *entry.efficiency])
        for point, published in zip(points, entry.efficiency.values(), strict=True):
            rows.append({"what": entry.what, "devices": point.devices, **_compared(base, point, published)})
    return pd.DataFrame(rows)


def _compared(base: Point, point: Point, published: float) -> dict[str, float]:
    expected = base.step_s / point.step_s
    return {
        "published": published,
        "forecast": expected,
        "no_overlap": base.most_s / point.most_s,
        "full_overlap": base.least_s / point.least_s,
        "difference_points": 100 * (expected - published),
    }
