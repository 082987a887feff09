"""What 07d_large_batch_optimizers uses besides the library and earlier lessons."""
