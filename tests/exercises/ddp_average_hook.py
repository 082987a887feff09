"""Answers to `average_hook` of 05_ddp: right ones, wrong ones with their hint, and some that never end."""

from exercises.answers import variant, written

NOTEBOOK = "05_ddp"
START = "future = dist.all_reduce(tensor, group=process_group, async_op=True).get_future()"
THEN = "return future.then(lambda done: done.value()[0])"


def hook(*lines: str):
    head = "average_hook(process_group, bucket)"
    return written("import torch, torch.distributed as dist", head, "tensor = bucket.buffer()", *lines)


RIGHT = {
    "average_hook, divided after": lambda: hook(
        START, "return future.then(lambda done: done.value()[0].div_(process_group.size()))"
    ),
    "average_hook, in place": lambda: hook("tensor.div_(process_group.size())", START, THEN),
}
WRONG = {
    "a future of a list": (lambda: hook("tensor /= 2", START, "return future"), "holds a list with one tensor"),
    "a future of nothing": (
        lambda: hook(START, "return future.then(lambda done: print(end=str()))"),
        "does the function in `then` return",
    ),
    "sum": (lambda: hook(START, THEN), "the sum, not the mean"),
    "a tensor": (
        lambda: hook("dist.all_reduce(tensor, group=process_group)", "return tensor / process_group.size()"),
        "A future is a promise",
    ),
    "the handle": (
        lambda: hook(
            "tensor /= process_group.size()", "return dist.all_reduce(tensor, group=process_group, async_op=True)"
        ),
        "its `get_future()`",
    ),
    "nothing returned": (
        lambda: variant(NOTEBOOK, "average_hook", ("return future.then", "future.then")),
        "`return` the future",
    ),
    "no allreduce": (
        lambda: hook("future = torch.futures.Future()", "future.set_result(tensor)", "return future"),
        "own samples alone",
    ),
    "no allreduce, but divided": (
        lambda: hook(
            "future = torch.futures.Future()", "future.set_result(tensor / process_group.size())", "return future"
        ),
        "own samples alone",
    ),
    "complete too early": (
        lambda: hook(
            "tensor = tensor / process_group.size()",
            "dist.all_reduce(tensor, group=process_group, async_op=True)",
            "future = torch.futures.Future()",
            "future.set_result(tensor.clone())",
            "return future",
        ),
        "complete before the allreduce was",
    ),
    "divided twice": (
        lambda: variant(NOTEBOOK, "average_hook", ("done.value()[0]", "done.value()[0] / process_group.size()")),
        "divided by twice",
    ),
    "divided by 4": (lambda: hook("tensor = tensor / 4", START, THEN), "the number of ranks was divided by twice"),
    "divided by 3": (lambda: hook("tensor = tensor / 3", START, THEN), "times the mean"),
    "the world's size": (
        lambda: variant(NOTEBOOK, "average_hook", ("process_group.size()", "dist.get_world_size()")),
        "but this group has one rank",
    ),
    "the world's allreduce": (
        lambda: variant(NOTEBOOK, "average_hook", ("group=process_group, ", "")),
        "pass `group=process_group`",
    ),
    "the first bucket only": (
        lambda: hook(
            "tensor = tensor / process_group.size()",
            "if bucket.index() == 0:",
            f"    {START}; {THEN}",
            "future = torch.futures.Future()",
            "future.set_result(tensor)",
            "return future",
        ),
        "Is every bucket averaged",
    ),
    "half precision": (
        lambda: hook(
            "half = (tensor / process_group.size()).half()",
            "future = dist.all_reduce(half, group=process_group, async_op=True).get_future()",
            "return future.then(lambda done: done.value()[0].double())",
        ),
        "half precision",
    ),
    "waits for the handle": (
        lambda: hook(
            "tensor = tensor / process_group.size()",
            "work = dist.all_reduce(tensor, group=process_group, async_op=True)",
            "work.wait()",
            "future = work.get_future()",
            THEN,
        ),
        "it waited for its allreduce",
    ),
    "blocking, then wrapped": (
        lambda: hook(
            "dist.all_reduce(tensor, group=process_group)",
            "future = torch.futures.Future()",
            "future.set_result(tensor / process_group.size())",
            "return future",
        ),
        "it waited for its allreduce",
    ),
}
NEVER_ENDS = {
    "allreduce on rank 0 alone": (
        lambda: hook(
            "if dist.get_rank(process_group) == 0:",
            f"    {START}; {THEN}",
            "future = torch.futures.Future()",
            "future.set_result(tensor)",
            "return future",
        ),
        "never starts its allreduce",
    ),
    "a future that nobody completes": (
        lambda: hook("dist.all_reduce(tensor, group=process_group)", "return torch.futures.Future()"),
        "never completed",
    ),
}
