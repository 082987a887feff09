"""Training on every rank: one loop, and one short backend file a framework."""
