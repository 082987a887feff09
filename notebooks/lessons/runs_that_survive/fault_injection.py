"""Inject faults into a command that trains, and measure what they cost. 13b_runs_that_survive does this.

The command may be any program. It runs in a new, empty folder, and prints how far it is, in lines with these words:

    step 17                    17 steps are done (one rank prints this)
    rank 1 is process 4242     where to find a rank; without such lines, its variable RANK identifies its process
    rank 1 has weights 5f0c…   a digest of the weights, at the end

There is one fault in every `every` steps, at a random moment drawn from a seed. Each fault happens once, no matter how
the command recovers. A command that fails after its first step is started again.
"""

import itertools
import math
import os
import re
import selectors
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import psutil

from workshop_lib.errors import InputError
from workshop_lib.ranks.faults.rank_errors import RankError
from workshop_lib.ranks.launch import processes, scripts
from workshop_lib.ranks.launch.agents import Made

KINDS = {"kill": signal.SIGKILL, "crash": signal.SIGSEGV, "raise": signal.SIGINT, "stop": signal.SIGSTOP}
# A command that takes no step for this many seconds is killed and started again, as somebody on duty would do. Its
# first step may take longer, because it has to import its modules.
STALLED_S = 40.0
STALLED_FIRST_S = 120.0
STARTS = 100
STEP = re.compile(r"\bstep (\d+)")
RANK = re.compile(r"\brank (\d+) is process (\d+)")
WEIGHTS = re.compile(r"\brank (\d+) has weights (\w+)")


class Fault(NamedTuple):
    """A fault of this kind on this rank, once `step` steps are done and a share `moment` of the next one has passed."""

    step: int
    rank: int
    kind: str
    moment: float


@dataclass
class TrainingRun:
    """What happened in one training run. Its speed counts from the first step that it reports to the last one."""

    steps: list[tuple[float, int]] = field(default_factory=list)  # the time of each report, and the steps done by then
    faults: list[tuple[float, Fault]] = field(default_factory=list)
    weights: set[str] = field(default_factory=set)  # digests of all ranks' final weights
    ranks: int = 0
    starts: int = 0  # how often the command was started

    @property
    def last(self) -> int:
        return max(n for _, n in self.steps)

    @property
    def steps_per_s(self) -> float:
        """Useful steps per second. A step that was repeated after a fault counts once."""
        (began_s, first), (ended_s, last) = self.steps[0], max(self.steps, key=lambda each: (each[1], -each[0]))
        return (last - first) / (ended_s - began_s) if last > first else 0.0

    @property
    def back_after_s(self) -> list[float]:
        """For each fault, the longest pause [s] without a new step until the next fault."""
        new = []
        furthest = 0
        for at_s, n in self.steps:
            if n > furthest:
                furthest = n
                new.append(at_s)
        ends = [*(hit_s for hit_s, _ in self.faults[1:]), math.inf]
        pauses = []
        for (hit_s, _), end_s in zip(self.faults, ends, strict=False):
            moments = [hit_s, *(at_s for at_s in new if hit_s < at_s < end_s)]
            pauses.append(max((after - before for before, after in itertools.pairwise(moments)), default=0.0))
        return pauses


@dataclass
class FaultScore:
    """Two runs of the same training, one without faults and one with them."""

    free: TrainingRun
    faulty: TrainingRun

    @property
    def share(self) -> float:
        """Useful steps per second with faults, as a fraction of those without."""
        return self.faulty.steps_per_s / self.free.steps_per_s

    @property
    def same_weights(self) -> bool:
        """Whether all ranks of both runs ended with bit-identical weights."""
        return len(self.free.weights | self.faulty.weights) == 1

    def __str__(self) -> str:
        back = ", ".join(f"{seconds:.2f}" for seconds in self.faulty.back_after_s)
        return (
            f"without faults: {self.free.steps_per_s:.1f} steps/s\n"
            f"with {len(self.faulty.faults)} faults: {self.faulty.steps_per_s:.1f} useful steps/s, {self.share:.0%} of "
            f"that, with {'the same' if self.same_weights else 'OTHER'} weights at the end\n"
            f"seconds without a new step after each fault: {back}"
        )


def score(
    command: Sequence,
    every: int = 20,
    seed: int = 1,
    kinds: Sequence[str] = tuple(KINDS),
    timeout_s: float = 300.0,
    show: Callable = print,
) -> FaultScore:
    """Train with `command` without faults, then with one fault in every `every` steps.

    timeout_s: the limit for each of the two runs. show: called with a sentence about each fault and each new start.
    Raises what `plan` and `train` raise.
    """
    free = train(command, (), timeout_s, show)
    return FaultScore(free, train(command, plan(free.last, every, free.ranks, seed, kinds), timeout_s, show))


def plan(steps: int, every: int, ranks: int, seed: int, kinds: Sequence[str] = tuple(KINDS)) -> list[Fault]:
    """Draw one random fault for every `every` steps.

    Raises InputError if `every` is less than 2, if `steps` is less than twice `every`, or if a kind isn't in KINDS.
    """
    if every < 2 or steps < 2 * every:
        raise InputError(f"a fault every {every} steps of {steps}: give at least 2, and a run twice as long.")
    if unknown := [kind for kind in kinds if kind not in KINDS] or not kinds:
        raise InputError(f"faults {unknown or 'none'}: choose among {', '.join(KINDS)}.")
    random = Random(seed)
    windows = range(0, steps - every + 1, every)
    return [
        Fault(max(2, at + random.randrange(every)), random.randrange(ranks), random.choice(kinds), random.random())
        for at in windows
    ]


