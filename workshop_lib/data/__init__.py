"""Data sets in MNIST's IDX format, and who sees which sample. Numpy only."""
