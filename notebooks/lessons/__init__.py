"""One room per notebook: its checks, its figures, and the machinery that no other lesson needed before it."""
