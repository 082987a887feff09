"""What 07b_gradient_noise uses besides the core and earlier lessons."""
