"""`workshop share`: a learner shows the room their results. `workshop board`: a page of what the room shares."""

import os
import stat
import sys
from pathlib import Path

from workshop_lib import learner
from workshop_lib.arguments import Parser
from workshop_lib.errors import InputError, cause

ANIMALS = "otter heron lynx ibex marten raven seal stork swift toad vole wren badger beaver crane dormouse eider finch "
ANIMALS += "gecko hare jackdaw kestrel lapwing magpie newt osprey plover quail robin siskin tern weasel yak zebra"
SHARED = """\
Under the name {name}, everyone who can read {file} will see:
  - predictions, each with the question, your first guess and what was measured: {predictions}
  - names of checks that you've solved: {solved}
No code, no notebook, no path and no answer. But the file belongs to your account, and whoever can list the folder
sees whose it is. From now on, cells that add to this update the file. `workshop share --stop` removes it."""


def share_arguments(parser: Parser) -> None:
    parser.runs(share)
    parser.add_argument(
        "folder", type=Path, nargs="?", metavar="FOLDER", help="The room's folder, which the instructor names."
    )
    parser.add_argument("--name", default="", help="A pseudonym; without one, you get an animal and a number.")
    parser.add_argument("--yes", action="store_true", help="Don't ask before sharing.")
    parser.add_argument("--stop", action="store_true", help="Remove what you shared, and share no more.")


def share(folder: Path | None, name: str, yes: bool, stop: bool) -> None:
    """Show the room your guesses and solved checks, under a pseudonym. It lists them before it shares."""
    import secrets

    from workshop_lib.notebook import sharing

    before = sharing.chosen()
    if stop:
        removed = sharing.stop()
        print(f"removed: {removed.file}" if removed else "You share nothing.")
        return
    if folder is None:
        raise InputError("which folder? Give the one that your instructor names: workshop share FOLDER.")
    _require_folder(folder)
    if not name:
        name = before.name if before else f"{secrets.choice(ANIMALS.split())}-{10 + secrets.randbelow(90)}"
    if not sharing.NAME.fullmatch(name):
        raise InputError(f"--name {name!r}: give {sharing.NAME_RULE}.")
    mine = sharing.Sharing(str(folder.absolute()), name)
    counts = {key: len(value) for key, value in sharing.summary(learner.kept()).items()}
    print(SHARED.format(name=name, file=mine.file, **counts))
    if not yes:
        # A command after a notebook's `!` has a terminal, too, but nobody can answer its questions.
        if not sys.stdin.isatty() or "JPY_PARENT_PID" in os.environ:
            raise InputError(f"nothing is shared yet: add --name {name} --yes.")
        print("Share this? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise InputError("nothing is shared.")
    sharing.start(mine)
    print(f"shared: {mine.file}")


def board_arguments(parser: Parser) -> None:
    parser.runs(board)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="The shared folder, with a file from each learner.")


def board(folder: Path) -> None:
    """Write a page of what the room shares in FOLDER, open it, and rewrite it every five seconds until Ctrl-C."""
    from workshop_lib.classroom import board as boards

    _require_folder(folder)
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        print(f"note: anybody may remove other people's files in {folder}: chmod +t {folder}")
    boards.write(folder, boards.PAGE, boards.REWRITE_S)
    print(f"board: {boards.PAGE}  until Ctrl-C", flush=True)
    boards.open_in_browser(boards.PAGE)
    boards.keep_writing(folder, boards.PAGE)
    print("\nThe board is closed. What was shared is still in the folder.")


def _require_folder(folder: Path) -> None:
    try:
        mode = folder.stat().st_mode
    except OSError as error:
        how = f"mkdir -m 1777 {folder}"
        raise InputError(f"{folder}: {cause(error)}. Whoever teaches makes one for everybody: {how}") from None
    if not stat.S_ISDIR(mode):
        raise InputError(f"{folder} is a file: give a folder.")
