"""What 13b_runs_that_survive uses besides the core and earlier lessons."""
