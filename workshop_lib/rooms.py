"""Parts of the lessons, of `examine` and of the classroom that the core offers by name, and imports only when somebody uses them.

The core itself imports none of these rooms. So you can read it without them, and no command has to wait for the imports
of another command.
"""

import importlib
from typing import Any

# The commands of `workshop` that belong to a room, and where the room's Typer application is.
COMMANDS = {
    "predict": "workshop_lib.lessons.forecasting.commands:app",
    "dryrun": "workshop_lib.lessons.thousand_ranks.commands:app",
    "faults": "workshop_lib.lessons.when_training_breaks.commands:app",
    "examine": "workshop_lib.examine.commands:app",
    "assess": "workshop_lib.classroom.commands:app",
    "verify": "workshop_lib.classroom.commands:app",
    "rehearse": "workshop_lib.classroom.commands:app",
    "present": "workshop_lib.classroom.commands:app",
    "export-nbgrader": "workshop_lib.classroom.commands:app",
    "share": "workshop_lib.classroom.room:app",
    "board": "workshop_lib.classroom.room:app",
}
TARGET_CURVE = "workshop_lib.lessons.gradient_noise.figures:target_curve"  # `workshop plot` draws this figure too
AFTER_CELLS = "workshop_lib.classroom.sharing:AfterCells"  # for learners who share their results


def load(place: str) -> Any:
    """Import the module of "module:name" and return its attribute of this name."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
