"""What 07_large_batch uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    curvature=".curvature",
    figures=".figures",
    own_training=".own_training",
    recipes=".recipes",
    worker_curve="workshop_lib.notebook.figures.accuracy:worker_curve",
)
