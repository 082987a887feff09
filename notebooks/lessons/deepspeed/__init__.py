"""What 06b_deepspeed uses besides the core and earlier lessons."""
