"""What 08b_where_the_time_goes uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    bound_jobs=".bound_jobs",
    figures=".figures",
    flops=".flops",
    step_figures="lessons.ddp.figures",
    timeline="workshop_lib.training.timeline:timeline",
    traced=".tracing:traced",
    tracing=".tracing",
    train="workshop_lib.training.trainer:train",
)
