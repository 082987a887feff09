"""Measure throughput, start-up and how exact emulated ranks are; print it, and write records to build/bench.jsonl.

    python tests/benchmarks/run.py [NAME …]      all, or some of those in `main`

Ratios are taken side by side in one run, from medians of REPEATS rounds; the spread is printed with them.
Run it on a machine that does nothing else.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import emulated_dry_run
import emulation as emulated_ranks
import nbformat
import psutil
from nbclient import NotebookClient

from workshop_lib import ranks
from workshop_lib.notebook.results import records
from workshop_lib.paths import BUILD, ROOT
from workshop_lib.ranks.launch import which_mpi
from workshop_lib.training.options import TrainOptions

REPEATS = 3
ENGINE_PAIRS, SHORT = 24, 15_000  # the difference is small beside a machine's unrest: many pairs
DASHBOARD_PAIRS = 60
LIMIT_S = 1800
OUT = BUILD / "bench.jsonl"
EMULATED = BUILD / "emulated_bench.jsonl"


def train_command(out: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "workshop_lib", "train", "--out", str(out), *arguments]


def start(command: list[str]) -> subprocess.Popen:
    environment = os.environ | which_mpi.environment()
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(*processes: subprocess.Popen) -> None:
    for process in processes:
        _, errors = process.communicate(timeout=LIMIT_S)
        if process.returncode:
            raise RuntimeError(f"{' '.join(process.args)} failed: {errors[-500:]}")


def speed(record: dict) -> float:
    """samples/s after the first epoch."""
    return record["epochs"][-1]["samples_per_s"]


def under_mpiexec(n: int, *arguments: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        finish(start([*which_mpi.mpiexec(), "-n", str(n), *train_command(out, *arguments)]))
        return records.read(out)[0]


def independently(n: int, *arguments: str) -> float:
    """Summed samples/s of n one-rank processes that know nothing of each other: the machine's ceiling."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"{i}.jsonl" for i in range(n)]
        finish(*[start(train_command(out, *arguments)) for out in outs])
        return sum(speed(records.read(out)[0]) for out in outs)


def in_engines(n: int, options: TrainOptions) -> dict:
    try:
        return ranks.start(n).train(options, timeout=LIMIT_S, show=False)
    finally:
        ranks.stop()


def report(name: str, wanted: str, values: list[float], **details) -> None:
    """Print a measure and write its record."""
    middle = statistics.median(values)
    print(f"{name}: {middle:.3g} (from {min(values):.3g} to {max(values):.3g}; wanted: {wanted})", flush=True)
    where = {"cpu_count": os.cpu_count(), "python": sys.version.split()[0]}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record = {"schema": 1, "kind": "bench", "name": name, "started": now, "where": where}
    out = EMULATED if "emulated" in name else OUT
    records.write(out, record | {"median": middle, "values": values, "wanted": wanted, **details})


def scaling() -> None:
    """2 ranks against 1, and against two independent processes."""
    names = ("one", "two", "ceiling", "ddp", "horovod")
    rounds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(REPEATS):
        half = ("--epochs", "2", "--train-samples", "30000")
        rounds["one"].append(speed(under_mpiexec(1, "--epochs", "2")))
        rounds["two"].append(speed(under_mpiexec(2, "--epochs", "2")))
        rounds["ceiling"].append(independently(2, *half))
        for name in ("ddp", "horovod"):
            rounds[name].append(speed(under_mpiexec(2, "--epochs", "2", "--backend", name)))
    one, two, ceiling, ddp, horovod = (rounds[name] for name in names)
    samples_per_s = {"samples_per_s": rounds}
    report("mpi, 2 ranks / 1 rank", "1.8 or more", ratios(two, one), **samples_per_s)
    report("mpi, 2 ranks / 2 processes", "0.95 or more", ratios(two, ceiling), **samples_per_s)
    report("ddp, 2 ranks / mpi, 2 ranks", "explained in notebook 02", ratios(ddp, two), **samples_per_s)
    report("horovod, 2 ranks / mpi, 2 ranks", "explained in notebook 03", ratios(horovod, two), **samples_per_s)


