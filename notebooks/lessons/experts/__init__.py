"""What 11d_experts uses besides the library and earlier lessons."""
