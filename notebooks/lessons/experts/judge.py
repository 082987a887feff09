"""How 11d_experts checks its exercises: the router, and the way of tokens to experts on other ranks and back."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played
from workshop_lib.exercises.solutions import Solution
from workshop_lib.training.collectives.counting import CountingComm

from lessons.experts.compare import gradient
from lessons.experts.layer import BatchedExperts, exchange

NOTEBOOK = "11d_experts"
written = partial(own_or_solution, notebook=NOTEBOOK)
EXPERTS = 12  # divides by 2, 3 and 4 ranks
TOKENS = 40
WIDTH = 3
CASES = ((1, 4), (2, 7), (3, 11))  # experts per token, and a capacity that is too small on every rank


def random_probabilities(seed: int, tokens: int, experts: int) -> Tensor:
    scores = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scores.softmax(dim=1)


def play_route(route: Callable, comm) -> Iterator[tuple]:
    cases = [(k, route(random_probabilities(k, 10, 4), k)) for k in (1, 2, 3)]
    for k, (chosen, _, _) in cases:
        yield "`chosen` are the k most probable experts of each token", chosen, f"with k = {k}"
    for k, (_, gates, _) in cases:
        yield "`gates` are their probabilities", gates, f"with k = {k}"
    for k, (chosen, _, slots) in cases:
        taken = {(int(expert), int(slot)) for expert, slot in zip(chosen.flatten(), slots.flatten(), strict=True)}
        taken_twice = chosen.numel() - len(taken)
        observed = f"with k = {k}, {taken_twice} of {chosen.numel()} choices have a slot that is taken already:"
        yield "no two choices of an expert have the same slot", taken_twice, observed, QUEUE
    for k, (_, _, slots) in cases:
        yield "`slots` number the choices of each expert from 0, first choices first", slots, f"with k = {k}", QUEUE


QUEUE = "go through all first choices, token by token, and then through all second ones, and count for each expert."
route = played(
    "route",
    NOTEBOOK,
    play_route,
    [
        Edit(
            "Leave the gates as they are. If they add up to 1, the only gate is always 1 with k = 1, and the router "
            "never gets a gradient.",
            ("return chosen, gates,", "return chosen, gates / gates.sum(dim=1, keepdim=True),"),
        ),
        Edit(
            "Slots begin at 0: count how many choices came *before*, without this one.",
            ("wants.cumsum(dim=0) - wants", "wants.cumsum(dim=0)"),
        ),
        Edit(
            "A token's second choice is in line before the next token's first one. Let all first choices go first, or "
            "second choices take the slots that others want most.",
            ("chosen.T.flatten()", "chosen.flatten()"),
            (".view(k, -1).T", ".view(-1, k)"),
        ),
    ],
    returns="(chosen, gates, slots)",
    communicates=False,
)


def play_through(through_experts: Callable, comm) -> Iterator[tuple]:
    runs = [RoundTrip(through_experts, comm, k, capacity) for k, capacity in CASES]
    for run in runs:
        yield "experts get the tokens that want them", run.arrived, f"{run.case}, what rank {comm.rank}'s experts got"
    for run in runs:
        yield "each token gets the sum of its experts' outputs times their gates", run.outputs, run.case
    for run in runs:
        yield "tokens get their gradient", run.grad_tokens, f"{run.case}, for `tokens`", BACK
    for run in runs:
        yield "gates get their gradient, from which the router learns", run.grad_gates, f"{run.case}, for `gates`", BACK
    for run in runs:
        yield "experts get their gradient", run.grad_experts, f"{run.case}, for the experts' weights", BACK
    for run in runs:
        observed = f"{run.case}, rank {comm.rank} sent {run.bytes_sent} bytes:"
        yield "tokens travel once there and once back", run.bytes_sent, observed, "two exchanges are enough."


BACK = "let autograd see everything: don't detach, and don't turn tensors into arrays."


class RoundTrip:
    """What one call of `through_experts` did on this rank, forward and backward."""

    def __init__(self, through_experts: Callable, comm, k: int, capacity: int):
        self.case = f"with k = {k} and a capacity of {capacity}"
        counting = CountingComm(comm)
        torch.manual_seed(5)
        experts = BatchedExperts(WIDTH, 4 * WIDTH, EXPERTS, counting).double()
        route = Solution(NOTEBOOK, "route").load()  # whatever the learner's does
        chosen, gates, slots = route(random_probabilities(10 * k + comm.rank, TOKENS, EXPERTS), k)
        gates = gates.requires_grad_()
        tokens = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(comm.rank), dtype=torch.float64)
        tokens = tokens.requires_grad_()
        buffer = torch.zeros(comm.size, EXPERTS // comm.size, capacity, WIDTH, dtype=torch.float64)
        self.arrived = torch.zeros_like(buffer)

        def watched(arrived: Tensor) -> Tensor:
            self.arrived = arrived.detach().clone()
            return experts(arrived)

        outputs = through_experts(tokens, (chosen, gates, slots), buffer, watched, partial(exchange, comm=counting))
        self.bytes_sent = counting.bytes_sent
        self.outputs = outputs.detach()
        if outputs.requires_grad:
            outputs.square().sum().backward()
        self.grad_tokens = gradient(tokens)
        self.grad_gates = gradient(gates)
        self.grad_experts = gradient(experts.up)


through_experts = played(
    "through_experts",
    NOTEBOOK,
    play_through,
    [
        Edit(
            "The results never come back: after the experts, call `exchange` again.",
            ("home = exchange(experts(arrived)).flatten(0, 1)", "home = experts(arrived).flatten(0, 1)"),
        ),
        Edit(
            "Multiply each output by its gate.",
            ("home[chosen[kept], slots[kept]] * gates[kept][:, None]", "home[chosen[kept], slots[kept]]"),
        ),
        Edit(
            "A token that goes to several experts gets the *sum* of their outputs. An assignment keeps only one of "
            "them: use `index_add`.",
            (
                "return torch.zeros_like(tokens).index_add(0, token, outputs)",
                "result = torch.zeros_like(tokens)\n    result[token] = outputs\n    return result",
            ),
        ),
    ],
    returns="the outputs of this rank's tokens",
    stuck="some rank waits in an exchange that another rank doesn't call: all ranks exchange twice, tokens or not.",
)
