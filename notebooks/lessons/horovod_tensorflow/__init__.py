"""What 04_horovod_tensorflow uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    backends="workshop_lib.training.backends",
    keras3="workshop_lib.training.backends.keras3",
    keras_cnn="workshop_lib.training.models.keras_cnn",
)
