"""What 07c_less_communication uses besides the library and earlier lessons."""
