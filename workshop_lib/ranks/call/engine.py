"""The part of an engine that runs on a rank: it runs code and reports which line the rank is on.

Nothing here knows about notebooks. A call arrives as bytes and its outcome leaves as bytes, so an error on a rank is
data for the notebook to show, never an exception in the transport.
"""

import asyncio
import bdb
import contextlib
import faulthandler
import importlib.util
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import traceback
import types
from array import array
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cloudpickle

from workshop_lib.errors import WorkshopError
from workshop_lib.machine.emulation import session as emulation
from workshop_lib.machine.world import forget_other_worlds
from workshop_lib.paths import ROOT, replacing
from workshop_lib.ranks.faults import whereabouts
from workshop_lib.ranks.launch.scratch import SEGMENTS

from .messages import NO_FOLDERS, AboutRank, ErrorReport, Frame, Outcome, Published, RankNote, SearchPath
from .printed import limited
from .sent import SENT, print_to_the_rank

# Cells run in a module of their own, so that ranks can exchange pickled objects of classes that a cell defines.
NAMESPACE = types.ModuleType("__ranks__")
sys.modules["__ranks__"] = NAMESPACE
# The notebook's own module of this name is empty, so an object that is sent there takes its class's definition along.
cloudpickle.register_pickle_by_value(NAMESPACE)


# Files that run the learner's code. Error messages leave out their frames.
HIDDEN = (
    __file__,
    "workshop_lib/ranks/call/cells.py",
    "workshop_lib/ranks/call/printed.py",
    "/IPython/core/",
    bdb.__file__,
)
LARGE_BYTES = 50_000_000  # a message of this size takes a second or more
PROGRESS_EVERY_MS = 100  # how often an idle rank lets MPI move messages, which costs 0.4 ms of a core


_stop = threading.Event()


def prepare(folder: str) -> None:
    """Prepare this rank for its first call: environment, signals, working folder, and a note of who it is.

    Each engine calls this once. From now on the rank answers when it is asked where it is (whereabouts.py). SIGUSR1,
    like any crash, makes it write down the line it is on, even in compiled code. SIGUSR2 asks the running call to stop
    (stop_asked).
    """
    from mpi4py import MPI

    from .debugger import RankDebugger  # needs ipyparallel, which only an engine has loaded

    rank = MPI.COMM_WORLD.rank
    forget_other_worlds()
    sys.breakpointhook = RankDebugger(Path(folder), rank).pause
    stacks = open(os.path.join(folder, f"stack.{rank}.txt"), "a")  # noqa: SIM115 - stays open while the engine lives
    faulthandler.enable(stacks)
    whereabouts.answer(Path(folder), rank)
    os.register_at_fork(after_in_child=print_to_the_rank)
    # Not of all threads: their frames change while faulthandler reads them, and it has crashed ranks that way.
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
    signal.signal(signal.SIGUSR2, lambda *_: _stop.set())
    # A Python handler would run only after MPI returns: never, if the rank is in a collective that others don't join.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(os.environ.get("WORKSHOP_CWD", "."))
    # Ranks can import the learner's own modules too. Their folder comes last, so that none of them hides a package.
    sys.path[:] = [entry for entry in sys.path if entry not in ("", os.getcwd())] + [os.getcwd()]
    if sys.modules.get("debugpy", ...) is None:  # blocked while the engine started (cluster.ENGINE_MAIN)
        del sys.modules["debugpy"]
    # The agent of this host may have imported these, with one thread and one state of random numbers for all its ranks.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    tempfile.tempdir = None  # so that TMPDIR is read anew
    if emulation.start_if_asked() and importlib.util.find_spec("torch"):
        importlib.import_module("workshop_lib.training.torch_mpi").carry_every_group()
    main_thread = threading.main_thread().ident or 0
    note = RankNote(
        rank=rank,
        pid=os.getpid(),
        host=socket.gethostname(),
        main_thread=main_thread,
        segments=os.environ.get(SEGMENTS),
    )
    with replacing(os.path.join(folder, "rank", f"{rank}.json")) as temporary:
        temporary.write_text(json.dumps(note))
    keep_moving_messages()


def keep_moving_messages() -> None:
    """Let MPI make progress while this rank is idle.

    MPI moves messages only inside its own calls. Over a network, a send may return before the whole message is on its
    way. If the rank has then finished its cell, the other ranks would wait for the rest of the message.
    """
    from mpi4py import MPI
    from tornado.ioloop import PeriodicCallback

    def look():
        if not MPI.Is_finalized():
            MPI.COMM_WORLD.Iprobe()

    PeriodicCallback(look, PROGRESS_EVERY_MS).start()


