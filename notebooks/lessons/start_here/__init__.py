"""What 00_start_here uses besides the library."""
