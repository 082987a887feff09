"""What 07_large_batch uses besides the core and earlier lessons."""
