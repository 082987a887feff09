"""A recipe that the learner finds for 128 workers in 07_large_batch: it is trained with, and judged by its result."""

from collections.abc import Mapping
from typing import Any

from workshop_lib.errors import InputError
from workshop_lib.exercises.judge import Verdict
from workshop_lib.notebook.profile import Profile
from workshop_lib.training.options import TrainOptions

WORKERS = 128
# What the exercise leaves as it is.
FIXED: dict[str, Any] = {"network": "classic", "emulate_workers": WORKERS, "lr_scaling": "none"}
MAY_CHANGE = ("lr", "momentum", "nesterov", "decay", "warmup_epochs", "optimizer", "weight_decay")
EPOCHS = 4
NEEDED = 0.93
# With the profile "quick", there are 16 steps.
QUICK_EPOCHS = 2
QUICK_NEEDED = 0.7


def train(team, recipe: Mapping[str, Any], sizes: Profile) -> dict | None:
    """Train as 128 workers on all images with these options; returns the record, None if nothing can be trained yet."""
    if _open(recipe) or _refused(recipe, sizes):
        return None
    return team.train(_options(recipe, sizes), timeout=10 * sizes.timeout_s)


def judge(recipe: Mapping[str, Any], record: Mapping | None, sizes: Profile) -> Verdict:
    """The verdict on a recipe, given the record of its run."""
    needed = QUICK_NEEDED if sizes.name == "quick" else NEEDED
    verdict = Verdict("recipe", to_do="Replace the dots, and train again")
    if not _open(recipe):
        accuracies = [epoch["test_accuracy"] for epoch in record["epochs"]] if record else []
        text = f"with {WORKERS} workers, {needed:.0%} of the test images are right after {_epochs(sizes)} epochs"
        verdict.follow([(text, _refused(recipe, sizes) or _advice(recipe, accuracies, needed))])
    return verdict.recorded()


def _epochs(sizes: Profile) -> int:
    return QUICK_EPOCHS if sizes.name == "quick" else EPOCHS


def _options(recipe: Mapping[str, Any], sizes: Profile) -> TrainOptions:
    return TrainOptions(**FIXED | {"epochs": _epochs(sizes)} | dict(recipe))


def _open(recipe: Mapping[str, Any]) -> bool:
    return isinstance(recipe, Mapping) and (not recipe or ... in recipe.values())


def _refused(recipe: Any, sizes: Profile) -> str:
    """Why this recipe cannot be tried; an empty string if it can."""
    if not isinstance(recipe, Mapping):
        return "a recipe is a dictionary of options, like {'lr': 0.2, 'warmup_epochs': 1}."
    others = [name for name in recipe if name not in MAY_CHANGE]
    if others:
        return f"{others[0]!r} isn't among the options of this exercise: {', '.join(MAY_CHANGE)}."
    try:
        _options(recipe, sizes)
    except (InputError, TypeError) as error:
        return f"that can't be run: {error}"
    return ""


def _advice(recipe: Mapping[str, Any], accuracies: list[float], needed: float) -> str:
    """What to try next, judged by how the accuracy moved; empty if it ended high enough."""
    if not accuracies:
        return "the run was stopped before its first test. Train again."
    if accuracies[-1] >= needed:
        return ""
    reached = f"{accuracies[-1]:.1%} are right"
    if max(accuracies) < 0.2 or accuracies[-1] < max(accuracies):
        return f"{reached}: its steps are too long. Lower the peak rate, or let it climb more slowly."
    if recipe.get("momentum", 0.9) < 0.8:
        return f"{reached}: with so few steps, momentum makes up for length. 0.9 adds up about ten gradients."
    if recipe.get("decay", "linear") != "none":
        return f'{reached}: its steps are too short. Raise the peak rate a little, or try "none" as the decay.'
    return f"{reached}: its steps are too short. Raise the peak rate a little."
