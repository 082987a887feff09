"""What 14_hyperparameter_search uses besides the core and earlier lessons."""
