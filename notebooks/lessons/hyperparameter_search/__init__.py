"""What 14_hyperparameter_search uses besides the library and earlier lessons."""
