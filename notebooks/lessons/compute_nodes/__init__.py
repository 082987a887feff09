"""What 10_compute_nodes uses besides the library and earlier lessons."""
