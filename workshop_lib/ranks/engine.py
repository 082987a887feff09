"""What happens on a rank inside an engine: running code, publishing progress, telling where it is.

Nothing here knows about notebooks. A call comes in as bytes and its outcome leaves as bytes, so an error
on a rank is data for the notebook to show, never an exception in the transport.
"""

import bdb
import faulthandler
import json
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
import types
from array import array
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, cast

import cloudpickle

from workshop_lib.errors import WorkshopError
from workshop_lib.paths import ROOT, replacing
from workshop_lib.training.world import forget_other_worlds

from .messages import AboutRank, ErrorReport, Frame, Outcome, Published, PublishedPoint, RankNote

if TYPE_CHECKING:
    from workshop_lib.training.record import RunRecord


# Cells run in a module of their own: classes defined in a cell can then be pickled between ranks.
NAMESPACE = types.ModuleType("__ranks__")
sys.modules["__ranks__"] = NAMESPACE
# The notebook's own module of this name is empty: what goes there takes its definition along.
cloudpickle.register_pickle_by_value(NAMESPACE)


# What runs the learner's code.
HIDDEN = (__file__, "workshop_lib/ranks/cells.py", "/IPython/core/", bdb.__file__)
POINTS_SENT = 8
PROGRESS_EVERY_MS = 50


_stop = threading.Event()


def prepare(folder: str) -> None:
    """Once per engine, before the first call: environment, signals, working folder, and a note of who this is.

    SIGUSR1, like any crash, writes the line this rank is on, even inside MPI; SIGUSR2 asks the
    running job to stop at the next step that all ranks agree on.
    """
    from mpi4py import MPI

    from .debugger import RankDebugger  # it needs ipyparallel, which only an engine has loaded

    rank = MPI.COMM_WORLD.rank
    forget_other_worlds()
    sys.breakpointhook = RankDebugger(Path(folder), rank).pause
    stacks = open(os.path.join(folder, f"stack.{rank}.txt"), "a")  # noqa: SIM115 - for the engine's life
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    signal.signal(signal.SIGUSR2, lambda *_: _stop.set())
    # A handler of Python's would run once MPI returns: never, in a collective that others do not join.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(os.environ.get("WORKSHOP_CWD", "."))
    # The learner's own modules are found here too, and last: none of them takes the place of a package.
    sys.path[:] = [entry for entry in sys.path if entry not in ("", os.getcwd())] + [os.getcwd()]
    if sys.modules.get("debugpy", ...) is None:  # it was kept out while the engine started (cluster.ENGINE_MAIN)
        del sys.modules["debugpy"]
    main_thread = threading.main_thread().ident
    note = RankNote(rank=rank, pid=os.getpid(), host=socket.gethostname(), main_thread=main_thread)
    with replacing(os.path.join(folder, f"rank.{rank}.json")) as temporary:
        temporary.write_text(json.dumps(note))
    _keep_moving_messages()


def _keep_moving_messages() -> None:
    """Let MPI work while this rank is idle.

    MPI moves messages inside its calls alone. Over a network, a send may return before all of it is on its
    way; a rank that is then done with its cell would let the others wait for the rest.
    """
    from mpi4py import MPI
    from tornado.ioloop import PeriodicCallback

    def look():
        if not MPI.Is_finalized():
            MPI.COMM_WORLD.Iprobe()

    PeriodicCallback(look, PROGRESS_EVERY_MS).start()


def call(payload: bytes) -> bytes:
    """Run one call; returns the pickled Outcome."""
    _stop.clear()
    try:
        function, args, kwargs = cloudpickle.loads(payload)
        return cloudpickle.dumps(Outcome(value=function(*args, **kwargs)))
    except BaseException as error:
        return cloudpickle.dumps(Outcome(error=describe(error)))
    finally:
        sys.settrace(None)  # whoever steps in the debugger has come to the function's end
        sys.stdout.flush()
        sys.stderr.flush()


def stop_asked() -> bool:
    """Whether somebody has pressed the Stop button of this call: a cell that looks now and then can end cleanly."""
    return _stop.is_set()


def describe(error: BaseException) -> ErrorReport:
    """An exception as plain data: what happened, its text and the frames below what runs the code."""
    frames = [
        Frame(file=frame.filename, line=frame.lineno or 0, name=frame.name, code=frame.line)
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(part in frame.filename for part in HIDDEN)
    ]
    if isinstance(error, bdb.BdbQuit):
        return {"what": "quit at a breakpoint", "text": "The command was q.", "frames": frames}
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, WorkshopError):  # its sentence says it all, without frames of this library
        text = str(error)
        ours = ("<string>", f"{ROOT / 'workshop_lib'}{os.sep}")
        frames = [frame for frame in frames if not frame["file"].startswith(ours)]
    return {"what": f"raised {type(error).__name__}", "text": text, "frames": frames}


