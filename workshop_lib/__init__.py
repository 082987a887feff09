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

from workshop_lib.faces import face  # noqa: E402

# PyTorch and TensorFlow create hundreds of thousands of long-lived objects. With its default settings, Python would
# search these objects for garbage again and again while the frameworks load, and once more at exit.
gc.set_threshold(50_000, 10, 10)
atexit.register(gc.freeze)

__version__ = "0.1.0"

# What many notebooks use, besides `ranks`. What only one notebook uses is in the face of its lesson.
__getattr__, __dir__ = face(
    __name__,
    TrainOptions=".training.options:TrainOptions",
    emulation=".machine.emulation",
    mnist=".training.data.mnist",
    paths=".paths",
    picture=".notebook.pictures:picture",
    predict=".notebook.prediction:predict",
    profile=".notebook.profile",
    ranks=".ranks",
    scripts=".ranks.launch.scripts",
    sweep=".notebook.live_sweep:sweep",
    take_home=".notebook.take_home",
    torch_cnn=".training.models.torch_cnn",
    vit=".training.models.vit",
)


def load_ipython_extension(shell) -> None:
    """Make `%%ranks` known in a notebook outside the checkout, which says `%load_ext workshop_lib`."""
    importlib.import_module("workshop_lib.notebook")
