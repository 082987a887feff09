"""How 13b_runs_that_survive checks `supervise`, a supervisor that starts all ranks again when one is lost.

The supervisor runs in its own process. Its ranks do nothing but end, wait, raise, die or stop, as a scene says.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TextIO

import cloudpickle
import psutil

from workshop_lib.judge import UNKNOWN_HINT, Exercise, Property

LIMIT_S = 4.0  # the time that a scene may take
GONE_S = 0.3  # the time that a killed rank may take to disappear
ENDLESS = "did not end"
PROGRAM = "import sys, cloudpickle; run, *given = cloudpickle.load(sys.stdin.buffer); run(*given)"


class Scene(NamedTuple):
    """What each rank does at its first start, at its second, and so on. The last row also counts for later starts."""

    ranks: list[list[str]]
    restarts: int = 5


SCENES = {
    "all end well": Scene([["ends", "ends", "ends"]]),
    "one raises": Scene([["ends", "ends", "raises"], ["ends", "ends", "ends"]]),
    "one dies": Scene([["waits", "dies", "waits"], ["ends", "ends", "ends"]]),
    "one is stopped": Scene([["waits", "waits", "stops"], ["ends", "ends", "ends"]]),
    "one always raises": Scene([["waits", "raises"]], restarts=2),
}


@dataclass
class PlayedScene:
    """What happened in a scene.

    starts: the (attempt, rank) of each start. together: whether ranks of two attempts ran at the same time. end: how
    the supervisor ended. left: how many ranks were still running then.
    """

    starts: list[list[int]]
    together: bool
    end: str
    left: int


def observe_supervise(comm, function: Callable) -> dict[str, PlayedScene]:
    """Play the scenes up to the first one that doesn't end. Only rank 0 does so, because one process is enough.

    Raises NotImplementedError if the learner's function is still a stub.
    """
    if comm is not None and comm.rank:
        return {}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=cloudpickle.dumps((_play_all, function)),
        stdout=subprocess.PIPE,
        timeout=30 + len(SCENES) * LIMIT_S,
    )
    played = {name: PlayedScene(**values) for name, values in json.loads(ran.stdout.splitlines()[-1]).items()}
    if any(each.end == "unsolved" for each in played.values()):
        raise NotImplementedError
    return played


def _play_all(function: Callable) -> None:
    """Play each scene in a fork of this process, so that whatever a scene leaves behind can be killed."""
    played = {}
    for name, scene in SCENES.items():
        played[name] = _play(function, scene)
        if played[name]["end"] in (ENDLESS, "unsolved"):
            break
    print(json.dumps(played))


def _play(function: Callable, scene: Scene) -> dict:
    with tempfile.TemporaryFile("w+") as out:
        if not (director := os.fork()):
            os.setsid()
            _act(function, scene.ranks, scene.restarts, out)
            os._exit(0)
        process = psutil.Process(director)
        try:
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(director, signal.SIGKILL)
            process.wait()  # after this, nobody writes to `out` any more
        out.seek(0)
        rows = [json.loads(line) for line in out]  # each line was written at once, so none is incomplete
    starts = [row for row in rows if isinstance(row, list)]
    last = rows[-1] if rows and isinstance(rows[-1], dict) else {"end": ENDLESS, "left": 0}
    return {"starts": sorted(row[:2] for row in starts), "together": any(row[2] for row in starts), **last}


def _act(function: Callable, ranks: list[list[str]], restarts: int, out: TextIO) -> None:
    """Call the learner's function, and write a line to `out` for each start and for the end."""
    known: list[tuple[int, int]] = []  # (attempt, pid)
    counts = [0] * len(ranks[0])

    def start(rank: int, attempt: int) -> int:
        what = ranks[min(counts[rank], len(ranks) - 1)][rank]
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
        function(start, len(ranks[0]), restarts)
    except NotImplementedError:
        end = "unsolved"
    except BaseException as error:
        end = f"raised {type(error).__name__}: {error}"
    left = sum(_still_runs(pid) for _, pid in known)
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


IN_TURN_HINT = (
    "it waits for rank 0, but rank 0 waits for the rank that's gone. Wait for whichever ends first, with "
    "`os.waitpid(-1, …)`, and then end the others."
)
ALONE_HINT = (
    "the other ranks are stuck in a collective with a rank that's gone, so a new one has nobody to talk to. End "
    "them too, and start all ranks again."
)
STATUS_HINT = "a rank that ends isn't always done: its status is 0 only if all went well."
NUMBER_HINT = "count the attempts: each has its own place where its ranks meet."
KILL_HINT = "the ranks of the attempt before still run. Kill them, and wait until they're gone."
STOPPED_HINT = "a stopped rank hasn't ended, so `os.waitpid` returns only if you also give it `os.WUNTRACED`."
BOUND_HINT = "a mistake in the script would start it forever: stop after `restarts`."
COUNT_HINT = "the first attempt isn't a restart: with `restarts=2`, each rank starts three times."
ERROR_HINT = "raise an error at the end, or a job that failed looks like one that's done."
LAST_HINT = "kill the ranks of the last attempt, too, before you give up."


def supervise_properties(observations: list[dict[str, PlayedScene]]) -> Iterator[Property]:
    played = observations[0]
    nothing = PlayedScene([], False, "was not tried", 0)
    well, raises, dies, stops, always = (played.get(name, nothing) for name in SCENES)
    yield _holds("it returns when all ranks have ended well", well, again=False)
    yield _holds("if one raises, all are started again, as attempt 1", raises)
    yield _holds("the same if one dies and the others wait for it", dies, if_endless=IN_TURN_HINT)
    yield Property("by then, none of the old ones is left", not dies.together, KILL_HINT)
    yield _holds("a stopped rank counts as lost, too", stops, if_endless=STOPPED_HINT)
    gave_up = always.end.startswith("raised") and always.starts == [[n, rank] for n in range(3) for rank in range(2)]
    hint = {"returned": ERROR_HINT, ENDLESS: BOUND_HINT}.get(always.end, COUNT_HINT)
    hint = f"with `restarts=2` it {always.end} after {len(always.starts)} starts of a rank: {hint}"
    yield Property("after `restarts` it gives up, with an error", gave_up, hint)
    yield Property("and leaves no rank behind", not always.left, LAST_HINT)


def _holds(text: str, seen: PlayedScene, again: bool = True, if_endless: str = "") -> Property:
    """Check that the supervisor returned from a scene of three ranks, after a second attempt if `again`."""
    right = [[attempt, rank] for attempt in range(1 + again) for rank in range(3)]
    first, later = (sum((attempt > 0) == is_later for attempt, _ in seen.starts) for is_later in (False, True))
    hint = if_endless if seen.end == ENDLESS else ""
    if 0 < later < 3:
        hint = ALONE_HINT
    elif first > 3:
        hint = NUMBER_HINT
    elif again and seen.end == "returned" and not later:
        hint = STATUS_HINT
    observed = f"it {seen.end}, after {first} starts as attempt 0 and {later} as later ones:"
    return Property(text, seen.end == "returned" and seen.starts == right, f"{observed} {hint or UNKNOWN_HINT}")


supervise = Exercise(
    "supervise",
    observe_supervise,
    supervise_properties,
    communicates=False,
    timeout_s=5 * LIMIT_S + 5,
    stuck="the scenes took too long: is the machine very busy? Run the check again.",
)
