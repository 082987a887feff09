"""`workshop predict`: how a training run scales on a machine, from a table of machines and models."""
