"""The companion module of the distributed deep learning workshop.

Two worlds meet here and stay apart: `data`, `models`, `comm` and `training` run on every rank; `ranks`, `scaling`,
`notebook` and `cli` run in the learner's notebook or terminal. `exercises` runs on both sides.
"""

import atexit
import gc

from workshop_lib import shadowing

# Before anything else is imported: a file of the user's must not take the place of what the workshop needs.
shadowing.look_there_last()

# PyTorch and TensorFlow make hundreds of thousands of objects that stay. Left to its defaults, Python looks through
# them for garbage again and again while they load, and once more when it ends.
gc.set_threshold(50_000, 10, 10)
atexit.register(gc.freeze)

__version__ = "0.1.0"
