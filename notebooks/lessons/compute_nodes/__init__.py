"""What 10_compute_nodes uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    allocation="workshop_lib.ranks.launch.allocation",
    cores="workshop_lib.machine.cores",
    figures=".figures",
    losing=".losing",
    preflight="workshop_lib.preflight.run",
)
