"""What 11_model_parallelism uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    allgather=".tensors:allgather",
    allreduce=".tensors:allreduce",
    both_ways=".tensors:both_ways",
    counted="workshop_lib.training.collectives.counting:counted",
    CountingComm="workshop_lib.training.collectives.counting:CountingComm",
    reduce_scatter=".tensors:reduce_scatter",
    same=".tensors:same",
    shard=".tensors:shard",
    study=".study",
)
