"""What 02_synchronous_sgd uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    accuracy=".long_run:accuracy",
    figures=".figures",
    recipe=".long_run:recipe",
    shard="workshop_lib.training.data.shard",
)
