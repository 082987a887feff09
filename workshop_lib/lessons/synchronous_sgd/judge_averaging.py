"""How 02_synchronous_sgd checks two exercises: the mean of all ranks' gradients, and the same mean in one message."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.judge import close
from workshop_lib.judge.play import Edit, played
from workshop_lib.models import torch_cnn

NOTEBOOK = "02_synchronous_sgd"
SAMPLES = 16  # per rank
STUCK = "every rank must make the same collective calls in the same order: is one inside an `if`, or after `return`?"
ALL_PARAMETERS = "go through all of model.parameters()."
ROUNDING = 1e-4  # float32 sums depend on the order of addition
same_but_rounding = partial(close, rounding=ROUNDING)


def play_average(average: Callable, comm) -> Iterator[tuple]:
    yield from _averaging(average, comm, comm)


def _averaging(average: Callable, comm, given) -> Iterator[tuple]:
    """Call it on ranks with the same weights, as in training, and then on ranks whose weights differ.

    The second call shows whether the function changes the weights themselves. `given` is the communicator it gets.
    """
    images, labels = image_batch(SAMPLES * comm.size, seed=7)
    mine = slice(SAMPLES * comm.rank, SAMPLES * (comm.rank + 1))
    model = torch_cnn.build(seed=1)
    cross_entropy(model(images), labels).backward()
    whole = _gradients_of(model)
    model.zero_grad()
    cross_entropy(model(images[mine]), labels[mine]).backward()
    average(model, given)
    got = _gradients_of(model)

    other = torch_cnn.build(seed=comm.rank)
    before = weights_by_name(other)
    cross_entropy(other(images[mine]), labels[mine]).backward()
    average(other, given)
    after = weights_by_name(other)
    kept = all(np.array_equal(before[name], after[name]) for name in before)
    yield "the weights are left alone", kept, "the weights themselves changed:", "average `p.grad`, not `p`."
    gone = [name for name in got if got[name] is None]
    observed = f"{gone[0]} has none:" if gone else ""
    yield "every parameter has its gradient", not gone, observed, "write into `p.grad`, as with `p.grad.copy_(…)`."

    wrong = [name for name in whole if not same_but_rounding(got[name], whole[name])]
    observed, advice = _not_averaged(comm, wrong, got, whole)
    yield "every rank has the gradient of the global batch", {name: got[name] for name in wrong}, observed, advice
    of_rank_0 = comm.bcast(got)
    same = all(np.array_equal(got[name], of_rank_0[name]) for name in got)
    advice = "every rank must get the same sum, as from one Allreduce."
    yield "the ranks' gradients are equal to the last bit", same, "they agree only roughly:", advice


def _not_averaged(comm, wrong: list[str], got: dict, whole: dict) -> tuple[str, str]:
    """What is wrong with this rank's gradients, as a sentence, and advice. Every rank calls this."""
    wrong_on = comm.allgather(wrong)
    if not wrong:
        return "", ""
    name = wrong[0]
    right_on = [rank for rank, names in enumerate(wrong_on) if name not in names]
    if right_on:
        return f"{name} is right on rank {right_on[0]}, but not on rank {comm.rank}:", "all need the mean."
    if len(wrong) < len(whole):
        return f"{name} is not averaged on rank {comm.rank}, others are:", ALL_PARAMETERS
    factor = float((got[name] * whole[name]).sum() / (whole[name] ** 2).sum())
    times = "not"
    if factor and same_but_rounding(got[name], factor * whole[name]):
        times = f"{factor:.4g} times"
    return f"on rank {comm.rank}, {name} is {times} the mean of the ranks' gradients.", ""


MEAN = "total / comm.size"


def _edits(mine: str) -> list[Edit]:
    """The known mistakes of a solution in which `mine` is this rank's own gradient."""
    return [
        Edit("That is the sum over ranks: divide by comm.size.", (MEAN, "total")),
        Edit("That is the mean, divided by comm.size once more.", (MEAN, "total / comm.size**2")),
        Edit("Each rank still has its own gradient: write the mean into `p.grad`.", (MEAN, mine)),
        Edit("Each rank divided its own gradient: use Allreduce to add up.", (MEAN, f"{mine} / comm.size")),
        Edit("It is zero on every rank: write the mean into `p.grad`.", (MEAN, f"0 * {mine}")),
        Edit("All ranks have the gradient of rank 0, not the mean.", (MEAN, f"comm.bcast({mine})")),
        Edit("All ranks have the last rank's gradient, not the mean.", (MEAN, f"comm.bcast({mine}, comm.size - 1)")),
    ]


average_gradients = played(
    "average_gradients",
    NOTEBOOK,
    play_average,
    _edits("mine"),
    stuck=STUCK,
    unknown="Allreduce gives every rank the sum over all ranks: divide that by comm.size, and by nothing else.",
)


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


def play_one_message(average: Callable, comm) -> Iterator[tuple]:
    counting = CallCounter(comm)
    yield from _averaging(average, comm, counting)
    messages = counting.calls / 2
    observed = f"they went in {messages:g} messages:"
    yield (
        "all gradients go in one message",
        messages,
        observed,
        "put all gradients into one array first, as with `torch.cat`.",
    )


average_in_one_message = played(
    "average_in_one_message",
    NOTEBOOK,
    play_one_message,
    _edits("flat"),
    stuck=STUCK,
    truncated="the ranks sent arrays of different lengths: put the same parameters into it on every rank.",
    unknown="Copy the parts back in the order in which you put them in, each as long as its parameter.",
)


def image_batch(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images [samples, 1, 28, 28] and labels [samples], the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(samples, 1, 28, 28, generator=generator)
    return images, torch.randint(10, (samples,), generator=generator)


def weights_by_name(model) -> dict[str, np.ndarray]:
    return {name: p.detach().clone().numpy() for name, p in model.named_parameters()}


def _gradients_of(model) -> dict:
    """The gradients by parameter name, with None for a parameter that has no gradient."""
    return {name: None if p.grad is None else p.grad.clone().numpy() for name, p in model.named_parameters()}
