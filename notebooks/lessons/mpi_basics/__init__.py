"""What 01_mpi_basics uses besides the core and earlier lessons."""
