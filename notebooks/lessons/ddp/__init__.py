"""What 05_ddp uses besides the library and earlier lessons."""
