"""What 11b_pipelines uses besides the core and earlier lessons."""
