"""What 07f_trainer_and_generators uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(__name__, check=".judge", figures=".figures", Mail=".policy:Mail", Policy=".policy:Policy")
