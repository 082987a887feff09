"""Data sets in MNIST's IDX format, and which rank sees which sample. Needs only NumPy."""
