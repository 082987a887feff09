"""Judges the exercises of 15_your_own_script: a converted script by its report, and the faults found in another one."""

import re
import shutil
from collections.abc import Iterator, Set
from pathlib import Path

import torch

from workshop_lib.exercises.judge import Verdict
from workshop_lib.paths import SCRIPTS
from workshop_lib.words import plural

from lessons.your_own_script.report import Examined

ONE_PROCESS = SCRIPTS / "own_script.py"
FINISHED = SCRIPTS / "own_script_ddp.py"
BATCH = 64  # of one process
OF_THE_MACHINE = ("threads", "devices", "straggler")  # checks whose findings may be no fault of the script
# Not tied to a line's ends: two ranks that print at the same moment may share a line.
PRINTED = re.compile(r"epoch \d+: loss [\d.]+, accuracy ([\d.]+)%")

ENDED_HINT = "it has to run to its end on all ranks: the report says where it stopped."
TWICE_HINT = "every rank prints: `if rank == 0:`."
NONE_HINT = "keep the line with `print`, on rank 0."
SHARE_HINT = "an accuracy of {0} % is above 100 %: divide the right answers of all ranks by all test images."
BATCH_HINT = (
    "all ranks together take {0} images per step. This exercise keeps the global batch at 64, and with it the learning "
    "rate: let each rank take `BATCH // size`."
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
    if script.read_text(encoding="utf-8").strip() == ONE_PROCESS.read_text(encoding="utf-8").strip():
        return Verdict("script", to_do="Convert the script")
    return Verdict("script").follow(rules(report, checkpoint, epochs)).recorded()


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
    printed = [float(accuracy) for line in run.last_lines for accuracy in PRINTED.findall(line)]
    hint = TWICE_HINT if len(printed) > epochs else NONE_HINT
    yield "each epoch is printed once", "" if len(printed) == epochs else hint
    best = max(printed)
    yield "no accuracy is above 100 %", "" if best <= 100 else SHARE_HINT.format(best)
    first = run.common_steps[0]
    batch = sum(forward.size for log in run.ranks for forward in log.forwards(first))
    yield f"a step takes {BATCH} images, as in one process", "" if batch == BATCH else BATCH_HINT.format(batch)
    yield "rank 0 saves", "" if checkpoint.exists() else SAVED_HINT
    names = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
    yield "one process can load it", WRAPPED_HINT if any(name.startswith("module.") for name in names) else ""


# What may be wrong with own_script_sick.py: the faults that it has, with how you see each, and some that it hasn't.
GUILTY = {
    "some gradients aren't averaged": "the report says which layer's weights differ. When is that layer unfrozen?",
    "every epoch has the same order": "the report says so.",
    "all ranks draw the same noise": "the report says so, of dropout and of the shifts.",
    "a test image counts twice": "the report says so: look for “padding”.",
    "every rank writes the checkpoint": "the report says so.",
    "the printed loss is rank 0's": "the report can't see it. Which ranks' losses are in `loss_sum` when it's printed?",
}
INNOCENT = {
    "the ranks start with different weights": "DDP sends rank 0's weights when it wraps the network.",
    "the ranks train on the same images": "the report says that they trained on different samples.",
    "the accuracy is rank 0's": "`all_reduce` adds up the right answers of all ranks before anyone divides.",
    "the ranks test with different statistics": "all ranks take rank 0's before they test, and the report agrees.",
    "the learning rate differs between ranks": "all ranks compute it from the same numbers.",
    "a rank takes more steps than the other": "the sampler gives both equally many images, or the run would hang.",
}


def faults(found: Set[object]) -> Verdict:
    """Judge the set of faults that the learner found in own_script_sick.py."""
    verdict = Verdict("faults", to_do="Take out the dots, and what the script doesn't have")
    if ... in found or not found:
        return verdict
    verdict.held = [name for name in GUILTY if name in found]
    unknown = [name for name in found if name not in GUILTY and name not in INNOCENT]
    wrong = [name for name in INNOCENT if name in found]
    missed = [name for name in GUILTY if name not in found]
    verdict.passed = not (unknown or wrong or missed)
    if unknown:
        verdict.failed = f"{unknown[0]!r} isn't in the list"
        verdict.hint = "copy the words of the list."
    elif wrong:
        verdict.failed = f"“{wrong[0]}” is no fault of this script"
        verdict.hint = INNOCENT[wrong[0]]
    elif missed:
        verdict.failed = f"{plural(len(missed), 'fault')} still to find"
        verdict.hint = GUILTY[missed[0]]
    return verdict.recorded()
