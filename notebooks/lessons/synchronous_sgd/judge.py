"""The exercises of 02_synchronous_sgd: averaged gradients, the training loop, whether ranks agree, broadcast weights,
all gradients in one message, and a mean over all samples.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from unittest import mock

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.network import Batch, batch, gradient_of, network, weights_of
from workshop_lib.exercises.play import Edit, played
from workshop_lib.words import plural

NOTEBOOK = "02_synchronous_sgd"
written = partial(own_or_solution, notebook=NOTEBOOK)
STEPS = 2  # of the training loop
STUCK = "every rank must make the same collective calls in the same order: is one inside an `if`, or after `return`?"
ROUNDING = 1e-4  # float32 sums depend on the order of addition


def ready() -> None:
    """Create an optimizer: the first one takes long on fresh ranks."""
    torch.optim.SGD(network().parameters())


def float_batch(rank: int, step: int) -> Batch:
    inputs, labels = batch(rank, step)
    return inputs.float(), labels


def play_average(average: Callable, comm) -> Iterator[tuple]:
    """Call it on ranks whose weights differ, which shows whether the function changes the weights themselves."""
    model = network(seed=comm.rank).float()
    before = weights_of(model)
    inputs, labels = float_batch(comm.rank, step=0)
    cross_entropy(model(inputs), labels).backward()
    average(model, comm)
    kept = np.array_equal(weights_of(model), before)
    yield "the weights are left alone", kept, "the weights themselves changed:", "average `p.grad`, not `p`."
    gradient = gradient_of(model)
    yield "every rank has the mean of all ranks' gradients", gradient
    same = np.array_equal(gradient, comm.bcast(gradient))
    advice = "every rank must get the same sum, as from one Allreduce."
    yield "the ranks' gradients are equal to the last bit", same, "they agree only roughly:", advice


MEAN = "total / comm.size"
FIRST_ONLY = "Only the first parameter is right: is there a `return` or a `break` inside the loop?"


def _edits(mine: str) -> list[Edit]:
    """The known mistakes of a solution in which `mine` is this rank's own gradient."""
    return [
        Edit("That is the sum over ranks: divide by comm.size.", (MEAN, "total")),
        Edit("Each rank still has its own gradient: write the mean into `p.grad`.", (MEAN, mine)),
    ]


average_gradients = played(
    "average_gradients",
    NOTEBOOK,
    play_average,
    [*_edits("mine"), Edit(FIRST_ONLY, ("        p.grad.copy_(", "        return p.grad.copy_("))],
    rounding=ROUNDING,
    stuck=STUCK,
    unknown="Sum each gradient on every rank with Allreduce, divide the sum by comm.size only, and keep float32.",
)


def play_one_message(average: Callable, comm) -> Iterator[tuple]:
    counting = mock.Mock(wraps=comm, rank=comm.rank, size=comm.size)
    yield from play_average(lambda model, _: average(model, counting), comm)
    messages = sum(bool(call.args or call.kwargs) for call in counting.method_calls)  # Get_size() takes no arguments
    observed = f"they went in {messages} messages:"
    advice = "put all gradients into one array first, as with `torch.cat`."
    yield "all gradients go in one message", messages, observed, advice


average_in_one_message = played(
    "average_in_one_message",
    NOTEBOOK,
    play_one_message,
    [*_edits("flat"), Edit(FIRST_ONLY, ("        p.grad.copy_(", "        return p.grad.copy_("))],
    rounding=ROUNDING,
    stuck=STUCK,
    raised={"truncate": "the ranks sent arrays of different lengths: put the same parameters into it on every rank."},
    unknown="Send one array, because `allreduce` joins lists instead of adding them. Copy its parts back in their "
    "order, each as long as its parameter. Keep float32.",
)


