"""What 04_horovod_tensorflow uses besides the library and earlier lessons."""
