"""What the core offers of the lessons' and the classroom's, by name: it is imported once somebody asks for it.

The core imports none of these rooms, so whoever reads it needs none of them, and no command waits for another's.
"""

import importlib
from typing import Any

# The commands of `workshop` that a room has, and where its Typer application is.
COMMANDS = {
    "predict": "workshop_lib.lessons.forecasting.commands:app",
    "dryrun": "workshop_lib.lessons.thousand_ranks.commands:app",
    "faults": "workshop_lib.lessons.when_training_breaks.commands:app",
    "assess": "workshop_lib.classroom.commands:app",
    "verify": "workshop_lib.classroom.commands:app",
    "rehearse": "workshop_lib.classroom.commands:app",
    "present": "workshop_lib.classroom.commands:app",
    "export-nbgrader": "workshop_lib.classroom.commands:app",
    "share": "workshop_lib.classroom.room:app",
    "board": "workshop_lib.classroom.room:app",
}
TARGET_CURVE = "workshop_lib.lessons.gradient_noise.figures:target_curve"  # `workshop plot` draws it, too
AFTER_CELLS = "workshop_lib.classroom.sharing:AfterCells"  # what a notebook does for those who share their results


def load(place: str) -> Any:
    """What is at "module:name"."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
