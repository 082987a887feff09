"""What 01_mpi_basics uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__, check=".judge", allreduces=".allreduces", figures=".figures", programs=".programs"
)
