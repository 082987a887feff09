"""Answers to `accumulate` of 05_ddp: right ones, wrong ones with their hint, and some that never end."""

from exercises.answers import variant, written

NOTEBOOK = "05_ddp"
EACH = "for inputs, targets in micro_batches:"
BACKWARD = "    (loss_function(model(inputs), targets) / k).backward()"


def accumulate(*lines: str):
    head = "accumulate(model, micro_batches, loss_function)"
    return written("import contextlib, torch, torch.distributed as dist", head, "k = len(micro_batches)", *lines)


RIGHT = {
    "accumulate, last one apart": lambda: accumulate(
        "model.zero_grad()",
        "with model.no_sync():",
        "    for inputs, targets in micro_batches[:-1]:",
        "        (loss_function(model(inputs), targets) / k).backward()",
        "inputs, targets = micro_batches[-1]",
        "(loss_function(model(inputs), targets) / k).backward()",
    ),
    "accumulate, divided at the end": lambda: accumulate(
        "for i, (inputs, targets) in enumerate(micro_batches):",
        "    with model.no_sync() if i < k - 1 else contextlib.nullcontext():",
        "        loss_function(model(inputs), targets).backward()",
        "for p in model.parameters():",
        "    p.grad /= k",
    ),
}
WRONG = {
    "no no_sync": (lambda: accumulate(EACH, BACKWARD), "Run all micro-batches but the last inside"),
    "all inside no_sync": (
        lambda: accumulate("with model.no_sync():", "    " + EACH, "    " + BACKWARD),
        "all of it ran inside `no_sync`",
    ),
    "not divided": (
        lambda: variant(NOTEBOOK, "accumulate", ("(loss / len(micro_batches))", "loss")),
        "divide each loss by their number",
    ),
    "zero_grad inside the loop": (
        lambda: variant(NOTEBOOK, "accumulate", ("        last =", "        model.zero_grad(); last =")),
        "`zero_grad` once before the loop",
    ),
    "zero_grad inside, not divided": (
        lambda: accumulate(EACH, "    model.zero_grad()", "    loss_function(model(inputs), targets).backward()"),
        "`zero_grad` once before the loop",
    ),
    "forward outside no_sync": (
        lambda: accumulate(
            "for i, (inputs, targets) in enumerate(micro_batches):",
            "    loss = loss_function(model(inputs), targets) / k",
            "    with model.no_sync() if i < k - 1 else contextlib.nullcontext():",
            "        loss.backward()",
        ),
        "put both inside the context",
    ),
    "last forward inside no_sync": (
        lambda: accumulate(
            "with model.no_sync():",
            "    for inputs, targets in micro_batches:",
            "        loss = loss_function(model(inputs), targets) / k",
            "        if inputs is not micro_batches[-1][0]:",
            "            loss.backward()",
            "loss.backward()",
        ),
        "keep both together",
    ),
    "the first communicates": (
        lambda: variant(NOTEBOOK, "accumulate", ("number == len(micro_batches)", "number == 1")),
        "the *last* micro-batch is the one",
    ),
    "divided by the ranks too": (
        lambda: variant(NOTEBOOK, "accumulate", ("(loss / len", "(loss / dist.get_world_size() / len")),
        "divided twice",
    ),
    "every other one communicates": (
        lambda: accumulate(
            "for i, (inputs, targets) in enumerate(micro_batches):",
            "    with contextlib.nullcontext() if i % 2 else model.no_sync():",
            "        (loss_function(model(inputs), targets) / k).backward()",
        ),
        "Only the last micro-batch may run outside",
    ),
    "all in one forward": (
        lambda: accumulate(
            "inputs, targets = map(torch.cat, zip(*micro_batches))", "loss_function(model(inputs), targets).backward()"
        ),
        "one at a time saves memory",
    ),
    "one backward for all": (
        lambda: accumulate("sum(loss_function(model(x), y) for x, y in micro_batches).div(k).backward()"),
        "before the next forward",
    ),
    "four micro-batches assumed": (
        lambda: variant(NOTEBOOK, "accumulate", ("len(micro_batches)", "4")),
        "must follow from",
    ),
    "around DDP": (
        lambda: accumulate(EACH, BACKWARD.replace("model(", "model.module(")),
        "call `model`, not `model.module`",
    ),
    "no backward": (lambda: accumulate(EACH, "    loss_function(model(inputs), targets)"), "no backward has run"),
}
NEVER_ENDS = {
    "rank 0 alone communicates": (
        lambda: accumulate(
            "for i, (inputs, targets) in enumerate(micro_batches):",
            "    last = i == k - 1 and dist.get_rank() == 0",
            "    with contextlib.nullcontext() if last else model.no_sync():",
            "        (loss_function(model(inputs), targets) / k).backward()",
        ),
        "All ranks must enter `no_sync`",
    )
}
