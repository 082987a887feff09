"""What 12_thousand_ranks uses besides the core and earlier lessons."""
