"""Parts of rooms that the core offers by name, and imports only when somebody uses them.

The core itself imports none of these rooms. So you can read it without them, and no command has to wait for the imports
of another command.
"""

import importlib
from typing import Any

# The commands of `workshop` that belong to a room, and the function that declares each command's arguments.
COMMANDS = {
    "predict": "workshop_lib.forecast.commands:predict_arguments",
    "dryrun": "workshop_lib.dryrun.commands:dryrun_arguments",
    "preflight": "workshop_lib.preflight.commands:preflight_arguments",
    "examine": "workshop_lib.examine.commands:examine_arguments",
    "rehearse": "workshop_lib.classroom.commands:rehearse_arguments",
    "present": "workshop_lib.classroom.commands:present_arguments",
    "export-nbgrader": "workshop_lib.classroom.commands:export_nbgrader_arguments",
    "share": "workshop_lib.classroom.room:share_arguments",
    "board": "workshop_lib.classroom.room:board_arguments",
}
TARGET_CURVE = "lessons.gradient_noise.figures:target_curve"  # `workshop plot` draws this figure too
TRAIN_ON = "workshop_lib.notebook.train_on:train_on"  # what `team.train` does
CARRY_EVERY_GROUP = "workshop_lib.training.torch_mpi:carry_every_group"  # ranks with emulated time and PyTorch do this
AFTER_CELLS = "workshop_lib.classroom.sharing:AfterCells"  # for learners who share their results


def load(place: str) -> Any:
    """Import the module of "module:name" and return its attribute of this name."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
