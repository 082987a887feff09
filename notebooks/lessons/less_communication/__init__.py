"""What 07c_less_communication uses besides the core and earlier lessons."""