def play_loop(train_epoch: Callable, comm) -> Iterator[tuple]:
    """Run a short epoch on this rank's parts of random batches."""
    count: Counter[str] = Counter()

    def own_batches():
        for step in range(STEPS):
            count["batches"] += 1
            yield float_batch(comm.rank, step)

    def average(model, comm):
        count["averages"] += 1
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        count["gradients"] += len(gradients)
        for gradient in gradients:
            gradient.copy_(torch.from_numpy(comm.allreduce(gradient.numpy()) / comm.size))

    model = network().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    train_epoch(model, optimizer, schedule, own_batches(), average, comm)
    observed = f"rank {comm.rank} took {count['batches']} of {STEPS} batches:"
    advice = "is there a `return` or a `break` inside the loop?"
    yield "it goes through all batches", count["batches"], observed, advice
    observed = f"rank {comm.rank} averaged {plural(count['averages'], 'time')} in {STEPS} steps."
    yield "it averages in every step", count["averages"], observed
    advice = "call `backward()` before, on the loss itself and not on a number made from it, and clear before that."
    yield "it averages gradients", count["gradients"], "parameters had no gradient when `average` was called:", advice
    text = "the weights are those of one process that trains with the global batches"
    yield text, weights_of(model), f"after {STEPS} steps"


AVERAGE = "        average(model, comm)\n"
STEP = "        optimizer.step()\n"
train_epoch = played(
    "train_epoch",
    NOTEBOOK,
    play_loop,
    [
        Edit("Call the argument, `average(model, comm)`, before the optimizer steps.", (AVERAGE, "")),
        Edit("You average after the step: by then, the optimizer has used `p.grad`.", (AVERAGE + STEP, STEP + AVERAGE)),
        Edit(
            "`backward` adds to the gradients of the last step: clear them in each step.",
            ("optimizer.zero_grad()", "pass"),
        ),
        Edit(
            "Every rank has an optimizer of its own, and has to step.",
            (STEP, f"        if comm.rank == 0:\n    {STEP}"),
        ),
        Edit("The learning rate never changed: call `schedule.step()` in each step.", ("schedule.step()", "pass")),
    ],
    rounding=ROUNDING,
    ready=ready,
    stuck="every rank must average as often as the others: is `average` inside an `if`?",
    raised={
        "no attribute 'parameters'": "`average` takes the model, and averages its gradients: `average(model, comm)`."
    },
    unknown="For each batch: clear the gradients, call `backward()` on `cross_entropy(model(images), labels)` itself, "
    "average, let the optimizer step, and let the schedule step last.",
)


def unsalted_hash(value) -> int:
    """`hash`, refused for text and bytes: Python salts it in each process, and only forked ranks share a salt."""
    if isinstance(value, (str, bytes)):
        raise ValueError("in a job, `hash` of the same bytes differs between processes: use hashlib")
    return value.__hash__()


def play_agree(ranks_agree: Callable, comm) -> Iterator[tuple]:
    """Compare equal networks, and then networks of which only one rank's differs."""

    def step(text: str, model: torch.nn.Module) -> tuple:
        with mock.patch("builtins.hash", unsalted_hash):
            answer = ranks_agree(model, comm)
        return text, answer, f"rank {comm.rank} says {answer}."

    differs = comm.rank == comm.size // 2  # neither the first rank nor, among three, the last
    yield step("it's True if all ranks hold the same weights", network().float())
    is_last = comm.rank == comm.size - 1
    model = network(seed=2 if is_last else 1).float()
    yield step("it's False, on every rank, if the last rank holds other weights", model)
    model = network().float()
    if differs:
        list(model.parameters())[-1].data[-1] += 1.0
    yield step("also if only the last of all parameters differs", model)
    model = network().float()
    for p in model.parameters():
        p.data.zero_()  # sums are exact then, in whatever order a function adds
    next(model.parameters()).data[0, :2] = torch.tensor([2.0, 1.0] if differs else [1.0, 2.0])
    yield step("also if one rank holds the same numbers in another order", model)
    model = network().float()
    if differs:
        weight = next(model.parameters()).data
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    yield step("also if only the last bit of a weight differs", model)


