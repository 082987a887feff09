"""What 07b_gradient_noise uses besides the library and earlier lessons."""
