"""What 02_synchronous_sgd uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    accuracy=".own_loop:accuracy",
    figures=".figures",
    schedules="workshop_lib.training.schedules",
    shard="workshop_lib.training.data.shard",
    show_threes=".own_loop:show_threes",
    WatchedLoop=".own_loop:WatchedLoop",
)
