"""What 13b_runs_that_survive uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    by_hand="lessons.zero_and_fsdp.by_hand",
    checkpoints=".checkpoints",
    fault_injection=".fault_injection",
    fewer=".fewer",
    figures=".figures",
    launchers="lessons.when_training_breaks.launchers",
    resharded=".resharded",
)
