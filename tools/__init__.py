"""Tools that maintain the workshop: the set-up, Horovod's wheel, and the generation of notebooks and book."""
