"""What 05_ddp uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__, check=".judge", backward=".backward", figures=".figures", process_group=".process_group"
)
