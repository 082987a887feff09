"""What 01_mpi_basics uses besides the library and earlier lessons."""
