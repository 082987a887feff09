"""Run cells on a rank as a notebook runs its own: with magics, rich output and the last expression's value.

This is the only part of a rank that knows IPython. An engine is an IPython kernel, so its shell can be used here. But
the shell does not run the cell itself, because an error has to leave the rank as data.
"""

import ast
import asyncio
import builtins
import contextlib
import contextvars
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import cast

import comm
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult
from IPython.display import display

from workshop_lib.errors import InputError
from workshop_lib.ranks.faults.rank_errors import remember_source

from .engine import NAMESPACE
from .messages import Displayed
from .sent import SENT

MAX_DISPLAYS = 50
MAX_BYTES = 2_000_000
LAST = "__last__"  # holds the value of a cell's last expression for a moment
WIDGET = "application/vnd.jupyter.widget-view+json"
NO_KEYBOARD = (
    "A rank has no keyboard, so `input()` can't ask you anything here. Ask in a cell without %%ranks and send "
    "the answer with `team.push(name=answer)`. To look around in a running cell, write `breakpoint()`."
)


def run_cell(source: str, name: str) -> None:
    """Run a cell's source in this rank's namespace, and show the value of a last expression."""
    shell = _shell()
    remember_source(source, name)
    with _output_goes_to_the_notebook(shell), _announced(shell, source):
        try:
            _run(shell, source, name)
        finally:
            sys.settrace(None)  # a learner who steps in the debugger leaves it where the cell ends


def complete(code: str, cursor: int) -> dict:
    """Completions at the cursor from this rank's variables, in the format of a kernel's reply."""
    return _shell().kernel.do_complete(code, cursor)


def inspect(code: str, cursor: int, detail_level: int) -> dict:
    """Help on the name at the cursor from this rank's variables, in the format of a kernel's reply."""
    return _shell().kernel.do_inspect(code, cursor, detail_level)


@contextlib.contextmanager
def _announced(shell, source: str) -> Iterator[None]:
    """A context manager: IPython's extensions learn that a cell begins and ends.

    autoreload then reads edited modules again, and matplotlib draws its open figures.
    """
    info = ExecutionInfo(source, store_history=False, silent=False, shell_futures=True, cell_id=None)
    result = ExecutionResult(info)
    shell.events.trigger("pre_execute")
    shell.events.trigger("pre_run_cell", info)
    try:
        yield
    except BaseException as error:
        result.error_in_exec = error
        raise
    finally:
        shell.events.trigger("post_execute")
        shell.events.trigger("post_run_cell", result)


def _run(shell, source: str, name: str) -> None:
    # IPython drops blank lines at the top. They are put back, so that messages name the line that the learner sees.
    body = re.sub(r"\A(?:[ \t]*\n)+", "", source)
    if body.lstrip().startswith("%%rank"):
        raise InputError("`%%ranks` stands in this cell twice: keep the first one.")
    blank = source[: len(source) - len(body)]
    tree = cast(ast.Module, compile(blank + shell.transform_cell(body), name, "exec", ast.PyCF_ONLY_AST))
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        keeps = ast.Assign([ast.Name(LAST, ast.Store())], last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(keeps, last))
    code = compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    coroutine = eval(code, NAMESPACE.__dict__)
    if coroutine is not None:  # the cell has a top-level `await`
        _runner().run(coroutine, context=contextvars.copy_context())
    value = NAMESPACE.__dict__.pop(LAST, None)
    if value is not None and not body.rstrip().endswith(";"):
        _show(shell, value)


def _show(shell, value) -> None:
    NAMESPACE.__dict__["_"] = value
    data, metadata = shell.display_formatter.format(value)
    if set(data) == {"text/plain"}:
        print(data["text/plain"])
    elif data:
        shell.display_pub.publish(data, metadata)


@cache
def _runner() -> asyncio.Runner:
    """The event loop of all cells with a top-level `await`, so that one cell can await a task that another began."""
    return asyncio.Runner()


@cache
def _shell() -> ZMQInteractiveShell:
    """The engine's shell, set up to work in this rank's namespace."""
    shell = ZMQInteractiveShell.instance()
    shell.user_module = NAMESPACE
    shell.user_ns = NAMESPACE.__dict__
    shell.set_completer_frame()
    shell.Completer.use_jedi = False  # real objects answer within milliseconds; jedi would guess
    builtins.__dict__.update(get_ipython=shell.get_ipython, display=display, input=_no_keyboard)
    comm.create_comm = comm.DummyComm  # nobody listens to a rank's widgets
    _keep_progress_bars_as_text()
    return shell


def _no_keyboard(*_, **__):
    raise InputError(NO_KEYBOARD)


def _keep_progress_bars_as_text() -> None:
    """Have tqdm draw its bars as text: `tqdm.auto` sees a kernel and would make widgets."""
    os.environ.setdefault("TQDM_POSITION", "0")  # nested bars would move the cursor up; tqdm reads it on import
    as_text = import_module("tqdm.std")
    sys.modules["tqdm.notebook"] = sys.modules["tqdm.autonotebook"] = as_text


@contextlib.contextmanager
def _output_goes_to_the_notebook(shell) -> Iterator[None]:
    """A context manager: what a cell displays is sent to the notebook, and what IPython says about errors is printed.

    IPython does not raise every error, such as one in an object's __repr__.
    """
    before = shell.display_pub, shell._showtraceback
    shell.display_pub = _Displays()
    shell._showtraceback = lambda kind, error, lines: print("\n".join(lines), file=sys.stderr)
    try:
        yield
    finally:
        shell.display_pub, shell._showtraceback = before


class _Displays(ZMQDisplayPublisher):
    """Sends what a cell displays to the notebook, after what the cell has printed before.

    Nothing that was displayed is updated or cleared later: it stays, and what comes is displayed below.
    """

    def __init__(self):
        super().__init__()
        self.shown = 0

    def publish(self, data, metadata=None, **_) -> None:
        # Nobody would listen to a live widget.
        data = {mime: value for mime, value in data.items() if mime != WIDGET}
        if self.shown > MAX_DISPLAYS:
            return
        if self.shown == MAX_DISPLAYS or sum(map(_size, data.values())) > MAX_BYTES:
            limits = f"{MAX_DISPLAYS} displays of at most {MAX_BYTES / 1e6:.0f} MB"
            data = {"text/plain": f"(not shown: a cell shows {limits} per rank)"}
        elif set(data) == {"text/plain"}:
            print(data["text/plain"])
            return
        self._flush_streams()
        SENT.send(Displayed(data=data, metadata=metadata or {}))
        self.shown += 1

    def clear_output(self, wait: bool = False) -> None:
        pass


def _size(value) -> int:
    return len(value) if isinstance(value, str | bytes) else len(repr(value))
