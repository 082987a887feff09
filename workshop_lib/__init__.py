"""The companion module of the distributed deep learning workshop.

Two worlds meet here and stay apart: `data`, `models`, `comm` and `training` run on every rank; `ranks`, `scaling`,
`notebook` and `cli` run in the learner's notebook or terminal. `exercises` runs on both sides.
"""

__version__ = "0.1.0"
