"""What 02_synchronous_sgd uses besides the core and earlier lessons."""
