"""What 06c_fitting_more uses besides the library and earlier lessons."""
