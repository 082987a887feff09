"""What 12_thousand_ranks uses besides the library and earlier lessons."""
