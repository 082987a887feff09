"""What 11d_experts uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    ByteModel=".text:ByteModel",
    check=".judge",
    Corpus=".text:Corpus",
    figures=".figures",
    layer=".layer",
    with_one_process=".compare:with_one_process",
)