def train(
    command: Sequence, faults: Sequence[Fault] = (), timeout_s: float = 300.0, show: Callable = print
) -> TrainingRun:
    """Run `command` to its end, inject these faults, and pass a sentence about each of them to `show`.

    Raises RankError if the command takes longer than `timeout_s` seconds, fails before its first step, or doesn't print
    the lines that it should. In each case none of its processes is left, and the same holds if this process is killed.
    """
    run = TrainingRun()
    deadline = time.monotonic() + timeout_s
    left = sorted(faults, reverse=True)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(STARTS):
            run.starts += 1
            set_id = uuid.uuid4().hex[:12]
            # With buffering, a print is one write, so the lines of two ranks don't mix. An empty value counts as unset.
            with scripts.started(_words(command), set_id, folder, PYTHONUNBUFFERED="") as process:
                one = _Start(process, set_id, run, left, show)
                if one.to_its_end(deadline) == 0:
                    break
            if not run.steps:
                raise RankError(f"{one.failure} before its first step. Its last words:\n{one.last_words}")
            show(f"{one.failure}, so it's started again")
    if not run.steps or not run.weights:
        missing = "step 1" if not run.steps else "rank 0 has weights 5f0c"
        raise RankError(f"the command printed no line such as '{missing}':\n{one.last_words}")
    return run


def _words(command: Sequence) -> list[str]:
    """The command with absolute paths, so that it works in any folder, and with Python in front of a script."""
    words = [os.path.abspath(word) if os.path.isfile(word) else word for word in map(str, command)]
    return [sys.executable, *words] if words[0].endswith(".py") else words


class _Start:
    """One start of the command. Reads what the command prints, and injects the faults that are left."""

    def __init__(self, process: Made, set_id: str, run: TrainingRun, left: list[Fault], show: Callable):
        self.process = process
        self.set_id = set_id
        self.run = run
        self.left = left
        self.show = show
        self.pids: dict[int, int] = {}
        self.due_s: float | None = None  # when to inject the next fault; None until its step is done
        self.last_step_s = time.monotonic()
        self.step_s = 0.0
        self.rest = ""
        self.last_words = ""
        self.failure = ""
        self.limit_s = STALLED_FIRST_S

    def to_its_end(self, deadline: float) -> int:
        """Watch the command until it ends. Returns its exit status, or -1 if it stalled and was killed.

        Raises RankError if the command hasn't ended by `deadline`, a value of time.monotonic().
        """
        output = self.process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while True:
                until = min(self.due_s or deadline, deadline, self.last_step_s + self.limit_s)
                # A stopped rank keeps the pipe open when all others have ended.
                ready = selector.select(min(max(0.0, until - time.monotonic()), 0.2))
                text = os.read(output, 65536) if ready else b""
                self._read(text.decode(errors="replace"))
                now_s = time.monotonic()
                if now_s > deadline:
                    raise RankError(f"not finished in time, so it was ended. It was at:\n{self.last_words}")
                if self.due_s and now_s >= self.due_s:
                    self._inject()
                stalled = now_s - self.last_step_s > self.limit_s
                if (ready and not text) or (not ready and self.process.poll() is not None) or stalled:
                    processes.end(self.set_id)
                    status = self.process.wait()
                    self.failure = f"the command ended with {status}"
                    if stalled:
                        self.failure = f"the command took no step for {self.limit_s:g} s"
                    return -1 if stalled else status

    def _read(self, text: str) -> None:
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            self.last_words = f"{self.last_words}{line}\n"[-2000:]
            if found := RANK.search(line):
                self.pids[int(found[1])] = int(found[2])
            elif found := WEIGHTS.search(line):
                self.run.weights.add(found[2])
                self.run.ranks = max(self.run.ranks, int(found[1]) + 1)
            elif found := STEP.search(line):
                self._stepped(int(found[1]))

    def _stepped(self, step: int) -> None:
        now_s = time.monotonic()
        self.step_s = now_s - self.last_step_s
        self.last_step_s = now_s
        self.limit_s = STALLED_S
        self.run.steps.append((now_s, step))
        if self.left and step >= self.left[-1].step and self.due_s is None:
            self.due_s = now_s + self.left[-1].moment * min(self.step_s, 1.0)

    def _inject(self) -> None:
        fault = self.left[-1]
        self.due_s = None
        if (process := self._process_of(fault.rank)) is None:
            return  # the rank is being replaced right now, and the next step tries again
        process.send_signal(KINDS[fault.kind])
        self.run.faults.append((time.monotonic(), fault._replace(step=self.run.last)))
        self.show(f"step {fault.step}: {fault.kind} rank {fault.rank} (process {process.pid})")
        self.left.pop()

    def _process_of(self, rank: int) -> psutil.Process | None:
        """The process of a rank, or None. It certainly belongs to this start of the command."""
        if self.pids:
            return processes.with_mark(self.pids[rank], processes.mark(self.set_id)) if rank in self.pids else None
        ours = [process for process, _ in processes.marked(self.set_id)]
        return next((process for process in ours if scripts.rank_of(process) == str(rank)), None)
