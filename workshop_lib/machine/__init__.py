"""What a process finds out about where it runs: ranks, cores, limits, and what harms it. Imports no other room."""
