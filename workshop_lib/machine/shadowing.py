"""User files that shadow modules: `random.py` beside a notebook, or a different Python's packages in PYTHONPATH.

Python looks for a module in the current folder and in the folders of PYTHONPATH first. A file there can break an import
deep inside some package, and the error does not name the file. This module imports only modules that every Python has
loaded by this time, because any other module could be hidden already.
"""

import os
import sys
from importlib.machinery import PathFinder

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
NOTEBOOKS = os.path.join(ROOT, "notebooks")
LESSONS = os.path.join(NOTEBOOKS, "lessons")
OURS = (LESSONS, os.path.join(ROOT, "tools"))  # these hide nothing that the workshop needs
NAMES_SHOWN = 3
EXTENSIONS = (".py", ".so")
# Users may have modules of these names on purpose: Python imports them to let users add to its start-up.
START_UP = ("sitecustomize", "usercustomize")


class Shadow:
    """A file, or a folder named in a variable, that hides modules of .venv or of Python itself."""

    def __init__(self, folder: str, found: str, remedy: str):
        self.folder = folder
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.found}: {self.remedy}"


def whose(name: str) -> str:
    """A module in words: "Python's own `random`" or "the package `torch`"."""
    return f"Python's own `{name}`" if name in sys.stdlib_module_names else f"the package `{name}`"


def short(path: str) -> str:
    """A path relative to the checkout if it is inside; any other path as it is."""
    return path.removeprefix(ROOT + os.sep)


def shadows() -> list[Shadow]:
    """The files and folders from which this process, or ranks that it starts here, could import a wrong module."""
    suspects = _suspects()
    own = [entry for entry in sys.path if os.path.realpath(entry) not in suspects]
    found = []
    for folder, variable in suspects.items():
        files = {name: path for name, path in _modules_in(folder).items() if PathFinder.find_spec(name, own)}
        if variable and files:
            hidden = [whose(name) for name in sorted(files)[:NAMES_SHOWN]]
            hidden += ["…"] if len(files) > NAMES_SHOWN else []
            what = f"{variable} names {folder}, which hides {', '.join(hidden)}"
            found.append(Shadow(folder, what, f"unset {variable}"))
        elif files:
            for name, path in files.items():
                found.append(Shadow(folder, f"your file {short(path)} hides {whose(name)}", "rename it"))
    return found


def look_there_last() -> None:
    """Move the folders of `shadows()` to the end of this process's search path, so that they hide nothing."""
    for folder in {shadow.folder for shadow in shadows()}:
        there = [entry for entry in sys.path if os.path.realpath(entry) == folder]
        for entry in there:
            sys.path.remove(entry)
        sys.path.extend(there[:1])


def find_lessons() -> None:
    """Let this process import `lessons`, the folder beside the notebooks, if this is a checkout."""
    if NOTEBOOKS not in sys.path and os.path.isdir(LESSONS):
        sys.path.append(NOTEBOOKS)


def _suspects() -> dict[str, str]:
    """The folders where Python looks first, each with the variable that names it, or "" if no variable does."""
    suspects = {}
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if entry and not _is_python_own(os.path.realpath(entry)):
            suspects[os.path.realpath(entry)] = "PYTHONPATH"
    try:
        suspects.setdefault(os.path.realpath(os.getcwd()), "")
    except OSError:
        pass  # the current folder has been removed
    suspects[NOTEBOOKS] = ""  # notebooks and their ranks look there, and PYTHONPATH may name it for lessons
    return suspects


def _is_python_own(folder: str) -> bool:
    """Whether a folder belongs to .venv or to this Python's standard library."""
    library = os.path.dirname(os.path.realpath(os.__file__))
    in_venv = sys.prefix != sys.base_prefix and folder.startswith(os.path.realpath(sys.prefix) + os.sep)
    return in_venv or folder in (library, os.path.join(library, "lib-dynload"))


def _modules_in(folder: str) -> dict[str, str]:
    """The path of each module in this folder, by the module's name; empty if the folder cannot be read."""
    try:
        with os.scandir(folder) as entries:
            paths = sorted(entry.path for entry in entries)
    except OSError:
        return {}
    modules = {}
    for path in paths:
        name, _, _ = os.path.basename(path).partition(".")
        is_module = path.endswith(EXTENSIONS) or os.path.isfile(os.path.join(path, "__init__.py"))
        if is_module and name.isidentifier() and name not in START_UP and path not in OURS:
            modules[name] = path
    return modules
