"""What 06c_fitting_more uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    by_hand="lessons.zero_and_fsdp.by_hand",
    recompute=".recompute",
    MODELS="lessons.zero_and_fsdp.calculator:MODELS",
    activation_bytes="lessons.zero_and_fsdp.zero_memory:activation_bytes",
)
