"""What 02_synchronous_sgd uses besides the library and earlier lessons."""
