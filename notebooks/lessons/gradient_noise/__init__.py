"""What 07b_gradient_noise uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    catalogue="workshop_lib.machine.catalogue",
    check=".judge",
    critical_batch=".critical_batch",
    figures=".figures",
    FlatNetwork="workshop_lib.training.models.flat:FlatNetwork",
    noise_scale=".noise_scale",
    own_or_library="workshop_lib.exercises.judge:own_or_library",
    records="workshop_lib.notebook.results.records",
    ROOT="workshop_lib.paths:ROOT",
    shard="workshop_lib.training.data.shard",
    steps_to_target=".steps_to_target",
    stop_asked="workshop_lib.ranks.call.engine:stop_asked",
)
