"""Tables in Markdown for pages of book/, computed by the lessons' own functions.

Such a page has places like {memory by model}, and book.py fills each with the table of this name in TABLES.
"""

from collections.abc import Callable, Iterable

from workshop_lib.forecast import forecast, report
from workshop_lib.forecast.forecast import Settings
from workshop_lib.machine import catalogue
from workshop_lib.machine.cost_model import ALGORITHMS, allreduce_s
from workshop_lib.words import plural

from lessons.zero_and_fsdp import zero_memory
from lessons.zero_and_fsdp.calculator import MODELS
from lessons.zero_and_fsdp.figures import size

GPUS = (1, 8, 64, 512)
DEVICES = (8, 64, 512, 4096)
# Networks that compute much or little for each byte that they send, each with a machine.
RUNS = {"resnet-50": "aurora", "gpt2": "h100", "bert-base": "polaris", "vgg-16": "horovod-p100"}
MIB = 2**20
ONE_MESSAGE = 2**62  # more bytes than any model's gradients have


def table(headings: Iterable[str], rows: Iterable[list[str]]) -> str:
    lines = [list(headings), *rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def memory(model: str, gpu: str, recipe="bf16, Adam", sequence=2048, checkpointing=False, offload=False) -> list[str]:
    """A cell for each of GPUS: the first stage at which the model fits, and what it takes on a GPU, or a dash."""
    parameters, shape = MODELS[model]
    assert shape is not None, f"{model} has no shape"
    sizes = zero_memory.RECIPES[recipe]
    kept = {"value_bytes": sizes["parameter_bytes"], "checkpointing": checkpointing}
    options = {"activations": zero_memory.activation_bytes(shape, sequence, 1, **kept), "offload": offload}
    cells = []
    for ranks in GPUS:
        plan = zero_memory.plan(parameters, ranks, zero_memory.GPUS[gpu], sizes, **options)
        fitting = [f"stage {at.stage}: {size(at.total_gpu_bytes)}" for at in plan.stages if at.fits]
        cells.append(fitting[0] if fitting else "–")
    return cells


def memory_by_model() -> str:
    rows = []
    for model in ("GPT-2 1.5B", "Llama 7B", "Llama 13B", "Llama 70B"):
        for gpu in ("RTX 4090, 24 GB", "A100, 40 GB", "A100, 80 GB", "H200, 141 GB"):
            rows.append([model, gpu, *memory(model, gpu)])
    return table(["model", "kind of GPU", *(plural(n, "GPU") for n in GPUS)], rows)


def memory_with_changes() -> str:
    changes: dict[str, dict] = {"as it is": {}}
    changes |= {recipe: {"recipe": recipe} for recipe in zero_memory.RECIPES if recipe != "bf16, Adam"}
    changes |= {f"{sequence:,} tokens": {"sequence": sequence} for sequence in (8192, 32_768, 131_072)}
    changes["131,072 tokens, checkpointing"] = {"sequence": 131_072, "checkpointing": True}
    changes |= {"checkpointing": {"checkpointing": True}, "offload": {"offload": True}}
    rows = [[change, *memory("Llama 7B", "A100, 80 GB", **options)] for change, options in changes.items()]
    return table(["", *(plural(n, "GPU") for n in GPUS)], rows)


def forecast_by_machine() -> str:
    """Every network on every machine for which the speed of one device is known or can be estimated."""
    rows = []
    for model in catalogue.models().values():
        for machine in catalogue.machines().values():
            if model.name not in machine.compute and model.kind not in machine.utilization:
                continue
            points = forecast.forecast(model, machine, Settings("ddp", 32))
            shown = [point for point in points if point.devices in DEVICES]
            for batch in (8, 128):
                shown += forecast.forecast(model, machine, Settings("ddp", batch), [512])
            taken = forecast.takes_over(points)
            rows.append([model.name, machine.title, *map(report.efficiency, shown), str(taken or "never")])
    headings = [*(plural(n, "device") for n in DEVICES), "512, batch of 8", "512, batch of 128"]
    return table(["network", "machine", *headings, "communication takes over at"], rows)


def forecast_with_changes() -> str:
    runs = [(catalogue.model(name), catalogue.machine(on)) for name, on in RUNS.items()]
    changed = [forecast.what_if(model, machine, Settings("ddp", 32), 512) for model, machine in runs]
    rows = [[change, *(report.efficiency(points[change]) for points in changed)] for change in changed[0]]
    return table(["", *(f"{model.name}, {machine.title}" for model, machine in runs)], rows)


def ring_steps(ranks: int = 3) -> str:
    """What each rank holds after each step of a ring: chunk by chunk, the ranks whose numbers are in the sum."""
    held = [[f"{rank}"] * ranks for rank in range(ranks)]
    rows = [["start", *(" · ".join(chunks) for chunks in held)]]
    for step in range(2 * (ranks - 1)):
        before = [list(chunks) for chunks in held]
        for rank in range(ranks):
            left = (rank - 1) % ranks
            chunk = (left - step) % ranks
            held[rank][chunk] = before[left][chunk]
            if step < ranks - 1:
                held[rank][chunk] += f"+{rank}"
            if step == ranks - 2:
                held[rank][chunk] = f"**{held[rank][chunk]}**"
        half = "reduce-scatter" if step < ranks - 1 else "allgather"
        rows.append([f"step {step + 1}, {half}", *(" · ".join(chunks) for chunks in held)])
    return table(["", *(f"rank {rank}" for rank in range(ranks))], rows)


def ring_costs() -> str:
    """Seconds of each allreduce by ranks and bytes, at a latency of 10 µs and a bandwidth of 10 GB/s."""
    rows = []
    for ranks in (4, 8, 64, 1024):
        for nbytes, words in ((1024, "1 KiB"), (MIB, "1 MiB"), (100 * MIB, "100 MiB"), (1024 * MIB, "1 GiB")):
            seconds = [allreduce_s(name, ranks, nbytes, 10e-6, 1e-10) for name in ALGORITHMS]
            rows.append([str(ranks), words, *durations(seconds)])
    return table(["ranks", "array", *ALGORITHMS], rows)


def buckets() -> str:
    sizes = {"each tensor": 0, "1 MiB": MIB, "5 MiB": 5 * MIB, "25 MiB": 25 * MIB, "100 MiB": 100 * MIB}
    sizes["all"] = ONE_MESSAGE
    rows = []
    for name, on in RUNS.items():
        model, machine = catalogue.model(name), catalogue.machine(on)
        by_size = [forecast.forecast(model, machine, Settings(message_bytes=n), DEVICES) for n in sizes.values()]
        for points in zip(*by_size, strict=True):
            seconds = [point.step_s for point in points]
            rows.append([name, machine.title, str(points[0].devices), *durations(seconds)])
    return table(["network", "machine", "devices", *sizes], rows)


def durations(seconds: list[float]) -> list[str]:
    """Cells with these times, the shortest in bold."""
    words = [report.duration(each) for each in seconds]
    shortest = report.duration(min(seconds))
    return [f"**{each}**" if each == shortest else each for each in words]


TABLES: dict[str, Callable[[], str]] = {
    "memory by model": memory_by_model,
    "memory with changes": memory_with_changes,
    "forecast by machine": forecast_by_machine,
    "forecast with changes": forecast_with_changes,
    "ring step by step": ring_steps,
    "ring beside other algorithms": ring_costs,
    "buckets": buckets,
}
