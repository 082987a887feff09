"""The library of the distributed deep learning workshop.

It holds what several notebooks share, and the commands. `machine` and `training` run on every rank; `ranks`,
`notebook` and `cli` run in the learner's notebook or terminal; `exercises` runs on both sides. `examine`, `dryrun`,
`preflight` and `forecast` are commands for users' own scripts and machines, and `classroom` is for teachers. What
one notebook needs stands in notebooks/lessons, which this library never imports.
"""

import atexit
import gc
import importlib

from workshop_lib.machine import shadowing

# This comes before any other import, so that no file of the user's hides a module that the workshop needs.
shadowing.look_there_last()
shadowing.find_lessons()

# PyTorch and TensorFlow create hundreds of thousands of long-lived objects. With its default settings, Python would
# search these objects for garbage again and again while the frameworks load, and once more at exit.
gc.set_threshold(50_000, 10, 10)
atexit.register(gc.freeze)

__version__ = "0.1.0"

# What notebooks import from here, besides `ranks`. It is loaded on first use, because most processes need none of it.
# Type checkers take this constant for true, wherever it comes from. Importing `typing` is for later, as said above.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from workshop_lib.notebook import profile as profile
    from workshop_lib.notebook.pictures import picture as picture
    from workshop_lib.notebook.prediction import predict as predict
    from workshop_lib.training.options import TrainOptions as TrainOptions
else:

    def __getattr__(name: str):
        if name == "profile":
            return importlib.import_module("workshop_lib.notebook.profile")
        if name == "picture":
            return importlib.import_module("workshop_lib.notebook.pictures").picture
        if name == "predict":
            return importlib.import_module("workshop_lib.notebook.prediction").predict
        if name == "TrainOptions":
            return importlib.import_module("workshop_lib.training.options").TrainOptions
        raise AttributeError(f"module 'workshop_lib' has no attribute {name!r}")


def load_ipython_extension(shell) -> None:
    """Make `%%ranks` known in a notebook outside the checkout, which says `%load_ext workshop_lib`."""
    importlib.import_module("workshop_lib.notebook")
