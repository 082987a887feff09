"""Compare emulated ranks and dry runs with what others have measured on real machines, and list every difference.

Nothing is fitted here. One device's speed is the published one where there is one. All else comes from the table of
machines, whose lateness was fitted to DLPerf's and Horovod's tables.
"""

import sys
import time
from pathlib import Path

import cloudpickle
from emulation import emulated

from workshop_lib import ranks
from workshop_lib.lessons.forecasting.forecast import Settings
from workshop_lib.lessons.forecasting.published import EVERYTHING, PublishedScaling
from workshop_lib.lessons.thousand_ranks.dry_run import dry_run
from workshop_lib.machine import catalogue

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import the benchmarks

SCALE = 256  # an emulated network has a 256th of the parameters of the network that it stands for
STEPS = 8  # devices are late at random, so the mean of some steps counts
TABLES = ("Horovod", "DLPerf ResNet-50", "DLPerf BERT", "NVIDIA MXNet", "NVIDIA PyTorch", "TensorFlow")
# Horovod's documentation: 1,656.82 images/s with ResNet-101 on 4 servers of 4 Pascal GPUs (docs/benchmarks.rst). The
# speed of one GPU is the table's, which is estimated, so the efficiency is too.
RESNET_101 = PublishedScaling(
    "Horovod, resnet-101 on 16", "resnet-101", "horovod-p100", Settings("horovod", 64), {16: 1656.82 / 16 / 129}, ""
)
BUCKETS_MIB = (0, 5, 10, 25, 50, 100, 200)
LLAMA = Path(__file__).with_name("llama.py")
# Published tokens/s per GPU of torchtitan's FSDP2: benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3, and
# docs/performance.md. Second speeds are without torch.compile. Each row: the machine, GPUs, network, sequences per GPU,
# tokens per sequence, what is computed again in the backward pass, and the speeds.
TORCHTITAN = [
    ("h100", 8, "llama3-8b", 2, 8192, "selective", (6667, 5762)),
    ("h100", 128, "llama3-8b", 2, 8192, "selective", (6514, 5605)),
    ("thetagpu", 64, "llama3-8b", 1, 8192, "selective", (2973,)),
    ("thetagpu", 64, "llama3-70b", 1, 8192, "full", (331,)),
    ("thetagpu", 64, "llama2-13b", 2, 4096, "none", (2162,)),
    ("thetagpu", 64, "llama2-13b", 2, 4096, "selective", (1904,)),
    ("thetagpu", 64, "llama2-70b", 1, 4096, "selective", (355,)),
    ("thetagpu", 64, "llama2-70b", 2, 4096, "full", (353,)),
]

Layer = tuple[list[int], float]  # the sizes of its tensors, and its multiply-adds


def resnet(blocks: tuple[int, ...]) -> list[Layer]:
    """The layers of a ResNet with bottlenecks (He et al. 2015, table 1): convolutions with their normalizations."""
    layers: list[Layer] = []

    def convolution(inputs: int, outputs: int, kernel: int, pixels: int) -> None:
        weights = inputs * outputs * kernel**2
        layers.append(([weights, outputs, outputs], weights * pixels**2))

    convolution(3, 64, 7, 112)
    inputs = 64
    for stage, number in enumerate(blocks):
        width = 64 * 2**stage
        pixels = 56 // 2**stage
        for block in range(number):
            convolution(inputs, width, 1, pixels)
            convolution(width, width, 3, pixels)
            convolution(width, 4 * width, 1, pixels)
            if block == 0:
                convolution(inputs, 4 * width, 1, pixels)
            inputs = 4 * width
    layers.append(([2048 * 1000, 1000], 2048 * 1000))
    return layers


def vgg_16() -> list[Layer]:
    """The layers of VGG-16 (Simonyan and Zisserman 2014, table 1, column D)."""
    layers: list[Layer] = []
    inputs = 3
    for outputs, number, pixels in ((64, 2, 224), (128, 2, 112), (256, 3, 56), (512, 3, 28), (512, 3, 14)):
        for _ in range(number):
            layers.append(([9 * inputs * outputs, outputs], 9 * inputs * outputs * pixels**2))
            inputs = outputs
    return [*layers, *[([n * m, m], n * m) for n, m in ((25088, 4096), (4096, 4096), (4096, 1000))]]


def bert(layers: int, width: int) -> list[Layer]:
    """The layers of BERT with its two heads (Devlin et al. 2018), for sequences of 128 tokens, 20 of them masked."""
    embeddings = [30522 * width, 512 * width, 2 * width, width, width]
    attention = [width * width, width] * 4
    hidden = [width * 4 * width, 4 * width, 4 * width * width, width]
    encoder = ([*attention, *hidden, *[width] * 4], 128 * 12 * width**2 + 2 * 128**2 * width)
    head = [width * width, width, width * width, width, width, width, 30522, 2 * width, 2]
    return [(embeddings, 0.0), *[encoder] * layers, (head, 20 * (30522 * width + width**2))]