def call(payload: bytes, shown: bool = True, path: SearchPath = NO_FOLDERS) -> bytes:
    """Run one call, a pickled (function, args, kwargs), and return its pickled Outcome.

    shown: whether anybody sees what it prints. path: the folders in which the notebook looks for the user's modules.
    """
    _stop.clear()
    SENT.begin()
    rank_pid = os.getpid()
    status = 0
    try:
        _look_there_too(path)
        function, args, kwargs = cloudpickle.loads(payload)
        with _outside_the_event_loop(), limited(shown):
            value = function(*args, **kwargs)
        return _pickled(value)
    except BaseException as error:
        status = 0 if isinstance(error, SystemExit) and not error.code else 1
        return cloudpickle.dumps(Outcome(error=describe(error)))
    finally:
        sys.settrace(None)  # a learner who steps in the debugger leaves it where the function ends
        sys.stdout.flush()
        sys.stderr.flush()
        if os.getpid() != rank_pid:  # a fork that the function made ends with it, and leaves answers to the rank
            os._exit(status)


@cache  # once for each path, because most calls bring the same
def _look_there_too(path: SearchPath) -> None:
    """Add folders in which the notebook looks for modules to this rank's own search path, if they are missing."""
    known = set(sys.path)
    sys.path[:0] = [folder for folder in path.first if folder not in known]
    sys.path += [folder for folder in path.last if folder not in known]


@contextlib.contextmanager
def _outside_the_event_loop() -> Iterator[None]:
    """A context manager: code inside it may run event loops, although the engine's own loop called it."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        if loop is not None:
            asyncio.set_event_loop(loop)  # asyncio.run leaves none


def _pickled(value) -> bytes:
    """A call's result as a pickled Outcome; an error if the result means nothing outside this rank."""
    from mpi4py import MPI

    if isinstance(value, MPI.Comm):  # it would arrive as the notebook's own communicator, of one process
        why = "a communicator exists only on the ranks. Use it there, in %%ranks or `team.run`."
    else:
        try:
            outcome = cloudpickle.dumps(Outcome(value=value))
            if len(outcome) >= LARGE_BYTES:
                from ipyparallel.engine.datapub import publish_data

                publish_data(Published(result_bytes=len(outcome)))
            return outcome
        except Exception as error:
            why = f"{error}. Return numbers, texts, arrays, or lists and dictionaries of them."
    what = "gave a result that cannot be sent to the notebook"
    text = f"{type(value).__name__}: {why}"
    return cloudpickle.dumps(Outcome(error=ErrorReport(what=what, text=text, frames=[])))


def stop_asked() -> bool:
    """Whether somebody has pressed this call's Stop button. A cell that calls this now and then can end cleanly."""
    return _stop.is_set()


def describe(error: BaseException) -> ErrorReport:
    """An exception as plain data: what happened, its text, and its frames without those that run the learner's code."""
    frames = [
        Frame(file=frame.filename, line=frame.lineno or 0, name=frame.name, code=frame.line)
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(part in frame.filename for part in HIDDEN)
    ]
    if isinstance(error, bdb.BdbQuit):
        return {"what": "quit at a breakpoint", "text": "The command was q.", "frames": frames}
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, WorkshopError):  # its text says everything, so this library's frames are left out
        text = str(error)
        ours = ("<string>", f"{ROOT / 'workshop_lib'}{os.sep}", f"{ROOT / 'notebooks' / 'lessons'}{os.sep}")
        frames = [frame for frame in frames if not frame["file"].startswith(ours)]
    return {"what": f"raised {type(error).__name__}", "text": text, "frames": frames}


def pull(name: str):
    """The value of one of this rank's variables. Raises NameError if there is no variable of this name."""
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
    """Where this rank runs, and which cores and how many threads it may use."""
    from mpi4py import MPI

    from workshop_lib.machine.cores import affinity

    return {
        "rank": MPI.COMM_WORLD.rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", 0)) or None,
        "cores": sorted(affinity()),
        "mpi": MPI.Get_library_version().split(",")[0].strip("\0 \n"),
    }


def in_step(token: int, allow_unreceived: bool = False) -> bool:
    """Whether the ranks still match each other after some of them failed in a call. Must be called on every rank.

    The next collective would mistake a message that was sent but never received for its own. Three checks find such
    leftovers: collectives with known results, with each rank as the root; a probe of the mailbox for messages that
    nobody has received; and PyTorch's counts of its collectives, which must agree. allow_unreceived: whether messages
    may still wait in the mailbox, as after a cell on the sender alone. Blocks if the ranks do not match at all, so the
    caller has to limit the wait.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for root in range(comm.size):
        if not _matches(comm, token, root):
            return False
    if comm.allreduce(token + comm.rank) != token * comm.size + sum(range(comm.size)):
        return False
    waits = comm.Iprobe() and not allow_unreceived
    begun = _collectives_begun(comm.size)
    return comm.allgather((begun, waits)) == [(begun, False)] * comm.size


def _matches(comm, token: int, root: int) -> bool:
    """Whether the collectives with a root give the right results; a rank may leave each one before the others join."""
    here = comm.rank == root
    of_all = [token] * comm.size
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
    """How many collectives this rank has begun in each of PyTorch's process groups that contain all ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return []
    groups = [group for group in distributed.distributed_c10d._world.pg_map if group.size() == world_size]
    return [group._get_sequence_number_for_group() for group in groups]
