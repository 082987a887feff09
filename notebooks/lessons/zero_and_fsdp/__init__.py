"""What 06_zero_and_fsdp uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    by_hand=".by_hand",
    figures=".figures",
    memory_calculator=".calculator:calculator",
    orthogonal="workshop_lib.training.optimizers:orthogonal",
    ring="workshop_lib.training.collectives.ring",
    Traffic="workshop_lib.training.collectives.traffic:Traffic",
)
