"""Judges the exercises of 15_your_own_script: two scripts, by what was reported about them and what they printed."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from workshop_lib.examine.observations import Run
from workshop_lib.exercises.judge import Verdict
from workshop_lib.paths import SCRIPTS

from lessons.your_own_script.report import Examined

FINISHED = SCRIPTS / "own_script_ddp.py"
BATCH = 64  # of one process
OF_THE_MACHINE = ("threads", "devices", "straggler")  # checks whose findings may be no fault of the script
# Not tied to a line's ends: two ranks that print at the same moment may share a line.
PRINTED = re.compile(r"epoch \d+: loss ([\d.]+), accuracy ([\d.]+)%")
NEAR = 0.001  # how far a printed loss may be from the right one: losses have three digits

ENDED_HINT = "it has to run to its end on all ranks: the report says where it stopped."
TWICE_HINT = "every rank prints: `if rank == 0:`."
NONE_HINT = "keep the line with `print`, on rank 0."
SHARE_HINT = "an accuracy of {0} % is above 100 %: divide the right answers of all ranks by all test images."
BATCH_HINT = (
    "all ranks together take {0} images per step. This exercise keeps the global batch at 64, and with it the learning "
    "rate: let each rank take `BATCH // size`."
)
LOSS_HINT = (
    "epoch 1 printed a loss of {0:.3f}, and the mean over the steps of all ranks is {1:.3f}. Add up `loss_sum` over "
    "the ranks before one of them prints it, and divide by the steps of all ranks."
)
SAVED_HINT = "rank 0 wrote no checkpoint: keep the line with `torch.save`, inside `if rank == 0:`."
WRAPPED_HINT = (
    "the names begin with `module.`, so `own_script.py` couldn't load them: save the state of the network inside."
)


def to_edit(original: str, name: str) -> Path:
    """The file that the learner edits, in the notebook's folder: a copy of a script, unless it's there already."""
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    shutil.copy(SCRIPTS / "mnist_data.py", path.parent)  # which it imports
    if not path.exists():
        shutil.copy(SCRIPTS / original, path)
    return path.resolve()


def train(script: Path, report: Examined, checkpoint: Path, epochs: int) -> Verdict:
    """Judge the converted script by what `examine` reported about it, and by what it printed and saved."""
    if _is_unchanged(script, "own_script.py"):
        return Verdict("script", to_do="Convert the script")
    return Verdict("script").follow(rules(report, checkpoint, epochs)).recorded()


def repair(script: Path, report: Examined, checkpoint: Path, epochs: int) -> Verdict:
    """Judge the repaired own_script_sick.py in the same way."""
    if _is_unchanged(script, "own_script_sick.py"):
        return Verdict("repaired", to_do="Repair the script")
    return Verdict("repaired").follow(rules(report, checkpoint, epochs)).recorded()


def _is_unchanged(script: Path, original: str) -> bool:
    return script.read_text(encoding="utf-8").strip() == (SCRIPTS / original).read_text(encoding="utf-8").strip()


def own_or_finished(script: Path, report: Examined, checkpoint: Path, epochs: int) -> Path:
    """The learner's script if it is right, and the finished script until then."""
    return FINISHED if any(hint for _, hint in rules(report, checkpoint, epochs)) else script


def rules(report: Examined, checkpoint: Path, epochs: int) -> Iterator[tuple[str, str]]:
    """What must hold, and a hint where it doesn't; in the order in which it's best repaired."""
    run = report.run
    yield "it runs to its end", "" if run.how == "ended" else ENDED_HINT
    for level in ("wrong", "look"):
        found = [each for each in report.findings if each.level == level and each.check not in OF_THE_MACHINE]
        hint = f"{found[0].check}: {found[0].seen}. {found[0].remedy}" if found else ""
        yield f"the report has nothing that is “{level}”", hint
    printed = [match for line in run.last_lines for match in PRINTED.findall(line)]
    hint = TWICE_HINT if len(printed) > epochs else NONE_HINT
    yield "each epoch is printed once", "" if len(printed) == epochs else hint
    best = max(float(accuracy) for _, accuracy in printed)
    yield "no accuracy is above 100 %", "" if best <= 100 else SHARE_HINT.format(best)
    first = run.common_steps[0]
    batch = sum(forward.size for log in run.ranks for forward in log.forwards(first))
    yield f"a step takes {BATCH} images, as in one process", "" if batch == BATCH else BATCH_HINT.format(batch)
    loss = float(printed[0][0])
    right = loss_of_first_epoch(run, epochs)
    hint = "" if right is None or abs(loss - right) <= NEAR else LOSS_HINT.format(loss, right)
    yield "the printed loss is that of all ranks", hint
    yield "rank 0 saves", "" if checkpoint.exists() else SAVED_HINT
    names = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
    yield "one process can load it", WRAPPED_HINT if any(name.startswith("module.") for name in names) else ""


def loss_of_first_epoch(run: Run, epochs: int) -> float | None:
    """The mean of all ranks' losses in the first epoch, from what `examine` saw; None if it didn't see all of them."""
    steps = run.common_steps[: len(run.common_steps) // epochs]
    means = []
    for log in run.ranks:
        for step in steps:
            for loss in log.steps[step].losses:
                if loss.value is not None:
                    means.append(loss.value / loss.count if loss.reduction == "sum" else loss.value)
    return sum(means) / len(means) if len(means) == len(steps) * run.size else None
