"""What 07e_waiting_less uses besides the core and earlier lessons."""
