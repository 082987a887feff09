"""What 11_model_parallelism uses besides the library and earlier lessons."""
