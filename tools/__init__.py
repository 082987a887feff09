"""What only `make` calls: the set-up, Horovod's wheel, the lock, the gallery, the book, the GPU check."""
