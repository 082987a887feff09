"""What 04_horovod_tensorflow uses besides the core and earlier lessons."""
