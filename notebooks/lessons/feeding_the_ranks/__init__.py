"""What 09_feeding_the_ranks uses besides the library and earlier lessons."""
