"""Starting and ending ranks: on this host or an allocation, with any MPI."""
