"""What 07c_less_communication uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    compression=".compression",
    figures=".figures",
    links=".links",
    records="workshop_lib.notebook.results.records",
    registered=".compression:registered",
    ROOT="workshop_lib.paths:ROOT",
    Rounds=".runs:Rounds",
    TopK=".compression:TopK",
    train=".runs:train",
    runs=".runs",
)
