"""What 06c_fitting_more uses besides the core and earlier lessons."""
