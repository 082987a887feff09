"""What 09_feeding_the_ranks uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__, check=".judge", figures=".figures", server=".server", storage=".storage", training=".training"
)
