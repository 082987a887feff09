"""What 00_start_here uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    load="workshop_lib.machine.load",
    machine=".machine",
    overview="workshop_lib.classroom.generate:overview",
)
