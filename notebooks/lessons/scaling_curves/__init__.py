"""What 08_scaling_curves uses besides the library and earlier lessons."""
