"""Measure one GPU, for what lessons and forecasts say of GPUs; print it, and write it to build/one_gpu.jsonl.

    python tests/benchmarks/one_gpu.py      takes about a minute

It needs PyTorch with torchvision. All data is made up on the GPU, so no loader limits it.
"""

import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
import torchvision
from torch.nn.functional import cross_entropy

OUT = Path(__file__).parents[2] / "build" / "one_gpu.jsonl"
REPEATS = 5
BATCHES = (16, 32, 64, 128, 256)
STEPS = 20
SIDE = 8192  # of the matrices whose product is timed
SIDES = (1024, 4096)  # of the gradients that are compressed: 1 and 17 million entries
SHARE = 0.01


def seconds(work: Callable[[], object], times: int) -> list[float]:
    """How long one call takes, as the mean of so many, REPEATS times; the calls before them are not counted."""
    for _ in range(times):
        work()
    taken = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(times):
            work()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - began_s) / times)
    return taken


def resnet_50(batch: int) -> list[float]:
    """Seconds of a training step in bf16, not compiled."""
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return seconds(step, STEPS)


def product(dtype: torch.dtype) -> list[float]:
    """Seconds of a product of two square matrices."""
    one = torch.randn(SIDE, SIDE, device="cuda", dtype=dtype)
    return seconds(lambda: one @ one, STEPS)


def copy() -> list[float]:
    """Seconds of copying a GB on the GPU, which reads it and writes it."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return seconds(lambda: target.copy_(source), STEPS)


def top_share(side: int) -> list[float]:
    """Seconds of choosing the largest entries of a gradient and its residual, and of what is left."""
    gradient = torch.randn(side * side, device="cuda")
    residual = torch.randn(side * side, device="cuda")

    def compress() -> None:
        total = gradient + residual
        places = total.abs().topk(int(SHARE * len(total)), sorted=False).indices
        values = total[places]
        total[places] = 0
        torch.cat([values, places.to(torch.int32).view(torch.float32)])

    return seconds(compress, STEPS)


def low_rank(side: int) -> list[float]:
    """Seconds of PowerSGD's arithmetic with two columns: two products, an orthogonal basis, and what is left."""
    gradient = torch.randn(side, side, device="cuda")
    q = torch.randn(side, 2, device="cuda")

    def compress() -> None:
        p = torch.linalg.qr(gradient @ q).Q
        gradient - p @ (gradient.T @ p).T

    return seconds(compress, STEPS)


def main() -> None:
    about = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    works = {f"resnet-50, batch {batch}": (batch, partial(resnet_50, batch)) for batch in BATCHES}
    for dtype in (torch.bfloat16, torch.float32):
        works[f"product, {dtype}"] = 2 * SIDE**3, partial(product, dtype)
    works["copy"] = 2 * 2**30, copy
    for side in SIDES:
        works[f"top 1 %, {side} x {side}"] = side * side, partial(top_share, side)
        works[f"low rank, {side} x {side}"] = side * side, partial(low_rank, side)
    OUT.parent.mkdir(exist_ok=True)
    with OUT.open("w") as file:
        for name, (amount, work) in works.items():
            taken = work()
            row = about | {"what": name, "amount": amount, "s": taken}
            file.write(json.dumps(row) + "\n")
            median_s = statistics.median(taken)
            speed = f"{amount / median_s:.4g} per second"
            print(f"{name:<28} {median_s:.6f} s, {speed}, {1e9 * median_s / amount:.4g} ns each")


if __name__ == "__main__":
    main()
