"""The face of a package: the few names that others use of it, each imported when it is first used.

So a notebook imports one name for its whole lesson, and a rank that needs one of its modules doesn't load the others.
"""

import importlib
from collections.abc import Callable
from typing import Any


def face(package: str, **places: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package, which give it these names.

    A place is a module, or "module:name" for something in a module. One that begins with a dot is in the package. A
    name must not be that of a file in the package, unless it stands for this file, because Python itself gives a
    package its modules as attributes once they are imported.
    """

    def __getattr__(name: str) -> Any:
        if name not in places:
            raise AttributeError(_unknown(package, name, list(places)))
        module, _, attribute = places[name].partition(":")
        found = importlib.import_module(module, package)
        return getattr(found, attribute) if attribute else found

    def __dir__() -> list[str]:
        return sorted(places)

    return __getattr__, __dir__


def _unknown(package: str, name: str, known: list[str]) -> str:
    import difflib  # only for this message: whatever imports the library imports this module

    near = difflib.get_close_matches(name, known) or sorted(known)
    return f"`{package}` has no `{name}`, but it has {', '.join(f'`{each}`' for each in near)}."
