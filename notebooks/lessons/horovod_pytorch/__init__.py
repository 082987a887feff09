"""What 03_horovod_pytorch uses besides the core and earlier lessons."""
