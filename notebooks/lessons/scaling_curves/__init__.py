"""What 08_scaling_curves uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    accuracy_curve="workshop_lib.notebook.figures.accuracy:accuracy_curve",
    scaling_curve="workshop_lib.notebook.figures.scaling:scaling_curve",
    serial_part="workshop_lib.notebook.figures.scaling:serial_part",
    tables=".tables",
    weak_scaling_curve="workshop_lib.notebook.figures.scaling:weak_scaling_curve",
)
