"""Lose ranks at random, over and over, and see what the workshop says of it each time.

    python tests/benchmarks/soak.py [--faults 100] [--seed 1] [--libraries mpi,gloo]        or: make soak FAULTS=100

Two ranks train nothing but allreduces. One of them meets a fault at a random moment; the message that comes of it is
timed from there, and searched for the rank and a line of the learner's cell. Then fresh ranks have to work. It prints
a line for each fault as it goes, and a table at the end, also when it's interrupted: then after the fault under way.
Exit code 1: one was not reported, or a process was left.
"""

import argparse
import contextlib
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ.pop("WORKSHOP_TEST_RUN", None)  # a test that runs this may have ranks of its own, which aren't counted here
from our_ranks import left_after, our_ranks  # noqa: E402
from ranks.test_faults import SETUP, WORKS  # noqa: E402

from workshop_lib import ranks  # noqa: E402

INSIDE = {  # what the rank does, as a line of its cell
    "raises": "raise ValueError('soaked')",
    "calls sys.exit": "sys.exit(3)",
    "exits with 0": "os._exit(0)",
    "exits with 7": "os._exit(7)",
    "aborts": "os.abort()",
    "kills itself": "os.kill(os.getpid(), signal.SIGKILL)",
    "sleeps": "time.sleep(3600)",
}
OUTSIDE = {  # what hits it at any moment
    "is killed": signal.SIGKILL,
    "segfaults": signal.SIGSEGV,
    "is asked to end": signal.SIGTERM,
    "is stopped": signal.SIGSTOP,
}
HANG = ("sleeps", "is stopped")  # for these, the seconds count from the time-out
HANG_TIMEOUT_S, TIMEOUT_S = 3.0, 30.0
LONGEST_RUN_S = 1.0  # until the fault
IN_A_ROW = 20  # faults with one library: to import another takes longer than a fault
LINE = re.compile(r"In\[\d+\], line \d+")
CELL = """\
began = time.monotonic()
for step in range(10**9):
    sum(range(20_000))
    if rank == {rank} and time.monotonic() - began > {moment_s}:
        open({mark!r}, "w").write(str(time.monotonic()))
        {fault}
    allreduce()
"""


@dataclass
class Soaked:
    """What came of one fault."""

    library: str
    fault: str
    reported: bool
    names_rank: bool
    names_line: bool
    message_s: float
    back_s: float
    strays: int


def works(n: int) -> str:
    return WORKS.replace("== 2", f"== {n}")


def prepare(library: str, n: int) -> ranks.Ranks:
    """Healthy ranks on which allreduce() works over this library."""
    team = ranks.start(n)
    if getattr(team, "soaks", None) != library:
        if getattr(team, "soaks", None) is not None:
            team.restart()
        team.run_cell(SETUP[library], "In[1]", timeout=60)
        team.soaks = library
    team.run_cell(works(n), "In[2]", timeout=60)
    return team


def meet(library: str, fault: str, chance: random.Random, folder: Path, n: int) -> Soaked:
    """Let one of `n` ranks meet the fault; returns what came of it, once fresh ranks work."""
    team = prepare(library, n)
    rank = chance.randrange(n)
    moment_s = chance.random() * LONGEST_RUN_S
    mark = folder / "fault"
    mark.unlink(missing_ok=True)
    old = [about["pid"] for about in team.about()]
    told = {"rank": rank, "moment_s": moment_s, "mark": str(mark), "fault": INSIDE.get(fault, "pass")}
    if fault in OUTSIDE:
        told["moment_s"] = 10**9
        threading.Timer(moment_s + 0.2, hit, (old[rank], OUTSIDE[fault], mark)).start()
    timeout_s, message = (HANG_TIMEOUT_S if fault in HANG else TIMEOUT_S), ""
    began_s = time.monotonic()
    try:
        team.run_cell(CELL.format(**told), "In[3]", timeout=timeout_s)
    except ranks.RankError as error:
        message = str(error)
    now_s = time.monotonic()
    if not mark.exists():
        raise RuntimeError(f"the cell ended before its fault: {message or 'without an error'}")
    fault_s = began_s + timeout_s if fault in HANG else float(mark.read_text() or now_s)
    team.restart()
    del team.soaks
    team.run_cell(SETUP[library], "In[1]", timeout=60)
    team.run_cell(works(n), "In[2]", timeout=60)
    team.soaks = library
    back_s, alive = time.monotonic() - now_s, [process for process in our_ranks() if process.pid in old]
    says = bool(re.search(rf"\branks? (0, )?{rank}\b", message)), bool(LINE.search(message))
    return Soaked(library, fault, bool(message), *says, now_s - fault_s, back_s, len(alive))


def hit(pid: int, number: int, mark: Path) -> None:
    with contextlib.suppress(OSError):  # when all of this has ended early, the folder or the rank is gone
        mark.write_text(str(time.monotonic()))
        os.kill(pid, number)


def summary(rows: list[Soaked]) -> pd.DataFrame:
    """By library and fault, and in all: how many, shares, and seconds."""
    frame = pd.DataFrame([vars(row) for row in rows])
    parts = {"all": frame} | dict(iter(frame.groupby("library"))) | dict(iter(frame.groupby("fault")))
    return pd.DataFrame(
        {
            name: {
                "faults": len(part),
                "reported": f"{part['reported'].mean():.1%}",
                "names the rank": f"{part['names_rank'].mean():.1%}",
                "and a line": f"{(part['names_rank'] & part['names_line']).mean():.1%}",
                "message, s (median)": f"{part['message_s'].median():.2f}",
                "(99 %)": f"{part['message_s'].quantile(0.99):.2f}",
                "works again, s (median)": f"{part['back_s'].median():.1f}",
            }
            for name, part in parts.items()
        }
    ).T


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--libraries", default=",".join(SETUP))
    options = parser.parse_args()
    interrupted = threading.Event()
    # Not as an exception: inside a call it would end as that call's error, and pass for the report of the fault.
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    chance, rows = random.Random(options.seed), []
    libraries = [name.strip() for name in options.libraries.split(",")]
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(1, options.faults + 1):
                if number % IN_A_ROW == 1:
                    library = chance.choice(libraries)
                case = library, chance.choice([*INSIDE, *OUTSIDE])
                row = meet(*case, chance, Path(folder), options.ranks)
                rows.append(row)
                says = " and ".join(["a rank"] * row.names_rank + ["a line"] * row.names_line) or "neither"
                said = f"message after {row.message_s:.2f} s names {says}" if row.reported else "NO MESSAGE"
                print(f"{number}/{options.faults} {case[0]}, a rank {case[1]}: {said}; works again after "
                      f"{row.back_s:.1f} s", flush=True)  # fmt: skip
                if interrupted.is_set():
                    print("interrupted")
                    break
    finally:
        ranks.stop()
    if not rows:
        return 1
    left = len(left_after(10))
    print(f"\n{summary(rows).to_string()}\n\nprocesses left: {sum(row.strays for row in rows) + left}")
    return 0 if all(row.reported and not row.strays for row in rows) and not left else 1


if __name__ == "__main__":
    sys.exit(main())
