"""Training on every rank: one loop, and one short backend file a framework."""

KINDS = ("parameters", "gradients", "optimizer")  # of memory: the model's states
SCHEMA = 1  # of the run records: what writes them and what reads them agree on it
