"""The exercises of 07d_large_batch_optimizers: LARS's rate for each layer, and four rates for Adam."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

from workshop_lib.exercises.judge import Verdict, own_or_solution
from workshop_lib.exercises.play import Edit, played
from workshop_lib.notebook.profile import Profile
from workshop_lib.words import plural

NOTEBOOK = "07d_large_batch_optimizers"
written = partial(own_or_solution, notebook=NOTEBOOK)
TRUST = 0.002
WEIGHT_DECAY = 0.3


def layers() -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Return names, weights and gradients of layers: one has large gradients, and in two of them a norm is zero."""
    random = torch.Generator().manual_seed(3)
    shapes = [(5, 7), (5, 7), (4, 2, 3, 3), (4, 2, 3, 3), (3, 4)]
    *drawn, small = [torch.randn(*shape, generator=random) for shape in shapes]
    return [
        ("a matrix", drawn[0], drawn[1]),
        ("a kernel", drawn[2], 100 * drawn[3]),
        ("gradients of zero", small, torch.zeros(3, 4)),
        ("weights of zero", torch.zeros(3, 4), small),
    ]


def play_layer_rate(layer_rate: Callable, comm) -> Iterator[tuple]:
    for name, weights, gradient in layers():
        rate = layer_rate(weights.clone(), gradient.clone(), TRUST, WEIGHT_DECAY)
        case = f"with ‖w‖ = {weights.norm():.4g} and ‖∇w‖ = {gradient.norm():.4g}"
        if weights.any() and gradient.any():
            yield f"{name}: trust × ‖w‖ / (‖∇w‖ + β ‖w‖)", rate, case
        else:
            advice = "where one of the norms is zero, return 1, so that the layer moves as in plain SGD."
            yield f"{name}: 1, as there is no ratio", rate, case, advice


BELOW = "(gradient_norm + weight_decay * weights_norm)"
LAYER_RATE = f"trust * weights_norm / {BELOW}"
layer_rate = played(
    "layer_rate",
    NOTEBOOK,
    play_layer_rate,
    [
        Edit("‖w‖ / (‖∇w‖ + β ‖w‖) is right, but multiply it by the trust coefficient.", ("trust * ", "")),
        Edit("you left out the weight decay: it pulls at the weights too, with β ‖w‖.", (BELOW, "gradient_norm")),
        Edit(
            "a pair of parentheses is missing: divide by the whole sum, ‖∇w‖ + β ‖w‖.",
            (LAYER_RATE, "trust * (weights_norm / gradient_norm + weight_decay * weights_norm)"),
        ),
    ],
    returns="the layer's rate",
    communicates=False,
)

NEEDED = 92.0  # % of the test images, with three epochs of all images


def adam_rates(rates: Sequence[float], found: Mapping[float, float], sizes: Profile) -> Verdict:
    """The verdict on four peak rates for Adam. found: the test accuracy in % with each of them."""
    verdict = Verdict("adam_rates", to_do="Replace the dots, and search again")
    if ... not in rates:
        verdict.follow(_rules(rates, found, quick=sizes.name == "quick"))
    return verdict.recorded()


def _rules(rates: Sequence[float], found: Mapping[float, float], quick: bool) -> Iterator[tuple[str, str]]:
    equal = "Adam gets four rates, as many as the others"
    yield equal, "" if len(set(rates)) == len(rates) == 4 else f"you tried {plural(len(set(rates)), 'different rate')}."
    if quick:
        return  # these runs are too short to find a rate
    best = max(found, key=lambda rate: found[rate])
    reached = f"{best:g} is the best of your rates, with {found[best]:.1f} %"
    ends = {min(rates): "lower", max(rates): "higher"}
    beyond = f"{reached}, and the {ends[best]} ones are still untried." if best in ends else ""
    yield "the best rate is neither the lowest nor the highest", beyond
    short = "" if found[best] >= NEEDED else f"{reached}. Try rates around it that are closer together."
    yield f"{NEEDED:g} % of the test images are right with the best rate", short
