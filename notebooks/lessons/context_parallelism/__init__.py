"""What 11c_context_parallelism uses besides the library and earlier lessons."""
