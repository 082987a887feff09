"""Run a script as torchrun would, with hooks.

    python -m workshop_lib.examine.on_ranks FOLDER WATCHER STEPS FIRST_STEP GPU SCRIPT ...

WATCHER is the id of the process that reads what is written to FOLDER: this one ends when that one is gone. FIRST_STEP
is a folder for what the first step needs to be repeated on one process, or "-". GPU is "pretended" to run a script for
CUDA on the CPU, or "-".
"""

import contextlib
import os
import runpy
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from workshop_lib.examine.on_ranks import hooks
from workshop_lib.examine.on_ranks.first_step import FirstStep
from workshop_lib.examine.on_ranks.recorder import RankRecorder

WATCHER_S = 1.0  # between two looks at the watcher
OTHERS_S = 0.5  # after an error, how long this rank stays, so that the others can be asked where they are


def main() -> None:
    folder, watcher, steps, first_step, gpu, script, *arguments = sys.argv[1:]
    threading.Thread(target=_end_with, args=(int(watcher),), daemon=True).start()
    recorder = RankRecorder(Path(folder), int(os.environ["RANK"]), int(steps), os.path.dirname(os.path.abspath(script)))
    if first_step != "-":
        recorder.first_step = FirstStep(Path(first_step), recorder.rank, replays=os.environ["WORLD_SIZE"] == "1")
    hooks.install(recorder)
    try:
        with _pretended_gpu(recorder) if gpu == "pretended" else contextlib.nullcontext():
            _run(script, arguments, recorder.folder_of_script)
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            recorder.attempt("the end", recorder.failed, error)
            time.sleep(OTHERS_S)
        else:
            recorder.attempt("the end", recorder.end)
        raise
    recorder.attempt("the end", recorder.end)


def _run(script: str, arguments: list[str], folder: str) -> None:
    if script == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [script, *arguments]
        sys.path[0] = folder
        runpy.run_path(os.path.abspath(script), run_name="__main__")  # as Python names the main file


@contextlib.contextmanager
def _pretended_gpu(recorder: RankRecorder) -> Iterator[None]:
    from workshop_lib.machine.pretended_gpu import CHOSEN, pretended_gpu

    recorder.pretended_gpu = CHOSEN
    with pretended_gpu():
        yield


def _end_with(watcher: int) -> None:
    """End this rank when the watcher is gone, even if it was killed; torchrun then ends as well."""
    while True:
        time.sleep(WATCHER_S)
        try:
            os.kill(watcher, 0)
        except ProcessLookupError:
            os._exit(1)


if __name__ == "__main__":
    main()
