"""What 08b_where_the_time_goes uses besides the core and earlier lessons."""
