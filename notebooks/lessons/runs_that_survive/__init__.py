"""What 13b_runs_that_survive uses besides the library and earlier lessons."""
