"""Right answers to the exercises of 06 beside the solutions, and wrong ones beside the known mistakes."""

from lessons.zero_and_fsdp.judge import ADD, GATHER, IF_MORE, REDUCE, SEND

STEP = "self.optimizer.step()"
GRADIENT_1 = "self.shard.grad = torch.from_numpy(total / self.comm.size)"
DROP = "p.grad = None"
WAIT = "handle.wait()"
LOOP = "for p, part, _, handle in self.pending:"
START, WAIT_FOR, START_MORE = "self.start(layer)", "self.wait(layer)", "self.start(following)"

RIGHT = {
    "Zero1": {
        "divided before": [
            (REDUCE, "total = lesson.ring.reduce_scatter(self.comm, gradient.numpy() / self.comm.size)"),
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
        "no step": ([(STEP, "pass")], "the mean gradient in its `.grad`"),
        "state lost": ([(STEP, f"{STEP}; self.optimizer.state.clear()")], "the optimizer's state lost"),
        "state for everything": (
            [(STEP, f"{STEP}; self.optimizer.state[0] = {{0: torch.zeros_like(self.weights)}}")],
            "Make the optimizer for the shards",
        ),
        "gathers gradients, too": (
            [(REDUCE, f"{REDUCE}; lesson.ring.allgather(self.comm, gradient.numpy())")],
            "One reduce-scatter per backward pass",
        ),
    },
    "Zero2": {
        "reduced in step": (
            [
                ("p.register_post_accumulate_grad_hook(self.reduce)", "pass"),
                (STEP, f"[self.reduce(p) for p in self.shards]; {STEP}"),
            ],
            "belongs in `reduce`, not in `step`",
        ),
        "a third is kept": ([(DROP, "p.grad = None if p.numel() > 3 else p.grad")], "Keep only the shard"),
    },
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
