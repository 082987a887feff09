"""What 06_zero_and_fsdp uses besides the library and earlier lessons."""
