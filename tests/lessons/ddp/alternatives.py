"""Right answers to the exercises of 05 beside the solutions, and wrong ones beside the known mistakes."""

from lessons.ddp.judge_own_ddp import SEND

HOOK = f"p.grad /= dist.get_world_size()\n        handles.append({SEND})"
WAIT = "for handle in handles:\n            handle.wait()"

RIGHT = {
    "accumulate": {
        "last one apart": """
            def accumulate(model, micro_batches, loss_function):
                k = len(micro_batches)
                model.zero_grad()
                with model.no_sync():
                    for inputs, targets in micro_batches[:-1]:
                        (loss_function(model(inputs), targets) / k).backward()
                inputs, targets = micro_batches[-1]
                (loss_function(model(inputs), targets) / k).backward()
            """,
        "own allreduces": """
            def accumulate(model, micro_batches, loss_function):
                with model.no_sync():
                    for inputs, targets in micro_batches:
                        (loss_function(model(inputs), targets) / len(micro_batches)).backward()
                for p in model.parameters():
                    dist.all_reduce(p.grad)
                    p.grad /= dist.get_world_size()
            """,
        "divided at the end": """
            def accumulate(model, micro_batches, loss_function):
                k = len(micro_batches)
                for i, (inputs, targets) in enumerate(micro_batches):
                    with model.no_sync() if i < k - 1 else contextlib.nullcontext():
                        loss_function(model(inputs), targets).backward()
                for p in model.parameters():
                    p.grad /= k
            """,
    },
    "my_ddp": {
        "divided after": [
            (HOOK, f"handles.append((p, {SEND}))"),
            (WAIT, "for p, handle in handles:\n            handle.wait(); p.grad /= dist.get_world_size()"),
        ],
        "with futures": [(SEND, f"{SEND}.get_future()"), (WAIT, "torch.futures.wait_all(handles)")],
    },
}
WRONG = {
    "accumulate": {
        "only the backward pass in no_sync": (
            """
            def accumulate(model, micro_batches, loss_function):
                for i, (inputs, targets) in enumerate(micro_batches, 1):
                    loss = loss_function(model(inputs), targets) / len(micro_batches)
                    with contextlib.nullcontext() if i == len(micro_batches) else model.no_sync():
                        loss.backward()
            """,
            "their forward passes too",
        )
    },
    "my_ddp": {
        "the loop's last parameter": ([("def send(p)", "def send(_)")], "In the hook, use its argument"),
        "registers in finish": (
            [
                (
                    "handles.clear()",
                    "handles.clear()\n        [p.register_post_accumulate_grad_hook(send) for p in model.parameters()]",
                )
            ],
            "in the third step, rank 0 started 18 allreduces for 6 gradients",
        ),
        "averages the weights": (
            [("dist.broadcast(p.detach(), src=0)", "dist.all_reduce(p.detach()); p.data /= dist.get_world_size()")],
            "call `dist.broadcast",
        ),
        "divided in finish, where there may be no gradient": (
            [
                (HOOK, f"handles.append({SEND})"),
                (WAIT, f"{WAIT}\n        for p in model.parameters(): p.grad /= dist.get_world_size()"),
            ],
            "is `p.grad` None?",
        ),
        "blocks": ([(", async_op=True", "")], "without `async_op=True`"),
        "never empties its list": ([("        handles.clear()\n", "")], "waited 12 times for messages of the first"),
        "waits for the last message": ([("for handle in handles", "for handle in handles[-1:]")], "waited for 1 of 6"),
        "sends gradients of the loss": (
            [("def send(p)", "def send(grad)"), ("p.grad", "grad"), ("post_accumulate_grad_hook", "hook")],
            "each just before the gradient was in `p.grad`",
        ),
        "is PyTorch's": (
            [("return finish", "return torch.nn.parallel.DistributedDataParallel(model)")],
            "returned a DistributedDataParallel. It should `return` a function",
        ),
    },
}
NEVER_ENDS = {
    "accumulate": {
        "rank 0 alone communicates": (
            [("if last", "if last and dist.get_rank() == 0")],
            "All ranks must enter `no_sync`",
        )
    },
    "my_ddp": {"rank 0 alone sends": ([("handles.append", "dist.get_rank() or handles.append")], "inside an `if`")},
}