LAYERS = {
    "resnet-50": resnet((3, 4, 6, 3)),
    "resnet-101": resnet((3, 4, 23, 3)),
    "vgg-16": vgg_16(),
    "bert-base": bert(12, 768),
    "bert-large": bert(24, 1024),
}


def step_s(layers: list[Layer], alone_s: float, bucket_mib: float) -> float:
    """On a rank: the mean seconds of a step of DDP, with a network of these layers that takes `alone_s` by itself."""
    import torch
    from torch import nn

    from workshop_lib.emulation import takes
    from workshop_lib.machine import world
    from workshop_lib.training import rendezvous

    class Stand(nn.Module):
        """As many tensors as a layer, each with a share of its parameters."""

        def __init__(self, sizes: list[int]):
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.zeros(-(-size // SCALE))) for size in sizes])

        def forward(self, x):
            for weight in self.weights:
                x = x + weight.sum()
            return x

    cpu = torch.device("cpu")
    rendezvous.join_process_group(world.detect(), cpu)
    group = rendezvous.join_over_mpi(world.detect(), cpu)
    whole = sum(operations for _, operations in layers)
    stands = []
    for sizes, operations in layers:
        layer_s = alone_s * operations / whole
        stands.append(takes(Stand(sizes), layer_s / 3, 2 * layer_s / 3))
    network = nn.Sequential(*stands)
    model = nn.parallel.DistributedDataParallel(network, process_group=group, bucket_cap_mb=bucket_mib / SCALE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(STEPS + 2):
        if step == 2:  # DDP orders its buckets in the second step
            began = time.perf_counter()
        model(torch.ones(1, requires_grad=True)).sum().backward()
        optimizer.step()
    return (time.perf_counter() - began) / STEPS


def scaling(report) -> None:
    """Published efficiencies of data-parallel training on up to 16 devices."""
    points: dict[str, list[float]] = {table: [] for table in TABLES}
    rows: dict[str, list[list[str]]] = {table: [] for table in TABLES}
    for n in (16, 8, 4, 2):
        team = ranks.start(n)
        for entry in [*EVERYTHING, RESNET_101]:
            if entry.table in TABLES and n in entry.efficiency and entry.baseline == 1:
                published = entry.efficiency[n]
                found = efficiency(team, entry)
                points[entry.table].append(100 * (found - published))
                row = [entry.what, str(n), f"{published:.1%}", f"{found:.1%}", f"{100 * (found - published):+.1f}"]
                rows[entry.table].append(row)
    for table in TABLES:
        what = f"emulated - published efficiency, points: {table}"
        report(what, "small", points[table], rows=sorted(rows[table]))


def efficiency(team, entry: PublishedScaling) -> float:
    """The emulated efficiency of one published run on as many ranks as the team has."""
    batch = entry.settings.batch_size or 1
    machine, model = catalogue.machine(entry.machine), catalogue.model(entry.model)
    if entry.samples_per_s:
        machine = machine.with_speed(model, entry.samples_per_s)
    alone_s = machine.compute_of(model).step_s(batch)
    bucket_mib = (entry.settings.how.message_bytes or 0) / 2**20
    taken = emulated(team, entry.machine, step_s, LAYERS[entry.model], alone_s, bucket_mib, scale=SCALE)
    return alone_s / max(taken)


def buckets(report) -> None:
    """The best bucket size on 16 V100 with NCCL, which Li et al. 2020 show in figure 7 and name in section 5.2."""
    team = ranks.start(16)
    named = {"resnet-50": (32 / 384, "10 to 25"), "bert-large": (0.25, "50")}
    for model, (alone_s, published) in named.items():
        taken = {}
        for bucket_mib in BUCKETS_MIB:
            steps = emulated(team, "dgx1-v100", step_s, LAYERS[model], alone_s, bucket_mib, scale=SCALE)
            taken[bucket_mib] = max(steps)
        best = min(taken, key=taken.__getitem__)
        rows = [[model, *[f"{1e3 * seconds:.1f}" for seconds in taken.values()], published]]
        report(f"emulated: best bucket for {model} on 16 V100, MiB", published, [best], seconds=taken, rows=rows)


def torchtitan(report) -> None:
    """Tokens per second and GPU by the dry run's clock."""
    errors, rows = [], []
    for machine, n, model, sequences, tokens, recompute, published in TORCHTITAN:
        options = ["--model", model, "--sequences", sequences, "--tokens", tokens, "--recompute", recompute]
        found = dry_run(LLAMA, *options, world_size=n, machine=machine)
        tokens_per_s = sequences * tokens / found.step_s
        for speed in published:
            error = tokens_per_s / speed - 1
            how = f"recompute {recompute}" if speed == published[0] else f"recompute {recompute}, not compiled"
            errors.append(error)
            where = f"{n} {machine}"
            rows.append([model, where, how, f"{speed:,}", f"{tokens_per_s:,.0f}", f"{error:+.1%}"])
    report("emulated / published - 1: tokens/s of torchtitan", "small", errors, rows=rows)


def proof(report) -> None:
    torchtitan(report)
    buckets(report)
    scaling(report)
