"""Start a script on several ranks with hooks, watch it from outside, end it at its bounds, and read what it wrote."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from workshop_lib.examine.observations import RankLog, Run, read_records
from workshop_lib.examine.records import StartRecord
from workshop_lib.machine.world import loopback
from workshop_lib.paths import library_alone
from workshop_lib.ranks.call.messages import Frame
from workshop_lib.ranks.faults import whereabouts
from workshop_lib.ranks.faults.rank_errors import is_communicating, is_in_framework, parse_stack
from workshop_lib.ranks.launch import processes

LOOK_EVERY_S = 0.1
START_S = 180.0  # for the ranks to import PyTorch, which takes minutes where many share few cores
QUIET_S = 8.0  # when no rank has written anything for this long, look where the ranks are
LOOK_AGAIN_S = 2.0
IDLE_SHARE = 0.2  # a rank that waits uses less than this share of a core
STACK_LIMIT_S = 1.5
FETCHES = 2  # those of a loading worker's first process; the workers of later epochs append theirs
LAST_LINES = 10_000


def observe(
    ranks: int,
    command: Sequence[str],
    steps: int = 0,
    seconds: float = 120.0,
    python: str = sys.executable,
    show: bool = True,
    first_step: Path | None = None,
    pretend_gpu: bool = False,
) -> Run:
    """Run `command`, a script with its arguments, on ranks of this host; return what they did.

    It ends with the script, after `steps` optimizer steps (0: all), `seconds` after all ranks have started, or when the
    ranks are stuck.
    first_step: a folder in which several ranks keep their first step, and from which one rank repeats it.
    pretend_gpu: run a script for CUDA on the CPU.
    """
    with tempfile.TemporaryDirectory(prefix="workshop-examine-") as folder:
        launcher = [python, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        launcher += ["--nproc-per-node", str(ranks), "-m", "workshop_lib.examine.on_ranks"]
        words = [*launcher, folder, str(os.getpid()), str(steps), str(first_step or "-")]
        words += ["pretended" if pretend_gpu else "-", *command]
        with _started(words, library_alone(Path(folder, "library"))) as process:
            return _Watch(ranks, process, Path(folder), show).follow(seconds)


@contextlib.contextmanager
def _started(words: Sequence[str], library: str) -> Iterator[subprocess.Popen]:
    """Start a command with its output in a pipe. None of its processes is left afterwards.

    library: a folder in which its Python finds this library.
    """
    set_id = processes.new_set_id()
    path = os.pathsep.join(filter(None, [library, os.environ.get("PYTHONPATH")]))
    own = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": loopback()}
    environment = os.environ | own | {processes.VARIABLE: processes.mark(set_id)}
    with subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C ends this process, which then ends that one
    ) as process:
        try:
            yield process
        finally:
            processes.end(set_id)


class _Watch:
    """Follows the ranks of one run."""

    def __init__(self, ranks: int, process: subprocess.Popen, folder: Path, show: bool):
        self.ranks = ranks
        self.process = process
        self.folder = folder
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.sizes: list[int] = []
        self.quiet_since_s = time.monotonic()
        self.reader = threading.Thread(target=self._pass_on, args=(show,), daemon=True)
        self.reader.start()

    def _pass_on(self, show: bool) -> None:
        """Show the script's output as it arrives, on stderr, because stdout is for the report."""
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # the pipe is closed
            for line in self.process.stdout:
                self.last_lines.append(line.rstrip("\n"))
                if show:
                    print(line, end="", file=sys.stderr, flush=True)

    def follow(self, seconds: float) -> Run:
        deadline = time.monotonic() + START_S
        has_started = False
        stacks: dict[int, list[Frame]] = {}
        how = ""
        while not how:
            if not has_started and len(list(self.folder.glob("rank.*.jsonl"))) == self.ranks:
                has_started = True
                deadline = time.monotonic() + seconds
            if self.process.poll() is not None:
                how = "ended" if self.process.returncode == 0 else "failed"
            elif list(self.folder.glob("failed.*")):
                stacks = self._stacks()
                how = "failed"
            elif time.monotonic() > deadline:
                stacks = self._stacks()
                how = "time"
            elif self._is_quiet() and (stacks := self._stuck()):
                how = "stuck"
            else:
                time.sleep(LOOK_EVERY_S)
        if how == "failed":
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5.0)
        self.reader.join(1.0 if self.process.poll() is not None else 0.0)
        logs = [RankLog(read_records(self.folder / f"rank.{rank}.jsonl")) for rank in range(self.ranks)]
        for rank, log in enumerate(logs):
            paths = sorted(self.folder.glob(f"worker.{rank}.*.jsonl"))
            log.workers = [read_records(path, most=FETCHES) for path in paths]
        return Run(logs, how, stacks, list(self.last_lines))

    def _is_quiet(self) -> bool:
        """Whether no rank has written anything for QUIET_S."""
        sizes = [path.stat().st_size for path in sorted(self.folder.glob("rank.*.jsonl"))]
        now = time.monotonic()
        if sizes != self.sizes:
            self.sizes = sizes
            self.quiet_since_s = now
        return now - self.quiet_since_s > QUIET_S

    def _stuck(self) -> dict[int, list[Frame]]:
        """Where the ranks are if they all wait for each other; empty if they don't."""
        before, before_s = self._stacks(), self._cpu_s()
        time.sleep(LOOK_AGAIN_S)
        after, after_s = self._stacks(), self._cpu_s()
        self.quiet_since_s = time.monotonic()  # if they aren't stuck, don't ask again at once
        for rank, frames in after.items():
            if not frames or before.get(rank, [])[:1] != frames[:1]:
                return {}
            idle = after_s.get(rank, 0.0) - before_s.get(rank, 0.0) < IDLE_SHARE * LOOK_AGAIN_S
            if not is_communicating(frames) and not (is_in_framework(frames) and idle):
                return {}
        return after

    def _processes(self) -> dict[int, tuple[psutil.Process, int]]:
        """Each rank's process that still runs, and the number of its main thread."""
        found = {}
        for rank in range(self.ranks):
            start = RankLog(read_records(self.folder / f"rank.{rank}.jsonl", most=1)).first(StartRecord)
            if start is not None:
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(start.pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found[rank] = (process, start.main_thread)
        return found

    def _cpu_s(self) -> dict[int, float]:
        used_s = {}
        for rank, (process, _) in self._processes().items():
            with contextlib.suppress(psutil.Error):
                used_s[rank] = sum(process.cpu_times()[:2])
        return used_s

    def _stacks(self) -> dict[int, list[Frame]]:
        """Where each running rank is, innermost frame first."""
        running = self._processes()
        sizes = {rank: self._stack_file(rank).stat().st_size for rank in running}

        def silent() -> list[int]:
            return [rank for rank, size in sizes.items() if self._stack_file(rank).stat().st_size == size]

        # faulthandler comes second, because it may crash a rank that runs Python (ranks/faults/whereabouts.py).
        for number, limit_s in ((whereabouts.ASK, whereabouts.ANSWER_LIMIT_S), (signal.SIGUSR1, STACK_LIMIT_S)):
            for rank in silent():
                with contextlib.suppress(psutil.Error):
                    running[rank][0].send_signal(number)
            deadline = time.monotonic() + limit_s
            while time.monotonic() < deadline and silent():
                time.sleep(0.05)
        time.sleep(0.05)  # the last lines arrive
        stacks = {}
        for rank, (_, main_thread) in running.items():
            text = self._stack_file(rank).read_bytes()[sizes[rank] :].decode("utf8", "replace")
            frames = parse_stack(text, main_thread)
            stacks[rank] = [frame for frame in frames if "examine/on_ranks" not in frame["file"]]
        return stacks

    def _stack_file(self, rank: int) -> Path:
        return self.folder / f"stack.{rank}.txt"
