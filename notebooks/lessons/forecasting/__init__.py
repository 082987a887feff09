"""What 08c_forecasting uses besides the core and earlier lessons."""
