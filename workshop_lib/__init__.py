"""The companion module of the distributed deep learning workshop.

Its core is small. `data`, `models` and `training` run on every rank; `ranks`, `results`, `notebook` and `cli` run in
the learner's notebook or terminal; `judge` runs on both sides. Around it are rooms that the core never imports: one for
each notebook in `lessons`, the teacher's in `classroom`, and ours in `maintain`.
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
