"""What 08_scaling_curves uses besides the core and earlier lessons."""
