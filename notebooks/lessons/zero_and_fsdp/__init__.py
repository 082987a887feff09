"""What 06_zero_and_fsdp uses besides the core and earlier lessons."""
