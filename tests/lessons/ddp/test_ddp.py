"""The exercises of 05_ddp accept the solutions, and reject wrong answers with the hint that names the mistake."""

import pytest
from judge.answers import own
from judge.verdicts import Verdicts

from workshop_lib.lessons.ddp import judge as ddp
from workshop_lib.lessons.ddp import judge_own_ddp as own_ddp

pytestmark = pytest.mark.usefixtures("healthy")

NOTEBOOK = "05_ddp"
SEND = "dist.all_reduce(p.grad, async_op=True)"
HOOK = f"p.grad /= dist.get_world_size()\n        handles.append({SEND})"
LOOP = "for handle in handles:"
WAIT = f"{LOOP}\n            handle.wait()"
KEEP = "p.grad /= dist.get_world_size(); kept.append(p)"
REGISTER = "register_post_accumulate_grad_hook"

WITH = "with contextlib.nullcontext() if last else model.no_sync():"
LOSS = "loss = loss_function(model(inputs), targets)"
BACKWARD = "(loss / len(micro_batches)).backward()"
EMPTY = f"model.zero_grad(); {LOSS}"


def kept_apart(forward: str, backward: str) -> list[tuple[str, str]]:
    """The solution of `accumulate` with these conditions for the forward and the backward to communicate."""
    apart = BACKWARD.join([f"{WITH.replace('last', backward)} ", ""])
    return [(WITH, WITH.replace("last", forward)), (f"    {BACKWARD}", apart)]


LISTS = ("handles = []", "handles, kept = [], []")
SEND_ALL = f"handles.extend({SEND} for p in kept)\n        kept.clear()"
SEND_SORTED = SEND_ALL.replace("in kept", "in kept[:: 1 - 2 * dist.get_rank()]")
TOGETHER = f"{KEEP}\n        if len(kept) < 6: return\n        {SEND_ALL}"

