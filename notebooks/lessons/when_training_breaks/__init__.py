"""What 13_when_training_breaks uses besides the core and earlier lessons."""
