"""Right answers to the exercises of 06 beside the solutions, and wrong ones beside the known mistakes."""

from lessons.zero_and_fsdp.judge import FILL, FREE, GATHER, IF_MORE, REDUCE, SEND_SHARDS

STEP = "self.optimizer.step()"
GRADIENT_1 = "self.shard.grad = torch.from_numpy(total / self.comm.size)"
EMPTY = "whole = torch.empty_like(self.weights[layer])"
IMPORT = "import torch.distributed as dist"
MINE = "lesson.ring.part(len(gradient), self.comm.rank, self.comm.size)"
PLACE_SHARD = "whole[mine] = self.shards[layer].detach()"
RESIZE = "flat.untyped_storage().resize_"
START, WAIT_FOR, START_MORE = "self.start(layer)", "self.wait(layer)", "self.start(following)"

RIGHT = {
    "Zero1": {
        "divided before": [
            (REDUCE, "total = lesson.ring.reduce_scatter(self.comm, gradient.numpy() / self.comm.size)"),
            (GRADIENT_1, "self.shard.grad = torch.from_numpy(total)"),
        ],
        "PyTorch's collectives": [
            (REDUCE, f"{IMPORT}; total = torch.empty_like(self.shard); dist.reduce_scatter_single(total, gradient)"),
            (GRADIENT_1, "self.shard.grad = total / self.comm.size"),
            (GATHER, "dist.all_gather_single(self.weights, self.shard.detach())"),
        ],
    },
    "Zero3": {
        "memory by hand": [
            (FILL, f"flat = self.weights[layer]\n        {RESIZE}(flat.nbytes)\n        flat.copy_(whole)"),
            (FREE, "self.weights[layer].untyped_storage().resize_(0)"),
        ],
        "in NumPy": [
            (EMPTY, "whole = np.empty(len(self.weights[layer]), np.float32)"),
            (SEND_SHARDS, "lesson.ring.allgather(self.comm, whole)"),
        ],
        "MPI's Allgather": [(SEND_SHARDS, "self.comm.Allgather(self.shards[layer].detach().numpy(), whole.numpy())")],
        "Allgather in place": [(SEND_SHARDS, "from mpi4py import MPI; self.comm.Allgather(MPI.IN_PLACE, whole)")],
        "PyTorch's allgather": [(SEND_SHARDS, f"{IMPORT}; dist.all_gather_single(whole, self.shards[layer].detach())")],
        "a list of parts": [
            (
                EMPTY,
                f"{EMPTY}; {IMPORT}; parts = [torch.empty_like(self.shards[layer]) for _ in range(self.comm.size)]",
            ),
            (PLACE_SHARD, "dist.all_gather(parts, self.shards[layer].detach())"),
            (SEND_SHARDS, "whole = torch.cat(parts)"),
        ],
        "into the layer's own memory": """
            class Zero3(lesson.by_hand.GatheredByLayer):
                def watch(self, layer):
                    layer.register_forward_pre_hook(lambda *_: self.gather(layer))
                    layer.register_forward_hook(lambda *_: self.drop(layer))
                    layer.register_full_backward_pre_hook(lambda *_: self.gather(layer))
                    for p in layer.parameters(recurse=False):
                        p.register_post_accumulate_grad_hook(lambda p: self.finish(layer))

                def gather(self, layer):
                    flat = self.weights[layer]
                    flat.untyped_storage().resize_(flat.nbytes)
                    torch.distributed.all_gather_single(flat, self.shards[layer].detach())

                def drop(self, layer):
                    for p in self.parameters[layer]:
                        p.untyped_storage().resize_(0)
            """,
    },
    "by_owner": {
        "in one piece for each": [(").split([len(each) for each in shards])", ").chunk(comm.size)")],
        "from the owner to all": [("comm.scatter(parts, root=owner)", "comm.bcast(parts, root=owner)[comm.rank]")],
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
        "an allreduce": (
            [(REDUCE, f"{IMPORT}; dist.all_reduce(gradient); total = gradient.numpy()[{MINE}]")],
            "One reduce-scatter of the gradients",
        ),
        "a tensor for the ring": ([("gradient.numpy()", "gradient")], "`lesson.ring` takes NumPy arrays"),
        "an array as gradient": ([(GRADIENT_1, "self.shard.grad = total / self.comm.size")], "a gradient is a tensor"),
        "gathers gradients, too": (
            [(REDUCE, f"{REDUCE}; lesson.ring.allgather(self.comm, gradient.numpy())")],
            "One reduce-scatter of the gradients",
        ),
    },
    "Zero3": {
        "frees the shard": (
            [(FREE, f"{FREE}; lesson.by_hand.free(self.shards[layer])")],
            "no other rank has this shard",
        ),
        "own shard missing": ([(PLACE_SHARD, "pass")], "put this rank's shard at its place"),
        "keeps a copy": ([(FILL, f"{FILL}; vars(self)[str(layer)] = whole")], "a copy of whole"),
        "takes what the ring returns": ([(SEND_SHARDS, f"whole = {SEND_SHARDS}")], "and returns nothing"),
        "never filled": ([(FILL, "pass")], "A new array doesn't reach them"),
        "never dropped": ([(FREE, "pass")], "so its memory stays until you free it"),
        "gathered once": (
            [
                (EMPTY, f"{EMPTY}\n        before = vars(self).setdefault('before', {{}})"),
                (
                    SEND_SHARDS,
                    f"if layer not in before: {SEND_SHARDS}\n        whole = before.setdefault(layer, whole)",
                ),
            ],
            "the shards have changed since the last `gather`",
        ),
        "twice as many bytes": ([(EMPTY, f"{EMPTY}.double()")], "with the same type of numbers"),
        "no detach": ([(".detach()", "")], "its numbers alone"),
        "lends its memory": (
            [
                (EMPTY, "whole = self.weights[layer]; lesson.by_hand.fill(whole, torch.zeros_like(whole))"),
                (FILL, "pass"),
            ],
            "memory that `numpy()` has lent",
        ),
    },
}
NEVER_ENDS = {
    "Zero1": {
        "allgather on rank 0 alone": ([(GATHER, f"if self.comm.rank == 0: {GATHER}")], "same calls in the same order")
    }
}
