"""What 14_hyperparameter_search uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    figures=".figures",
    live=".live",
    own_or_library="workshop_lib.exercises.judge:own_or_library",
    schedulers=".schedulers",
    seeds=".seeds",
)
