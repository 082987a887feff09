"""What 13_when_training_breaks uses besides the library and earlier lessons."""
