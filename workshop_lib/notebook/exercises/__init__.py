"""The checks of the notebooks' exercises, one file a notebook."""
