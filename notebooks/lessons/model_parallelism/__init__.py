"""What 11_model_parallelism uses besides the core and earlier lessons."""