def ratios(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def engines() -> None:
    """The same code in engines and under plain mpiexec, and what the processes beside the ranks take of the
    cores, which the machine's unrest hardly touches."""
    options = TrainOptions(backend="mpi", train_samples=SHORT)
    team = ranks.start(2)
    ways = {
        "inside": lambda: speed(team.train(options, timeout=LIMIT_S, show=False)),
        "outside": lambda: speed(under_mpiexec(2, "--train-samples", str(SHORT))),
    }
    found, beside = [], []
    try:
        for pair in range(ENGINE_PAIRS):
            order = list(ways) if pair % 2 else list(reversed(ways))
            speeds = {name: ways[name]() for name in order}
            found.append(speeds["inside"] / speeds["outside"])
        for _ in range(REPEATS):
            began, before_s = time.perf_counter(), beside_ranks_s(team)
            team.train(TrainOptions(backend="mpi"), timeout=LIMIT_S, show=False)
            cores_s = team.n * (time.perf_counter() - began)
            beside.append((beside_ranks_s(team) - before_s) / cores_s)
    finally:
        ranks.stop()
    report("engines / mpiexec, mpi on 2 ranks", "0.97 or more", found)
    report("CPU time beside the ranks / of the ranks' cores", "0.03 or less", beside)


def beside_ranks_s(team) -> float:
    """CPU seconds so far of this process, the controller and the launcher: of all but the ranks."""
    of_ranks = {about["pid"] for about in team.about()}
    here = psutil.Process()
    others = [process for process in [here, *here.children(recursive=True)] if process.pid not in of_ranks]
    return sum(sum(process.cpu_times()[:2]) for process in others)


def start_up() -> None:
    """Import and doctor, as processes."""
    for name, wanted, arguments in (
        ("import workshop_lib, s", "under 0.5", ["-c", "import workshop_lib"]),
        ("workshop doctor, s", "under 5", ["-m", "workshop_lib", "doctor"]),
    ):
        took = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, timeout=60)
            took.append(time.perf_counter() - began)
        report(name, wanted, took)


IN_KERNEL = """\
import json
from workshop_lib import notebook, ranks
from workshop_lib.training.options import TrainOptions

team = ranks.start(2)
speeds = {True: [], False: []}
for pair in range(%d):
    for show in (pair %% 2 == 0, pair %% 2 == 1):
        record = team.train(TrainOptions(epochs=2, train_samples=%d), show=show)
        speeds[show].append(record["epochs"][-1]["samples_per_s"])
print(json.dumps([speeds[True], speeds[False]]), flush=True)
ranks.stop()
"""


def dashboard() -> None:
    """The same training in a real kernel with the dashboard and without it, in turns."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(IN_KERNEL % (DASHBOARD_PAIRS, SHORT))])
    place = {"metadata": {"path": str(ROOT)}}
    NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3", resources=place).execute()
    printed = [output.text for output in notebook.cells[0].outputs if output.output_type == "stream"]
    speeds = json.loads(printed[-1].splitlines()[-1])
    report("throughput with the dashboard / without", "0.98 or more", ratios(*speeds), speeds=speeds)


def emulation() -> None:
    """How exact emulated ranks are, beside formulas and dry runs, and what they cost."""
    try:
        emulated_ranks.scaling(BUILD / "emulated.jsonl")
        emulated_ranks.proofs(report)
        emulated_dry_run.proof(report)
        emulated_ranks.real_cost(report)
    finally:
        ranks.stop()


def main(names: list[str]) -> None:
    benchmarks = {
        "scaling": scaling,
        "engines": engines,
        "start": start_up,
        "dashboard": dashboard,
        "emulation": emulation,
    }
    unknown = set(names) - set(benchmarks)
    if unknown:
        sys.exit(f"no benchmark {', '.join(sorted(unknown))}: use {', '.join(benchmarks)}")
    for name in names or benchmarks:
        benchmarks[name]()
    print(f"records: {OUT} and {EMULATED}")


if __name__ == "__main__":
    main(sys.argv[1:])
