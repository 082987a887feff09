"""Run the searches of 14_hyperparameter_search on its ranks, with a live table of trials."""

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from IPython.display import HTML, DisplayHandle

from workshop_lib.machine.forks import unless_forked
from workshop_lib.paths import BUILD

from lessons.hyperparameter_search.search import Scheduler, Search, search
from lessons.hyperparameter_search.train_trial import TrialResult, test_accuracy

ROWS = 8  # trials in the table: the running ones, and the best of the others
COLUMNS = ["trial", "learning rate", "momentum", "batch", "images", "held out", ""]


def run(
    team, scheduler: Scheduler, budget: int | None = None, together: bool = False, timeout_s: float = 60.0
) -> Search:
    """Search on these ranks until the scheduler has no more jobs, or all trials together have seen `budget` images.

    The trials' weights are kept in a temporary folder, which is deleted together with the Search that is returned.
    Raises the errors of `search`.
    """
    BUILD.mkdir(exist_ok=True)  # on a cluster, all nodes and the notebook share this folder, unlike /tmp
    place = tempfile.mkdtemp(prefix="search-", dir=BUILD)
    delete = unless_forked(shutil.rmtree, place, True)
    live = DisplayHandle()
    live.display(HTML(""))
    try:
        state = search(
            team, scheduler, Path(place), budget, together, timeout_s, lambda state: live.update(drawn(state))
        )
    except BaseException:  # an interrupt, too
        delete()
        raise
    weakref.finalize(state, delete)
    print(in_words(state))
    return state


def in_words(state: Search) -> str:
    numbers = {done.result["trial"] for done in state.done}
    text = f"{len(numbers)} trials, {state.images:,} images, {state.seconds:.0f} s"
    return f"{text}; best held-out accuracy {state.best:.2%}"


def finalists(team, state: Search) -> list[dict]:
    """Return a row for each trial that has seen the most images: trial, train_loss, held_out and test."""
    rows = []
    for result in state.longest():
        number = result["trial"]
        test = team.run(test_accuracy, state.folder, number, show=False)[0]
        rows.append({"trial": number, "train_loss": result["train_loss"], "held_out": result["held_out"], "test": test})
    return rows


def drawn(state: Search) -> HTML:
    """Draw the search so far. Each drawing replaces the one before, and the last one stays in the saved notebook."""
    return HTML(f"{bar(state)}{table(state)}")


def bar(state: Search) -> str:
    if state.budget is None:
        return f"{state.images:,} images, {state.seconds:.0f} s"
    share = min(1.0, state.images / state.budget)
    label = f"{share:.0%} of the budget of {state.budget:,} images, {state.seconds:.0f} s"
    return f'<progress max="1" value="{share:.3f}" style="width: 22em"></progress> {label}'


def table(state: Search) -> str:
    """Return a table of trials: first the running ones, then the others by images seen and held-out accuracy."""
    last = {done.result["trial"]: done.result for done in state.done}
    under_way = {job.trial: (job, rank) for rank, (job, _) in sorted(state.running.items())}
    rows = [
        _row(number, job.setting, f"to {job.images:,}", last.get(number), f"on rank {rank}")
        for number, (job, rank) in under_way.items()
    ]
    others = [result for number, result in last.items() if number not in under_way]
    for each in sorted(others, key=lambda r: (r["images"], r["held_out"]), reverse=True)[: ROWS - len(rows)]:
        note = "diverged" if each["diverged"] else ""
        rows.append(_row(each["trial"], each["setting"], f"{each['images']:,}", each, note))
    hidden = len(last | under_way) - len(rows)
    shown = pd.DataFrame(rows, columns=COLUMNS).to_html(index=False, border=0)
    return shown + (f"<div>and {hidden} more trials</div>" if hidden > 0 else "")


def _row(number: int, setting: Mapping[str, float], images: str, result: TrialResult | None, note: str) -> tuple:
    held_out = f"{result['held_out']:.2%}" if result else ""
    return number, f"{setting['lr']:.2g}", f"{setting['momentum']:g}", f"{setting['batch']:g}", images, held_out, note
