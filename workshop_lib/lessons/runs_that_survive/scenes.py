"""Fake ranks for the supervisor of 13b_runs_that_survive: they do nothing but end, wait, raise, die or stop.

    python -m workshop_lib.lessons.runs_that_survive.scenes LIMIT_S     plays scenes, and prints what happened as JSON

It reads a pickled supervisor and scenes from its input. A scene says what each rank does at its first start, at its
second, and so on; the last row also counts for later starts. The supervisor needs a process of its own, because it
waits for any child of its process.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TextIO

import cloudpickle
import psutil

RESTARTS = 2
GONE_S = 0.3  # the time that a killed rank may take to disappear
ENDLESS = "did not end"
UNSOLVED = "is not solved yet"

Scene = list[list[str]]


def play(supervise: Callable, scene: Scene, limit_s: float) -> dict:
    """Play a scene in a fork of this process, so that whatever the scene leaves behind can be killed.

    Returns the (attempt, rank) of each start, how the supervisor ended, and whether an old rank still ran when a new
    attempt began or when the supervisor ended.
    """
    with tempfile.TemporaryFile("w+") as out:
        if not (director := os.fork()):
            os.setsid()
            _act(supervise, scene, out)
            os._exit(0)
        process = psutil.Process(director)
        try:
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(director, signal.SIGKILL)
            process.wait()  # after this, nobody writes to `out` any more
        out.seek(0)
        rows = [json.loads(line) for line in out]  # each line was written at once, so none is incomplete
    starts = [row for row in rows if isinstance(row, list)]
    end, left = (rows[-1]["end"], rows[-1]["left"]) if len(rows) > len(starts) else (ENDLESS, False)
    return {
        "starts": sorted(row[:2] for row in starts),
        "end": end,
        "left": left or any(together for *_, together in starts),
    }


def _act(supervise: Callable, scene: Scene, out: TextIO) -> None:
    """Call the learner's supervisor, and write a line to `out` for each start and for the end."""
    known: list[tuple[int, int]] = []  # (attempt, pid)
    counts = [0] * len(scene[0])

    def start(rank: int, attempt: int) -> int:
        what = scene[min(counts[rank], len(scene) - 1)][rank]
        counts[rank] += 1
        together = any(_still_runs(pid) for earlier, pid in known if earlier != attempt)
        if pid := os.fork():
            known.append((attempt, pid))
            print(json.dumps([attempt, rank, together]), file=out, flush=True)
            return pid
        _be(what)
        os._exit(0)

    end = "returned"
    try:
        supervise(start, len(scene[0]), RESTARTS)
    except NotImplementedError:
        end = UNSOLVED
    except BaseException as error:
        end = f"raised {type(error).__name__}: {error}"
    left = any(_still_runs(pid) for _, pid in known)
    print(json.dumps({"end": end, "left": left}), file=out, flush=True)


def _be(what: str) -> None:
    if what == "waits":  # the rank behaves as in a collective with a rank that's gone
        time.sleep(60)
    if what != "ends":
        time.sleep(0.05)
    if what == "raises":
        os._exit(1)
    if what in ("dies", "stops"):
        os.kill(os.getpid(), signal.SIGKILL if what == "dies" else signal.SIGSTOP)


def _still_runs(pid: int) -> bool:
    """Whether this process still runs after GONE_S seconds. A zombie, which has ended, doesn't."""
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            return False
        time.sleep(0.01)
    return True


if __name__ == "__main__":
    supervise, scenes = cloudpickle.load(sys.stdin.buffer)
    seen = []
    for scene in scenes:
        seen.append(play(supervise, scene, float(sys.argv[1])))
        if seen[-1]["end"] in (ENDLESS, UNSOLVED):
            break
    print(json.dumps(seen))
