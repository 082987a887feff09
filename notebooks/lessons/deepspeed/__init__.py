"""What 06b_deepspeed uses besides the library and earlier lessons."""
