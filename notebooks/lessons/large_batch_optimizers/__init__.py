"""What 07d_large_batch_optimizers uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    figures=".figures",
    lr_at="workshop_lib.training.schedules:lr_at",
    own_training="lessons.large_batch.own_training",
    recipes="lessons.large_batch.recipes",
)
