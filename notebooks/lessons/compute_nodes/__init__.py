"""What 10_compute_nodes uses besides the core and earlier lessons."""
