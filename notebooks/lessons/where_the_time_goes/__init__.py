"""What 08b_where_the_time_goes uses besides the library and earlier lessons."""
