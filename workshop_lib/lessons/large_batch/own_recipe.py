"""The recipe that the learner finds for 128 workers in 07_large_batch: it is trained with, and judged by its result."""

from collections.abc import Mapping
from typing import Any

from workshop_lib.errors import InputError
from workshop_lib.judge import Verdict
from workshop_lib.notebook.profile import Profile
from workshop_lib.training.options import TrainOptions

WORKERS = 128
# What the exercise leaves as it is.
FIXED: dict[str, Any] = {"network": "classic", "emulate_workers": WORKERS, "lr_scaling": "none"}
MAY_CHANGE = ("lr", "momentum", "nesterov", "decay", "warmup_epochs", "optimizer", "weight_decay")
EPOCHS = 4
NEEDED = 0.8
QUICK_EPOCHS = 2
QUICK_NEEDED = 0.4  # two epochs are 16 steps


def train(team, recipe: Mapping[str, Any], sizes: Profile) -> dict | None:
    """Train as 128 workers on all images with these options; returns the record, None if nothing can be trained yet."""
    if _open(recipe) or _refused(recipe, sizes):
        return None
    return team.train(_options(recipe, sizes), timeout=10 * sizes.timeout_s)


def judge(recipe: Mapping[str, Any], record: Mapping | None, sizes: Profile) -> Verdict:
    """The verdict on a recipe, given the record of its run."""
    return _judged(recipe, record, sizes).recorded()


def _judged(recipe: Mapping[str, Any], record: Mapping | None, sizes: Profile) -> Verdict:
    needed = QUICK_NEEDED if sizes.name == "quick" else NEEDED
    verdict = Verdict("recipe", to_do="Replace the dots, and train again")
    if _open(recipe):
        return verdict
    verdict.passed = False
    verdict.failed = f"with {WORKERS} workers, {needed:.0%} of the test images are right after {_epochs(sizes)} epochs"
    refused = _refused(recipe, sizes)
    if refused:
        verdict.hint = refused
        return verdict
    epochs = record["epochs"] if record else []
    if not epochs:
        verdict.hint = "the run was stopped before its first test. Train again."
        return verdict
    reached = epochs[-1]["test_accuracy"]
    if reached < needed:
        verdict.hint = f"{reached:.1%} are right: {_advice(recipe, [epoch['test_accuracy'] for epoch in epochs])}"
        return verdict
    verdict.failed = ""
    verdict.held.append(f"with {WORKERS} workers, {reached:.1%} of the test images are right")
    verdict.passed = True
    return verdict


def _epochs(sizes: Profile) -> int:
    return QUICK_EPOCHS if sizes.name == "quick" else EPOCHS


def _options(recipe: Mapping[str, Any], sizes: Profile) -> TrainOptions:
    return TrainOptions(**FIXED | {"epochs": _epochs(sizes)} | dict(recipe))


def _open(recipe: Mapping[str, Any]) -> bool:
    return isinstance(recipe, Mapping) and (not recipe or ... in recipe.values())


def _refused(recipe: Any, sizes: Profile) -> str:
    """Why this recipe cannot be tried; an empty string if it can."""
    if not isinstance(recipe, Mapping):
        return "a recipe is a dictionary of options, like {'lr': 0.2, 'momentum': 0.9}."
    others = [name for name in recipe if name not in MAY_CHANGE]
    if others:
        return f"{others[0]!r} isn't among the options of this exercise: {', '.join(MAY_CHANGE)}."
    try:
        _options(recipe, sizes)
    except (InputError, TypeError) as error:
        return f"that can't be run: {error}"
    return ""


def _advice(recipe: Mapping[str, Any], accuracies: list[float]) -> str:
    """What to try next, judged by how the accuracy moved."""
    best = max(accuracies)
    if best < 0.2 or accuracies[-1] < 0.7 * best:
        return "its steps are too long. Lower the peak rate, or let it climb more slowly."
    if recipe.get("momentum", 0.9) < 0.8:
        return "with so few steps, momentum makes up for length: 0.9 adds up about ten gradients."
    return "its steps are too short for so few of them. Raise the peak rate a little."