WRONG = {
    "accumulate": {
        "no backward": ([(BACKWARD, "pass")], "no backward has run"),
        "the first communicates": ([("== len(micro_batches)", "== 1")], ddp.ADDED_HINT),
        "the last backward alone communicates": (kept_apart("False", "last"), ddp.UNAVERAGED_HINTS[False, True]),
        "none communicates": ([("if last", "if False")], ddp.UNAVERAGED_HINTS[False, False]),
        "DDP is not called": ([(WITH, "if True:"), ("(model(", "(model.module(")], ddp.UNAVERAGED_HINTS[True, True]),
        "not divided": ([("loss / len(micro_batches)", "loss")], "the sum over micro-batches"),
        "emptied": ([(LOSS, EMPTY)], ddp.EMPTIED_HINT),
        "emptied, not divided": ([(LOSS, EMPTY), ("loss / len(micro_batches)", "loss")], ddp.EMPTIED_HINT),
        "divided by the ranks": ([("(loss / ", "(loss / dist.get_world_size() / ")], "takes the mean over ranks"),
        "divided twice": (
            [("(loss / ", "(loss / len(micro_batches) / ")],
            "you divided by the number of micro-batches twice",
        ),
        "all communicate": ([("if last", "if True")], ddp.ROUNDS_HINTS[True, True]),
        "all forwards communicate": (kept_apart("True", "last"), ddp.ROUNDS_HINTS[True, False]),
        "two communicate": ([("== len(micro_batches)", "% 2 == 0")], ddp.ROUNDS_HINTS[False, False]),
        "with one micro-batch": ([("== len(micro_batches)", "== 4"), ("/ len(micro_batches)", "/ 4")], "also the last"),
        "one forward": (
            """
            def accumulate(model, micro_batches, loss_function):
                inputs, targets = map(torch.cat, zip(*micro_batches))
                loss_function(model(inputs), targets).backward()
            """,
            "don't fit into memory together",
        ),
        "one backward": (
            """
            def accumulate(model, micro_batches, loss_function):
                losses = [loss_function(model(inputs), targets) for inputs, targets in micro_batches]
                (sum(losses) / len(losses)).backward()
            """,
            "`backward()` before the next forward",
        ),
    },
    "my_ddp": {
        "blocking": ([(", async_op=True", "")], own_ddp.BLOCKING_HINT),
        "waits in the hook": ([(f"handles.append({SEND})", f"{SEND}.wait()")], own_ddp.WAITING_HINT),
        "not divided": ([("p.grad /= dist.get_world_size()", "pass")], own_ddp.SUM_HINT),
        "divided twice": ([("p.grad /= dist", "p.grad /= dist.get_world_size() * dist")], own_ddp.TWICE_HINT),
        "forgot to wait": ([("handle.wait()", "pass")], own_ddp.FORGOT_HINT),
        "a copy travels": ([("(p.grad, async", "(p.grad.clone(), async")], own_ddp.FORGOT_HINT),
        "no broadcast": ([("dist.broadcast(p.detach(), src=0)", "pass")], own_ddp.BROADCAST_HINT),
        "finish is called": ([("return finish", "return finish()")], own_ddp.FINISH_HINT),
        "after backward": ([LISTS, (HOOK, KEEP), (LOOP, f"{SEND_ALL}\n        {LOOP}")], own_ddp.AFTER_HINT),
        "together with the last": ([LISTS, (HOOK, TOGETHER)], own_ddp.TOGETHER_HINT),
        "rank 0 alone sends": ([("handles.append", "dist.get_rank() or handles.append")], own_ddp.SOME_HINT),
        "another order on each rank": (
            [LISTS, (HOOK, KEEP), (LOOP, f"{SEND_SORTED}\n        {LOOP}")],
            own_ddp.ORDER_HINT,
        ),
        "no hooks": ([("p.register_post_accumulate_grad_hook(send)", "pass")], own_ddp.NOTHING_HINT),
        "only matrices": ([("p.register_post", "p.ndim == 1 or p.register_post")], "the hook on every parameter"),
        "each twice": ([("p.register_post", f"p.{REGISTER}(send); p.register_post")], own_ddp.MORE_HINT),
    },
    "my_buckets": {
        "left unsent": ([("if bucket:", "if False:")], own_ddp.LEFT_HINT),
        "never emptied": ([("bucket.clear()", "pass")], "empty the bucket once it is sent"),
        "too small": ([(">= bucket_bytes", ">= 1")], own_ddp.SMALL_HINT),
        "all in one": ([(">= bucket_bytes", ">= 1e9")], own_ddp.AFTER_HINT),
        "not copied back": ([("p.grad.copy_(part.view_as(p))", "pass")], own_ddp.FORGOT_HINT),
        "forgot to wait": ([("handle.wait()", "pass")], own_ddp.FORGOT_HINT),
        "cut in another order": (
            [
                ("zip(parameters, flat", "zip(parameters[::-1], flat"),
                ("for p in parameters]", "for p in parameters[::-1]]"),
            ],
            own_ddp.PIECES_HINT,
        ),
        "first step kept": (
            [("sent.clear()", "sent[:] = sent[:1]"), ("in sent:", "in sent[::-1]:")],
            own_ddp.AGAIN_HINT,
        ),
        "another order on each rank": (
            [("in bucket]) /", "in bucket[:: 1 - 2 * dist.get_rank()]]) /")],
            own_ddp.MIXED_HINT,
        ),
    },
}

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
    "my_buckets": {
        "divided after, with new gradients": [
            ("for p in bucket]) / dist.get_world_size()", "for p in bucket])"),
            ("sum(each.grad.nbytes for each in bucket)", "8 * sum(each.numel() for each in bucket)"),
            ("p.grad.copy_(part.view_as(p))", "p.grad = (part / dist.get_world_size()).view_as(p)"),
        ]
    },
}
RAISES = {
    "my_ddp": {
        "divided in finish, where there may be no gradient": (
            [
                (HOOK, f"handles.append({SEND})"),
                (WAIT, f"{WAIT}\n        for p in model.parameters(): p.grad /= dist.get_world_size()"),
            ],
            own_ddp.UNUSED_HINT,
        )
    }
}
NEVER_ENDS = {
    "accumulate": {
        "rank 0 alone communicates": (
            """
            def accumulate(model, micro_batches, loss_function):
                k = len(micro_batches)
                for i, (inputs, targets) in enumerate(micro_batches):
                    last = i == k - 1 and dist.get_rank() == 0
                    with contextlib.nullcontext() if last else model.no_sync():
                        (loss_function(model(inputs), targets) / k).backward()
            """,
            "All ranks must enter `no_sync`",
        )
    },
    "my_ddp": {
        "a barrier on rank 0 alone": (
            """
            def my_ddp(model):
                if dist.get_rank() == 0: dist.barrier()
            """,
            "inside an `if`",
        )
    },
}


class TestDDP(Verdicts):
    check, notebook, names = ddp, NOTEBOOK, ["my_ddp", "my_buckets", "accumulate"]
    right, wrong, raises, never_ends = RIGHT, WRONG, RAISES, NEVER_ENDS


GROUP = "import __ranks__; __ranks__.group = id(dist.group.WORLD)"


def test_the_ranks_keep_their_process_group(team):
    ddp.my_buckets(own(NOTEBOOK, "my_buckets", f"def my_buckets(model, bucket_bytes): {GROUP}"))
    first = team.pull("group")
    ddp.my_ddp(own(NOTEBOOK, "my_ddp", f"def my_ddp(model): {GROUP}"))
    assert team.pull("group") == first
