"""What 11c_context_parallelism uses besides the core and earlier lessons."""
