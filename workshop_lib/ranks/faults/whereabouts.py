"""A rank's answer to ASK: where its main thread is, at which instruction, and what the call there waits for.

The thread here answers when it gets the interpreter, which a rank gives away while it waits for messages, and every few
milliseconds while it runs Python. If no answer comes, compiled code holds the interpreter. Then faulthandler writes
down the lines, after a signal of its own (engine.prepare). It must not be asked first: it reads the main thread's
frames at any instruction, and it crashes a rank that is just entering a function.
"""

import contextlib
import dis
import json
import os
import signal
import sys
import threading
import traceback
import types
import zlib
from pathlib import Path
from typing import Any

from workshop_lib.ranks.call.messages import Waiting, Whereabouts

ASK = signal.SIGURG  # does nothing to a process that doesn't answer
ANSWER_LIMIT_S = 0.5  # time for a rank to answer, before faulthandler is asked
AT = "at"  # the answers' folder in the ranks' folder
FRAMES_COMPARED = 20
CALLS = "ranks/call/engine.py"
DISTRIBUTED = "torch/distributed/"
BACKWARD = "torch/autograd/graph.py"  # no frame of Python names the collectives inside a backward pass
POLLS = "training/torch_mpi.py"  # a wait in Python, whose instruction changes although nothing moves
SPIN = ("mpi4py", "mpi")  # backends of torch.distributed that wait by asking again and again
ON_CPUS = (*SPIN, "gloo")


def answer(folder: Path, rank: int) -> None:
    """Answer each ASK from now on, in a thread of its own, with two files in the ranks' folder."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    # Python's own handler of a signal runs in the main thread, after MPI has returned. This pipe hears of it at once.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(ASK, lambda *_: None)
    signal.siginterrupt(ASK, False)  # the system calls of libraries go on
    (folder / AT).mkdir(exist_ok=True)
    main_thread = threading.main_thread().ident
    threading.Thread(target=_answer_all, args=(woken, folder, rank, main_thread), daemon=True).start()


def _answer_all(woken: int, folder: Path, rank: int, main_thread: int | None) -> None:
    file = folder / AT / f"{rank}.json"
    temporary = file.with_suffix(".tmp")
    while signals := os.read(woken, 64):
        frame = sys._current_frames().get(main_thread or 0)
        if ASK not in signals or frame is None:
            continue
        with contextlib.suppress(Exception):  # such as OSError, because the folder disappears with the ranks' holder
            with open(folder / f"stack.{rank}.txt", "a") as stack:
                stack.write(_lines(frame))
            temporary.write_text(json.dumps(of(frame)))
            os.replace(temporary, file)


def _lines(frame: types.FrameType) -> str:
    """The lines of the main thread, as faulthandler writes them."""
    text = "Stack (most recent call first):\n"
    for each, line in traceback.walk_stack(frame):
        text += f'  File "{each.f_code.co_filename}", line {line} in {each.f_code.co_name}\n'
    return text


def of(frame: types.FrameType) -> Whereabouts:
    """Where the main thread is, if this is its innermost frame."""
    marks: list = []
    outer: types.FrameType | None = frame
    for _ in range(FRAMES_COMPARED):
        if outer is None or (outer.f_code.co_name == "call" and outer.f_code.co_filename.endswith(CALLS)):
            break
        file = outer.f_code.co_filename
        marks += [file, outer.f_code.co_firstlineno]
        if not file.endswith(POLLS):
            marks += [outer.f_lasti, *map(_mark, list(outer.f_locals.values()))]
        outer = outer.f_back
    return Whereabouts(place=zlib.crc32(repr(marks).encode()), waiting=_waiting(frame))


def _mark(value: Any) -> int:
    """A number that is different after a loop has given a variable its next value."""
    return hash(value) if isinstance(value, int | float) else id(value)


def _waiting(frame: types.FrameType) -> Waiting | None:
    try:
        if DISTRIBUTED in frame.f_code.co_filename or frame.f_code.co_filename.endswith(POLLS):
            return _of_torch(frame)
        if frame.f_code.co_filename.endswith(BACKWARD):
            return _of_backward()
        return _of_mpi(frame)
    except Exception:  # what cannot be read is not said
        return None


def _of_torch(frame: types.FrameType) -> Waiting | None:
    """What a wait inside torch.distributed is for: the function that was called."""
    called = None
    outer: types.FrameType | None = frame
    while outer is not None and (DISTRIBUTED in outer.f_code.co_filename or outer.f_code.co_filename.endswith(POLLS)):
        if outer.f_code.co_filename.endswith("distributed_c10d.py") and not outer.f_code.co_name.startswith("_"):
            called = outer
        outer = outer.f_back
    backend = _backend(called.f_locals.get("group") if called else None)
    if called is None or backend is None:
        return None
    return Waiting(name=called.f_code.co_name, spins=backend in SPIN)


def _of_backward() -> Waiting | None:
    """What a backward pass waits for if it computes nothing: a collective that DDP has begun.

    None if a function of Python may still run in one of PyTorch's threads, such as a hook that sleeps.
    """
    own = {thread.ident for thread in threading.enumerate() if type(thread) is not threading._DummyThread}
    if _backend() is None or not sys._current_frames().keys() <= own:
        return None
    return Waiting(name="backward", spins=False)


def _backend(group: Any = None) -> str | None:
    """The backend of torch.distributed; None if something other than a rank could end its waits, as a GPU could."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized() or sys.modules["torch"].cuda.is_initialized():
        return None
    backend = distributed.get_backend(group)
    return backend if backend in ON_CPUS else None


def _of_mpi(frame: types.FrameType) -> Waiting | None:
    """What a call of mpi4py waits for: the communicator's method."""
    from mpi4py import MPI

    comm, name = _method(frame)
    return Waiting(name=name, spins=True) if isinstance(comm, MPI.Comm) else None


def _method(frame: types.FrameType) -> tuple[Any, str]:
    """The object whose method the frame is calling, and the method's name, from the bytecode: it needs no source."""
    where = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    names = {**frame.f_builtins, **frame.f_globals, **frame.f_locals}
    value: Any = None
    owner: Any = None
    name = ""
    for step in dis.get_instructions(frame.f_code):
        line, _, column, _ = step.positions or (None, None, None, None)
        if step.offset >= frame.f_lasti or line is None or (line, column) != (where[0], where[2]):
            continue
        if step.opname.startswith(("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF")):
            value = names.get(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            owner = value
            name = step.argval
            value = getattr(owner, "__dict__", {}).get(name)
    return owner, name
