"""Right answers to the exercises of 03 beside the solutions, and wrong ones beside the known mistakes."""

from lessons.horovod_pytorch.judge import SEND, WRAPPED

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
        "nothing": ([(f"return {WRAPPED}", WRAPPED)], "It should `return` a SGD: what `hvd.DistributedOptimizer`"),
        "some weights": ([("(model.state_dict()", "(model[0].state_dict()")], "Send all of rank 0's first"),
        "compressed": ([(WRAPPED, f"{WRAPPED[:-1]}, compression=hvd.Compression.fp16)")], "`op` and `compression`"),
    }
}
NEVER_ENDS = {
    "make_distributed": {
        "broadcast on rank 0 alone": ([(SEND, f"if hvd.rank() == 0: {SEND}")], "all ranks must make the same calls")
    }
}
