"""Right answers to the exercise of 03 beside the solution, and wrong ones beside the known mistakes."""

from workshop_lib.lessons.horovod_pytorch.judge import SEND, WRAPPED

RIGHT = {
    "make_distributed": {
        "in another order": """
            def make_distributed(model, optimizer, hvd):
                wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())
                hvd.broadcast_parameters(model.state_dict(), 0)
                return wrapped
            """,
        "without names": [(WRAPPED, "hvd.DistributedOptimizer(optimizer)")],
        "with the optimizer's state": [
            (f"return {WRAPPED}", f"wrapped = {WRAPPED}\n    hvd.broadcast_optimizer_state(wrapped, 0); return wrapped")
        ],
    }
}
WRONG = {
    "make_distributed": {
        "some weights": ([("(model.state_dict()", "(model[0].state_dict()")], "Send all of rank 0's first"),
        "compressed": (
            [(WRAPPED, f"{WRAPPED[:-1]}, compression=hvd.Compression.fp16)")],
            "leave `op` and `compression` at their defaults",
        ),
    }
}
NEVER_ENDS = {
    "make_distributed": {
        "broadcast on rank 0 alone": ([(SEND, f"if hvd.rank() == 0: {SEND}")], "all ranks must make the same calls")
    }
}
