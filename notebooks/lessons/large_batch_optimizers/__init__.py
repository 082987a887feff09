"""What 07d_large_batch_optimizers uses besides the core and earlier lessons."""
