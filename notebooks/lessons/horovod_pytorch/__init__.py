"""What 03_horovodtorch.py uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(__name__, check=".judge", backends="workshop_lib.training.backends", figures=".figures")
