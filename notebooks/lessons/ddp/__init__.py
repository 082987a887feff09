"""What 05_ddp uses besides the core and earlier lessons."""
