"""What the notebooks' calculators say over a range, as tables in Markdown for pages of book/.

Such a page has places like {memory by model}, and book.py fills each with the table of this name in TABLES.
"""

from collections.abc import Callable, Iterable

from workshop_lib.lessons.forecasting import forecast, report
from workshop_lib.lessons.forecasting.forecast import Settings
from workshop_lib.lessons.zero_and_fsdp import zero_memory
from workshop_lib.lessons.zero_and_fsdp.calculator import MODELS
from workshop_lib.lessons.zero_and_fsdp.figures import size
from workshop_lib.machine import catalogue
from workshop_lib.machine.cost_model import ALGORITHMS, allreduce_s
from workshop_lib.words import plural

GPUS = (1, 8, 64, 512)
DEVICES = (8, 64, 512, 4096)
# Networks that compute much or little for each byte that they send, each with a machine.
RUNS = (("resnet-50", "aurora"), ("gpt2", "h100"), ("bert-base", "polaris"), ("vgg-16", "horovod-p100"))
MIB = 2**20
ALPHA_S = 10e-6
BETA_S_PER_BYTE = 1e-10


def table(headings: Iterable[str], rows: Iterable[list[str]]) -> str:
    lines = [list(headings), *rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def memory(model: str, gpu: str, recipe: str, sequence: int, checkpointing=False, offload=False) -> list[str]:
    """A cell for each of GPUS: the first stage at which the model fits, and what it takes on a GPU, or a dash."""
    parameters, shape = MODELS[model]
    assert shape is not None, f"{model} has no shape"
    sizes = zero_memory.RECIPES[recipe]
    kept = {"value_bytes": sizes["parameter_bytes"], "checkpointing": checkpointing}
    activations = zero_memory.activation_bytes(shape, sequence, 1, **kept)
    cells = []
    for ranks in GPUS:
        options = {"activations": activations, "offload": offload}
        plan = zero_memory.plan(parameters, ranks, zero_memory.GPUS[gpu], sizes, **options)
        fitting = [f"stage {at.stage}: {size(at.total_gpu_bytes)}" for at in plan.stages if at.fits]
        cells.append(fitting[0] if fitting else "–")
    return cells


def memory_by_model() -> str:
    rows = []
    for model in ("GPT-2 1.5B", "Llama 7B", "Llama 13B", "Llama 70B"):
        for gpu in ("RTX 4090, 24 GB", "A100, 40 GB", "A100, 80 GB", "H200, 141 GB"):
            rows.append([model, gpu, *memory(model, gpu, "bf16, Adam", 2048)])
    return table(["model", "kind of GPU", *(plural(n, "GPU") for n in GPUS)], rows)


def memory_by_recipe() -> str:
    rows = []
    for recipe in zero_memory.RECIPES:
        for way, offload in (("", False), (", offload", True)):
            rows.append([f"{recipe}{way}", *memory("Llama 7B", "A100, 80 GB", recipe, 2048, offload=offload)])
    return table(["recipe", *(plural(n, "GPU") for n in GPUS)], rows)


def memory_by_sequence() -> str:
    rows = []
    for sequence in (2048, 8192, 32_768, 131_072):
        for way, checkpointing in (("", False), (", checkpointing", True)):
            cells = memory("Llama 7B", "A100, 80 GB", "bf16, Adam", sequence, checkpointing)
            rows.append([f"{sequence:,} tokens{way}", *cells])
    return table(["sequence", *(plural(n, "GPU") for n in GPUS)], rows)


def forecast_by_machine() -> str:
    """Every network on every machine for which the speed of one device is known or can be estimated."""
    rows = []
    for model in catalogue.models().values():
        for machine in catalogue.machines().values():
            if model.name not in machine.compute and model.kind not in machine.utilization:
                continue
            points = forecast.forecast(model, machine, Settings("ddp", 32))
            cells = [report.efficiency(point) for point in points if point.devices in DEVICES]
            rows.append([model.name, machine.title, *cells, str(forecast.takes_over(points) or "never")])
    headings = [plural(n, "device") for n in DEVICES]
    return table(["network", "machine", *headings, "communication takes over at"], rows)


def forecast_by_batch() -> str:
    rows = []
    for name, on in RUNS:
        for batch in (8, 32, 128, 512):
            machine = catalogue.machine(on)
            points = forecast.forecast(catalogue.model(name), machine, Settings("ddp", batch), DEVICES)
            rows.append([name, machine.title, str(batch), *map(report.efficiency, points)])
    return table(["network", "machine", "batch per device", *(plural(n, "device") for n in DEVICES)], rows)


def forecast_with_one_change() -> str:
    settings = Settings("ddp", 32)
    runs = [(catalogue.model(name), catalogue.machine(on)) for name, on in RUNS]
    changed = [forecast.what_if(model, machine, settings, 512) for model, machine in runs]
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
    rows = []
    for ranks in (4, 8, 64, 1024):
        for nbytes, words in ((1024, "1 KiB"), (MIB, "1 MiB"), (100 * MIB, "100 MiB"), (1024 * MIB, "1 GiB")):
            seconds = [allreduce_s(name, ranks, nbytes, ALPHA_S, BETA_S_PER_BYTE) for name in ALGORITHMS]
            rows.append([str(ranks), words, *durations(seconds)])
    return table(["ranks", "array", *ALGORITHMS], rows)


def buckets() -> str:
    sizes = {"each tensor": 0, "1 MiB": MIB, "5 MiB": 5 * MIB, "25 MiB": 25 * MIB, "100 MiB": 100 * MIB, "all": 2**62}
    rows = []
    for name, on in RUNS:
        for devices in DEVICES:
            machine = catalogue.machine(on)
            seconds = []
            for nbytes in sizes.values():
                settings = Settings("ddp", 32, message_bytes=nbytes)
                seconds += [at.step_s for at in forecast.forecast(catalogue.model(name), machine, settings, [devices])]
            rows.append([name, machine.title, str(devices), *durations(seconds)])
    return table(["network", "machine", "devices", *sizes], rows)


def durations(seconds: list[float]) -> list[str]:
    """Cells with these times, the shortest in bold."""
    words = [report.duration(each) for each in seconds]
    shortest = report.duration(min(seconds))
    return [f"**{each}**" if each == shortest else each for each in words]


TABLES: dict[str, Callable[[], str]] = {
    "memory by model": memory_by_model,
    "memory by recipe": memory_by_recipe,
    "memory by sequence": memory_by_sequence,
    "forecast by machine": forecast_by_machine,
    "forecast by batch": forecast_by_batch,
    "forecast with one change": forecast_with_one_change,
    "ring step by step": ring_steps,
    "ring beside other algorithms": ring_costs,
    "buckets": buckets,
}
