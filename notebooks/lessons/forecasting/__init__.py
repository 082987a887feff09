"""What 08c_forecasting uses besides the library and earlier lessons."""
