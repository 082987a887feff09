"""Whether a check got an older version of a function than the one in the learner's last cell."""

import inspect
import linecache
import re
from typing import Any

from workshop_lib.machine import kernel


def is_outdated(definition: Any) -> bool:
    """Whether a newer cell should have defined this function or class again, but ended with an error before it did.

    The last cell in the history that contains the definition is then not the cell that the definition is from.
    """
    ipython = kernel.shell()
    name = getattr(definition, "__name__", "")
    if ipython is None or not name or ipython.user_ns.get(name) is not definition:
        return False
    parts = vars(definition).values() if inspect.isclass(definition) else [inspect.unwrap(definition)]
    files = [part.__code__.co_filename for part in parts if hasattr(part, "__code__")]
    if not files or not ipython.compile.format_code_name(files[0]):  # it is not from a cell
        return False
    begins = re.compile(rf"^(?:async +)?(?:def|class) +{name}\b", re.MULTILINE)
    cells = [cell for cell in ipython.history_manager.input_hist_parsed if begins.search(cell)]
    return bool(cells) and cells[-1].strip() != "".join(linecache.getlines(files[0])).strip()
