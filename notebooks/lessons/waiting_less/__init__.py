"""What 07e_waiting_less uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__, check=".judge", figures=".figures", table=".workers:table", Workers=".workers:Workers"
)