def pull(name: str):
    """The value of one of this rank's variables."""
    if name not in NAMESPACE.__dict__:
        raise NameError(f"no variable {name!r} on this rank")
    return NAMESPACE.__dict__[name]


def variables() -> set[str]:
    """The names of this rank's variables."""
    return set(NAMESPACE.__dict__)


def push(values: dict) -> None:
    """Set variables on this rank."""
    NAMESPACE.__dict__.update(values)


def about() -> AboutRank:
    """Where this rank runs and on what it may use."""
    from mpi4py import MPI

    from workshop_lib.training.cores import affinity

    return {
        "rank": MPI.COMM_WORLD.rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", 0)) or None,
        "cores": sorted(affinity()),
        "mpi": MPI.Get_library_version().split(",")[0].strip("\0 \n"),
    }


def in_step(token: int, mail_may_wait: bool = False) -> bool:
    """Whether the ranks still match each other, after some calls failed. Called on every rank.

    A message sent but never received would be taken by the next collective as its own. Collectives with
    known results find such leftovers, for each rank as the root; a mailbox probe finds unreceived sends; PyTorch
    counts its collectives, and the counts must agree. mail_may_wait: sends that are not received yet are no
    mismatch, as after a cell on the sender alone. Blocks if the ranks do not match at all: the caller bounds
    the wait.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for root in range(comm.size):
        if not _matches(comm, token, root):
            return False
    if comm.allreduce(token + comm.rank) != token * comm.size + sum(range(comm.size)):
        return False
    waits = comm.Iprobe() and not mail_may_wait
    begun = _collectives_begun(comm.size)
    return comm.allgather((begun, waits)) == [(begun, False)] * comm.size


def _matches(comm, token: int, root: int) -> bool:
    """Whether what has a root gives what it must; a rank can leave each of these before the others join."""
    here, of_all = comm.rank == root, [token] * comm.size
    if comm.bcast(token if here else None, root) != token:
        return False
    if comm.scatter(of_all if here else None, root) != token:
        return False
    if comm.gather(token, root) != (of_all if here else None):
        return False
    total = array("q", [0])
    comm.Reduce(array("q", [token]), total, root=root)
    return total[0] == (sum(of_all) if here else 0)


def _collectives_begun(world_size: int) -> list[int]:
    """How many collectives this rank has begun in each of PyTorch's process groups of all ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return []
    groups = [group for group in distributed.distributed_c10d._world.pg_map if group.size() == world_size]
    return [group._get_sequence_number_for_group() for group in groups]


class Publisher:
    """Training callbacks that send progress to the notebook, two to four times a second.

    All ranks publish after the same steps, those divisible by a power of two that fits their common pace.
    So the notebook compares like with like, and the ranks pay for publishing at the same moment rather
    than waiting for each in turn. Between these steps, a step costs a comparison and a look at the clock.
    Should the pace drop for long, publishing goes by time until a new power of two fits.
    """

    def __init__(self, hz: float = 4.0):
        from ipyparallel.engine.datapub import publish_data

        self.publish, self.every_s, self.every_steps = publish_data, 1 / hz, 1
        self.epochs: list[dict] = []
        self.points: deque[PublishedPoint] = deque(maxlen=POINTS_SENT)

    def on_start(self, info):
        self.publish({"info": info})
        self._start_counting()

    def on_step(self, event):
        self.event = event
        self.steps += 1
        if event["step"] % self.every_steps == 0 or time.perf_counter() - self.since > 4 * self.every_s:
            self.publish(self._progress())
            seconds_a_step = (time.perf_counter() - self.since) / self.steps
            self.every_steps = 2 ** max(0, int(math.log2(self.every_s / seconds_a_step)))
            self._start_counting()

    def on_epoch(self, row):
        self.epochs.append(row)
        self.publish(self._progress() | {"epochs": list(self.epochs)})
        self._start_counting()

    def should_stop(self):
        return stop_asked()

    def _start_counting(self):
        self.steps, self.since = 0, time.perf_counter()

    def _progress(self) -> Published:
        """This rank's state after its last step; a few points more, should the notebook miss a message."""
        event = self.event
        done = (event["epoch"] - 1) * event["steps_per_epoch"] + event["step"]
        if not self.points or self.points[-1]["done"] < done:
            self.points.append(cast(PublishedPoint, {"done": done, **event, "sums": event["sums"]}))
        return {"points": list(self.points), "trace": event["trace"]}


def train_here(options) -> "RunRecord":
    """Train as this rank, with progress published; returns the run record."""
    from workshop_lib.training.trainer import train

    return train(options, callbacks=[Publisher()])
