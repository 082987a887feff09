"""The exercises of 02_synchronous_sgd: averaged gradients, the same in one message, the training loop, broadcast
weights, and a mean over all samples.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.judge import own_or_solution
from workshop_lib.judge.forms import plain
from workshop_lib.judge.network import weights_of
from workshop_lib.judge.play import Edit, played
from workshop_lib.models import torch_cnn

NOTEBOOK = "02_synchronous_sgd"
written = partial(own_or_solution, notebook=NOTEBOOK)
SAMPLES = 4  # per rank and step
STEPS = 2  # of the training loop
STUCK = "every rank must make the same collective calls in the same order: is one inside an `if`, or after `return`?"
ROUNDING = 1e-4  # float32 sums depend on the order of addition


def random_batch(seed: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [samples, 1, 28, 28] and labels [samples] of a global batch, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(SAMPLES * ranks, 1, 28, 28, generator=generator)
    return images, torch.randint(10, (SAMPLES * ranks,), generator=generator)


def part_of(comm) -> slice:
    """This rank's part of a global batch."""
    return slice(SAMPLES * comm.rank, SAMPLES * (comm.rank + 1))


def by_name(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


class CallCounter:
    """A communicator that counts the calls that may send something."""

    QUIET = ("Get_", "get_", "Dup", "Free")

    def __init__(self, comm):
        self._comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self.calls = 0

    def __getattr__(self, name: str):
        attribute = getattr(self._comm, name)
        if not callable(attribute) or name.startswith(self.QUIET):
            return attribute

        def counted(*args, **kwargs):
            self.calls += 1
            return attribute(*args, **kwargs)

        return counted


def play_average(average: Callable, comm) -> Iterator[tuple]:
    """Call it on ranks with the same weights, as in training, and then on ranks whose weights differ.

    The second call shows whether the function changes the weights themselves.
    """
    images, labels = random_batch(7, comm.size)
    mine = part_of(comm)
    found = []
    for seed in (1, comm.rank):
        model = torch_cnn.build(seed=seed)
        before = by_name(model)
        cross_entropy(model(images[mine]), labels[mine]).backward()
        average(model, comm)
        weights = by_name(model)
        kept = all(np.array_equal(before[name], weights[name]) for name in before)
        found.append((kept, {name: plain(p.grad) for name, p in model.named_parameters()}))
    (_, gradients), (kept, _) = found
    yield "the weights are left alone", kept, "the weights themselves changed:", "average `p.grad`, not `p`."
    yield "every rank has the gradient of the global batch", gradients
    of_rank_0 = comm.bcast(gradients)
    same = all(np.array_equal(gradients[name], of_rank_0[name]) for name in gradients)
    advice = "every rank must get the same sum, as from one Allreduce."
    yield "the ranks' gradients are equal to the last bit", same, "they agree only roughly:", advice


MEAN = "total / comm.size"


def _edits(mine: str) -> list[Edit]:
    """The known mistakes of a solution in which `mine` is this rank's own gradient."""
    return [
        Edit("That is the sum over ranks: divide by comm.size.", (MEAN, "total")),
        Edit("Each rank still has its own gradient: write the mean into `p.grad`.", (MEAN, mine)),
        Edit("Each rank divided its own gradient: use Allreduce to add up.", (MEAN, f"{mine} / comm.size")),
        Edit("All ranks have the gradient of rank 0, not the mean.", (MEAN, f"comm.bcast({mine})")),
    ]


average_gradients = played(
    "average_gradients",
    NOTEBOOK,
    play_average,
    _edits("mine"),
    alone=True,
    rounding=ROUNDING,
    stuck=STUCK,
    unknown="Allreduce gives every rank the sum over all ranks: divide that by comm.size, and by nothing else.",
)


def play_one_message(average: Callable, comm) -> Iterator[tuple]:
    counting = CallCounter(comm)
    yield from play_average(lambda model, _: average(model, counting), comm)
    messages = counting.calls / 2
    observed = f"they went in {messages:g} messages:"
    advice = "put all gradients into one array first, as with `torch.cat`."
    yield "all gradients go in one message", messages, observed, advice


average_in_one_message = played(
    "average_in_one_message",
    NOTEBOOK,
    play_one_message,
    _edits("flat"),
    alone=True,
    rounding=ROUNDING,
    stuck=STUCK,
    raised={"truncate": "the ranks sent arrays of different lengths: put the same parameters into it on every rank."},
    unknown="Send one array, because `allreduce` joins lists instead of adding them. Copy its parts back in their "
    "order, each as long as its parameter.",
)


def play_loop(train_epoch: Callable, comm) -> Iterator[tuple]:
    """Run a short epoch on this rank's parts of random batches."""
    count: Counter[str] = Counter()

    def own_batches():
        for step in range(STEPS):
            images, labels = random_batch(step, comm.size)
            count["batches"] += 1
            yield images[part_of(comm)], labels[part_of(comm)]

    def average(model, comm):
        count["averages"] += 1
        if any(p.grad is None for p in model.parameters()):
            count["averages of nothing"] += 1
            return
        for p in model.parameters():
            p.grad.copy_(torch.from_numpy(comm.allreduce(p.grad.numpy()) / comm.size))

    model = torch_cnn.build(seed=1)
    sgd = _Sgd(model)
    train_epoch(model, sgd, sgd.schedule, own_batches(), average, comm)
    observed = f"rank {comm.rank} took {count['batches']} of {STEPS} batches:"
    advice = "is there a `return` or a `break` inside the loop?"
    yield "it goes through all batches", count["batches"], observed, advice
    text = "there are gradients when it averages and when it steps"
    too_early = [count["averages of nothing"], sgd.steps_without_gradients]
    observed = "`average` or `optimizer.step` was called while `p.grad` was still None:"
    yield text, too_early, observed, "call it after `backward`, which computes the gradients."
    weights = weights_of(model)
    every_step = count["averages"] == STEPS
    observed = f"rank {comm.rank} averaged {count['averages']} times in {STEPS} steps."
    # The weights tell mistakes apart.
    yield "it averages in every step", every_step or [count["averages"], weights], observed
    same = np.array_equal(weights, comm.bcast(weights))
    observed = f"rank {comm.rank} has other weights than rank 0."
    yield "all ranks end with the same weights, to the last bit", same or weights, observed
    text = "they are those of one process that trains with the global batches"
    yield text, weights, f"after {STEPS} steps"


class _Sgd:
    """Plain SGD and its schedule, with PyTorch's method names. PyTorch's own optimizers take seconds to load."""

    def __init__(self, model):
        self.parameters = list(model.parameters())
        self.lr = 0.1
        self.schedule = SimpleNamespace(step=self.halve)
        self.steps_without_gradients = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        if any(p.grad is None for p in self.parameters):
            self.steps_without_gradients += 1
            return
        for p in self.parameters:
            p.data -= self.lr * p.grad

    def halve(self) -> None:
        self.lr /= 2


AVERAGE = "        average(model, comm)\n"
STEP = "        optimizer.step()\n"
AVERAGE_BY_NAME = """
        for p in model.parameters():
            p.grad.copy_(torch.from_numpy(comm.allreduce(p.grad.numpy()) / comm.size))
"""
train_epoch = played(
    "train_epoch",
    NOTEBOOK,
    play_loop,
    [
        Edit("Each rank trains alone: call `average` before the optimizer steps.", (AVERAGE, "")),
        Edit(
            "The gradients are averaged, but not by `average`: call the argument of this name instead of your own "
            "`average_gradients`, so that the loop works with any way to average.",
            (AVERAGE, AVERAGE_BY_NAME),
        ),
        Edit("You average after the step: by then, the optimizer has used `p.grad`.", (AVERAGE + STEP, STEP + AVERAGE)),
        Edit("`backward` adds to the gradients of the last step: clear them first.", ("optimizer.zero_grad()", "pass")),
        Edit("The learning rate never changed: call `schedule.step()` in each step.", ("schedule.step()", "pass")),
    ],
    rounding=ROUNDING,
    stuck="every rank must average as often as the others: is `average` inside an `if`?",
    unknown="For each batch: clear the gradients, compute the loss, go backward, average, step, and step the schedule.",
)


def play_broadcast(broadcast_weights: Callable, comm) -> Iterator[tuple]:
    """Call it on ranks whose weights differ."""
    model = torch_cnn.build(seed=10 + comm.rank)
    broadcast_weights(model, comm)
    yield "every rank has the weights of rank 0, to the last bit", by_name(model)


COPY = "p.copy_(torch.from_numpy(array))"
SEND = "comm.Bcast(array, root=0)"
broadcast_weights = played(
    "broadcast_weights",
    NOTEBOOK,
    play_broadcast,
    [
        Edit("Each rank still has its own weights: copy what arrives into the parameter.", (COPY, "pass")),
        Edit("Those are the weights of the last rank: the root is rank 0.", ("root=0", "root=comm.size - 1")),
        Edit(
            "That is the mean of the ranks' weights: every rank needs those of rank 0.",
            (SEND, "array = comm.allreduce(array) / comm.size"),
        ),
    ],
    rounding=0,
    stuck=STUCK,
    unknown="Send each parameter of model.parameters() from rank 0 with Bcast, copy what arrived into it, and change "
    "nothing else.",
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
_WEIGH = "Weigh each gradient by its number of samples."
weighted_mean = played(
    "weighted_mean",
    NOTEBOOK,
    play_weighted,
    [
        Edit(f"That is the plain mean over ranks. {_WEIGH}", (WEIGHED, "gradient"), (DIVIDE, "total / comm.size")),
        Edit("That is the sum over all samples: divide by their number.", (DIVIDE, "total")),
        Edit("Divide by the number of all samples, not of ranks.", (DIVIDE, "total / comm.size")),
        Edit("You divided by this rank's count: add up counts.", (DIVIDE, "total / max(1, n_samples)")),
        Edit("Each rank returned its own gradient: add up those of all ranks.", (DIVIDE, "gradient.copy()")),
    ],
    alone=True,
    returns="the mean",
    rounding=ROUNDING,
    stuck=STUCK,
    unknown="Weigh each gradient by its number of samples, add these up, and divide by the number of samples in all.",
)
