"""What 11c_context_parallelism uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    BlockAttention=".blocks:BlockAttention",
    contiguous=".blocks:contiguous",
    emulated=".emulated",
    figures=".figures",
    other_ways=".other_ways",
    ring=".ring",
    text=".gpt:text",
    TinyGpt=".gpt:TinyGpt",
    with_full_attention=".compare:with_full_attention",
)
