"""What 07_large_batch uses besides the library and earlier lessons."""
