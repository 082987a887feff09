"""What 03_horovod_pytorch uses besides the library and earlier lessons."""