NO_GRADIENTS = "this network has no gradients yet: use the parameter `p` itself, not `p.grad`."
ALL_DIGESTS = "len(set(digests)) == 1"
UPDATE = "digest.update(p.detach().numpy().tobytes())"
ranks_agree = played(
    "ranks_agree",
    NOTEBOOK,
    play_agree,
    [
        Edit(
            "The ranks give different answers, because each compares itself with one rank only. Let every rank look at "
            "the weights, or the digests, of all ranks.",
            (ALL_DIGESTS, "digests[comm.rank] == digests[0]"),
        ),
        Edit("Rank 0 and rank 1 may agree while another rank doesn't.", (ALL_DIGESTS, "digests[0] == digests[1]")),
        Edit("Only the first parameter is compared.", (UPDATE, f"{UPDATE}; break")),
        Edit(
            "That allows a tolerance. Compare the exact bytes.", ("p.detach().numpy()", "p.detach().numpy().round(3)")
        ),
        Edit("Compare all numbers of all parameters, not their sums.", ("p.detach()", "p.detach().sum()")),
    ],
    returns="True or False, the same on every rank",
    stuck=STUCK,
    raised={
        "'NoneType' object has no attribute": NO_GRADIENTS,
        "cannot pickle": "send the digest as text, which `hexdigest()` returns.",
    },
    unknown="Gather the digests of all ranks on every rank, and return True if all of them are the same.",
)


def play_broadcast(broadcast_weights: Callable, comm) -> Iterator[tuple]:
    """Call it on ranks whose weights differ."""
    model = network(seed=comm.rank).float()
    for p in model.parameters():
        p.data += 0.5 + comm.rank  # no rank can draw the weights of rank 0 by itself
    broadcast_weights(model, comm)
    yield "every rank has the weights of rank 0, to the last bit", weights_of(model)


COPY = "p.copy_(torch.from_numpy(array))"
broadcast_weights = played(
    "broadcast_weights",
    NOTEBOOK,
    play_broadcast,
    [
        Edit(
            "Each rank still has its own weights: does every rank call `Bcast` with root 0, and copy what arrives into "
            "the parameter?",
            (COPY, "pass"),
        ),
        Edit("Those are the weights of the last rank: the root is rank 0.", ("root=0", "root=comm.size - 1")),
        Edit(FIRST_ONLY, (f"            {COPY}", f"            return {COPY}")),
    ],
    rounding=0,
    stuck=STUCK,
    raised={
        "'NoneType' object has no attribute": NO_GRADIENTS,
        "leaf Variable": "change parameters inside `with torch.no_grad():`.",
    },
    unknown="Send each parameter of rank 0 with Bcast, and copy the array that arrives into the parameter. "
    "Keep float32, and don't average.",
)


def play_weighted(weighted_mean: Callable, comm) -> Iterator[tuple]:
    """Each sample's gradient is a random vector of 6 numbers."""
    uneven = [comm.size + 1 + 2 * rank for rank in range(comm.size)]
    without_rank_1 = [0 if rank == 1 else n for rank, n in enumerate(uneven)]
    for text, counts in (
        ("it is the gradient of the mean loss of all samples", uneven),
        ("also when a rank has no samples", without_rank_1),
    ):
        of_samples = np.random.default_rng(5).normal(size=(sum(counts), 6))
        first = sum(counts[: comm.rank])
        own = of_samples[first : first + counts[comm.rank]]
        gradient = own.mean(axis=0) if len(own) else np.zeros(6)
        yield text, weighted_mean(gradient, len(own), comm)


WEIGHED = "gradient * n_samples"
DIVIDE = "total / comm.allreduce(n_samples)"
_WEIGH = "Multiply each gradient by its number of samples."
weighted_mean = played(
    "weighted_mean",
    NOTEBOOK,
    play_weighted,
    [
        Edit(f"That is the plain mean over ranks. {_WEIGH}", (WEIGHED, "gradient"), (DIVIDE, "total / comm.size")),
        Edit("That is the sum over all samples: divide by their number.", (DIVIDE, "total")),
        Edit("Divide by the number of all samples, not of ranks.", (DIVIDE, "total / comm.size")),
    ],
    returns="the mean",
    rounding=ROUNDING,
    stuck=STUCK,
    unknown="Multiply each gradient by its number of samples, add these up, and divide by the number of all samples.",
)
