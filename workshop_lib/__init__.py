"""The companion module of the distributed deep learning workshop.

Two worlds meet here and stay apart: `data`, `models`, `comm` and `training` run on every rank;
`ranks`, `scaling` and `notebook` run in the learner's notebook or terminal.
"""

__version__ = "0.1.0"
