"""Right answers to the exercises of 06 beside the solutions, and wrong ones beside the known mistakes."""

from workshop_lib.lessons.zero_and_fsdp.judge import ADD, ALLREDUCE, GATHER, IF_MORE, REDUCE, SEND


def lines(*of_method: str) -> str:
    """Lines of a method, after the indentation of the first one."""
    return "\n        ".join(of_method)


STEP = "self.optimizer.step()"
GRADIENT_1 = "self.shard.grad = torch.from_numpy(total / self.comm.size)"
GRADIENT_2 = lines(
    "mean = torch.from_numpy(total / self.comm.size)",
    "before = self.shards[p].grad",
    "self.shards[p].grad = mean if before is None else before + mean",
)
DROP = "p.grad = None"
WAIT = "handle.wait()"
LOOP = "for p, part, _, handle in self.pending:"
START, WAIT_FOR, START_MORE = "self.start(layer)", "self.wait(layer)", "self.start(following)"

RIGHT = {
    "Zero1": {
        "divided before": [
            (REDUCE, "total = ring.reduce_scatter(self.comm, gradient.numpy() / self.comm.size)"),
            (GRADIENT_1, "self.shard.grad = torch.from_numpy(total)"),
        ]
    },
    "Zero2": {
        "clears after the step": [(STEP, "self.optimizer.step(); self.optimizer.zero_grad()")],
        "in place": [(ADD, "mean if before is None else before.add_(mean)")],
    },
    "bytes_per_rank": {
        "rounded up": """
            def bytes_per_rank(parameters, ranks, stage):
                share = -(-parameters // ranks)
                state = {"parameters": 4 * parameters, "gradients": 4 * parameters, "optimizer": 8 * parameters}
                if stage > 0:
                    state["optimizer"] = 8 * share
                if stage > 1:
                    state["gradients"] = 4 * share
                if stage > 2:
                    state["parameters"] = 4 * share
                return state
            """
    },
    "by_owner": {
        "in one piece for each": [(").split([len(each) for each in shards])", ").chunk(comm.size)")],
        "from the owner to all": [("comm.scatter(parts, root=owner)", "comm.bcast(parts, root=owner)[comm.rank]")],
    },
    "OverlappedZero2": {
        "all waits first": [(LOOP, f"[handle.wait() for *_, handle in self.pending]\n        {LOOP}")],
        "divided before": [
            ("(part, gradient,", "(part, gradient / self.comm.size,"),
            ("part / self.comm.size", "part"),
        ],
        "PyTorch's older name": [("reduce_scatter_single", "reduce_scatter_tensor")],
    },
    "Lookahead": {
        "waits, then starts the next": [
            (
                f"{IF_MORE}\n            {START_MORE}\n        {WAIT_FOR}",
                f"{WAIT_FOR}\n        {IF_MORE}\n            {START_MORE}",
            )
        ],
        "remembers what is on its way": [
            ("self.wait = wait", "self.wait = wait\n        self.started = set()"),
            (START, f"if layer not in self.started: {START}\n        self.started.discard(layer)"),
            (START_MORE, f"{START_MORE}\n            self.started.add(following)"),
        ],
    },
}
WRONG = {
    "Zero1": {
        "no step": ([(STEP, "pass")], "the step moves nothing"),
        "state lost": ([(STEP, "self.optimizer.step(); self.optimizer.state.clear()")], "the optimizer's state lost"),
        "state for everything": (
            [
                ("self.shard = torch.nn.Parameter(self.weights[mine])", "self.shard = self.weights[mine]"),
                ("make_optimizer([self.shard])", "make_optimizer(self.parameters)"),
                (REDUCE, ALLREDUCE),
                (GRADIENT_1, "flat = gradient / self.comm.size; at = 0"),
                (
                    STEP,
                    lines(
                        "for p in self.parameters:",
                        "    p.grad = flat[at : at + p.numel()].view_as(p); at += p.numel()",
                        "self.optimizer.step()",
                    ),
                ),
            ],
            "Make the optimizer for the shards",
        ),
    },
    "Zero2": {
        "reduced in step": (
            [
                (lines(REDUCE, GRADIENT_2, DROP), "pass"),
                (
                    STEP,
                    lines(
                        "for p, shard in self.shards.items():",
                        "    flat = by_hand.flat_gradient([p], self.comm.size)",
                        "    shard.grad = torch.from_numpy(ring.reduce_scatter(self.comm, flat.numpy()) / 2)",
                        "self.optimizer.step()",
                    ),
                ),
            ],
            "belongs in `reduce`, not in `step`",
        ),
        "a third is kept": ([(DROP, "p.grad = None if p.numel() > 3 else p.grad")], "Keep only the shard"),
    },
    "bytes_per_rank": {"of another optimizer": ([("8 *", "6 *")], "none of the known mistakes")},
    "OverlappedZero2": {
        "sends in finish": (
            [(f"handle = {SEND}", "handle = None"), (LOOP, LOOP.replace("_", "gradient")), (WAIT, f"{SEND}.wait()")],
            "in each call of `reduce`",
        ),
        "blocks": ([(", async_op=True", ""), (WAIT, "pass")], "pass `async_op=True`"),
        # Without emptying the list, the first step's gradients come last.
        "keeps the list": (
            [(LOOP, LOOP.replace("self.pending", "reversed(self.pending)")), ("self.pending.clear()", "pass")],
            "Is `self.pending` empty",
        ),
    },
}
NEVER_ENDS = {
    "Zero1": {
        "allgather on rank 0 alone": ([(GATHER, f"if self.comm.rank == 0: {GATHER}")], "same calls in the same order")
    }
}
