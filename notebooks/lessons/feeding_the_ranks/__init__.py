"""What 09_feeding_the_ranks uses besides the core and earlier lessons."""
