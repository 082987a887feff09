"""What 07e_waiting_less uses besides the library and earlier lessons."""
