"""What 11b_pipelines uses besides the library and earlier lessons."""
