"""What 15_your_own_script uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(__name__, check=".judge", accuracies=".report:accuracies", examine=".report:examine")
