"""What 11d_experts uses besides the core and earlier lessons."""
