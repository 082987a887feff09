"""The classroom's commands.

`workshop assess` and `verify`: a record of what a learner can do, which others can check. `rehearse` and `present`: an
instructor's routes. `export-nbgrader`: the exercises as assignments for a grader. The functions import what they need
themselves, because most commands do without it.
"""

import argparse
import os
import subprocess
import time
from pathlib import Path

from workshop_lib import paths
from workshop_lib import ranks as teams
from workshop_lib.cli.arguments import Parser
from workshop_lib.errors import InputError

NOTEBOOKS = paths.ROOT / "notebooks"
RECORD = paths.LEARNER.with_name("assessment.jsonl")
# Before a rehearsal: how long to watch other programs, and the cores it needs.
LOOK_S = 1.0
ROOM_FOR = 2


def assess_arguments(parser: Parser) -> None:
    parser.runs(assess)
    parser.add_argument(
        "--ranks", type=int, default=2, metavar="N", help="Number of ranks, for exercises that run on any number."
    )
    parser.add_argument("--learner", default="", metavar="NAME", help="A name or nickname to write into the record.")
    notebooks = Path(os.environ.get("WORKSHOP_NOTEBOOKS", NOTEBOOKS))
    parser.add_argument(
        "--notebooks", type=Path, default=notebooks, metavar="FOLDER", help="The folder with your notebooks."
    )
    parser.add_argument(
        "--out", type=Path, default=RECORD, metavar="FILE", help="Where to write the record. It replaces an older one."
    )


def assess(ranks: int, learner: str, notebooks: Path, out: Path) -> None:
    """Check again what you solved on the core path, and write a record that anyone can verify."""
    from workshop_lib.classroom import assessment

    if ranks not in range(2, assessment.MOST_RANKS + 1):
        raise InputError(f"--ranks {ranks}: give 2 to {assessment.MOST_RANKS}.")
    paths.require_writable(out)
    os.environ.pop("JPY_SESSION_NAME", None)  # even in a notebook, these checks don't count as that notebook's
    rows = []
    try:
        for task, verdict, row in assessment.assess(notebooks, ranks):
            failed = " ".join([verdict.failed, *verdict.details.splitlines()[:1]]) if verdict else ""
            said = f"solved, {assessment.in_words(row)}" if row else "not solved yet"
            _show(task, f"not yet: {failed}" if failed else said)
            rows += [row] if row else []
        if rows:
            assessment.write(out, rows, learner)
    finally:
        teams.stop()
    core = sum(task.core for task in assessment.TASKS)
    solved = sum(row["core"] for row in rows)
    print(
        f"\nSolved: {solved} of {core} core exercises, {len(rows) - solved} of {len(assessment.TASKS) - core} deeper."
    )
    if rows:
        print(f"record: {out}\nAnyone can check it with `workshop verify {os.path.relpath(out)}`.")
    else:
        print("There's no record to write yet. Is your notebook saved?")


def _show(task, text: str) -> None:
    print(f"{task.notebook:<20} {task.name:<23} {'core  ' if task.core else 'deeper'} {text}", flush=True)


def verify_arguments(parser: Parser) -> None:
    parser.runs(verify)
    parser.add_argument("record", type=Path, metavar="RECORD", help="A record that `workshop assess` wrote.")
    parser.add_argument(
        "--run", action="store_true", help=argparse.SUPPRESS
    )  # the checks always run, with or without it


def verify(record: Path, run: bool) -> int:
    """Run the checks of a record on the code in it, which EXECUTES that code on this machine."""
    from workshop_lib.classroom import assessment

    header, rows = assessment.read(record)
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items() if version)
    print(_printable(f"{header['learner'] or 'somebody'}, {header['made']}, with {versions}"))
    if header["checks"] != assessment.checks():
        print("note: the checks of this checkout are not those that it was made with.")
    os.environ.pop("JPY_SESSION_NAME", None)
    failed = 0
    try:
        for task, difference in assessment.rerun(rows):
            _show(task, _printable(difference) or "passes here, too")
            failed += bool(difference)
    finally:
        teams.stop()
    if failed:
        print(f"\n{failed} of {len(rows)} answers don't do what the record says.")
        return 1
    print(f"\n{record}: {len(rows)} exercises solved, by code that passes here, too. This doesn't show who wrote it.")
    return 0


def rehearse_arguments(parser: Parser) -> None:
    parser.runs(rehearse)
    parser.add_argument(
        "route", nargs="?", default="", metavar="ROUTE", help="The route's name. Without one, all routes are listed."
    )
    parser.add_argument("--plan", action="store_true", help="Print what to run, without running it.")


def rehearse(route: str, plan: bool) -> int:
    """Run an instructor's route, and print the promised and measured minutes of each step on this machine."""
    from workshop_lib.classroom import routes
    from workshop_lib.machine import load

    if not route:
        for each in routes.load().values():
            print(f"{each.name:<12} {each.minutes:>4} minutes, {len(each.steps):>2} steps: {each.title}")
        return 0
    chosen = routes.route(route)
    print(f"{chosen.title}: {chosen.minutes} minutes. What to say: {routes.FOLDER / 'steps.md'}\n")
    others = load.Meter()
    time.sleep(0 if plan else LOOK_S)
    if busy := others.warning(ROOM_FOR, "so cells take longer than on a quiet one"):
        print(f"{busy}\n")
    print(f"begins  promised{'' if plan else '     cells'}  reading and working   step")
    begins, run_s, late = 0, 0.0, []
    for done in map(routes.Rehearsed, chosen.steps) if plan else routes.rehearse(chosen):
        step, work = done.step, routes.effort(done.step).minutes
        begins, run_s = begins + step.minutes, run_s + done.seconds
        clock = f"{(begins - step.minutes) // 60}:{(begins - step.minutes) % 60:02}"
        measured = f"{done.seconds / 60:.1f} min" if done.cells else "-"
        cells = "" if plan else f" {measured:>9}"
        over = work + done.seconds / 60 > step.minutes
        late += [step.title] if over else []
        note = " (TOO LONG)" if over else ""
        print(f"{clock:>6} {step.minutes:>5} min{cells} {work:>17} min   {step.title}{note}")
        if step.notebook and plan:
            needed = routes.before(step)
            before = f" (run before: {'; '.join(needed)})" if needed else ""
            print(f"{'':<35} {step.who}, {step.notebook}: {'; '.join(step.sections)}{before}")
        if done.error:
            print(done.error)
            return 1
    cells = "" if plan else f" {run_s / 60:>5.1f} min"
    print(f"{begins // 60:>3}:{begins % 60:02} {begins:>5} min{cells}")
    print(f"{chosen.slack_minutes} of {chosen.minutes} minutes are slack: for what takes longer in the room.")
    if late:
        print(f"Too little time for: {', '.join(late)}.")
        return 1
    return 0


def export_nbgrader_arguments(parser: Parser) -> None:
    parser.runs(export_nbgrader)
    parser.add_argument(
        "notebooks", nargs="*", metavar="NOTEBOOK", help="Names such as 02_synchronous_sgd. Without any, all notebooks."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("course"),
        metavar="FOLDER",
        help="The folder of the course. It may exist already.",
    )


def export_nbgrader(notebooks: list[str], out: Path) -> None:
    """Write notebooks as assignments for nbgrader, with our checks as graded cells."""
    from workshop_lib.classroom import grading

    written = grading.export(notebooks, out)
    for each in written:
        points = grading.POINTS * len(each.exercises)
        print(f"{each.file}: {points} points, for {', '.join(each.exercises)}")
    print(f"\nNext: cd {out} && nbgrader generate_assignment {written[0].file.stem}")


def present_arguments(parser: Parser) -> None:
    parser.runs(present)
    parser.add_argument(
        "what", metavar="WHAT", help="A route, such as 45-minutes, or a notebook, such as 02_synchronous_sgd."
    )
    parser.add_argument(
        "--section",
        action="append",
        default=[],
        metavar="NAME",
        help="Only this section of the notebook. Repeat the option for more.",
    )
    parser.add_argument("--record", action="store_true", help="Run the slides here and keep what they show.")
    parser.add_argument(
        "--open",
        action=argparse.BooleanOptionalAction,
        default=True,
        dest="open_lab",
        help="Open JupyterLab on the slides.",
    )


def present(what: str, section: list[str], record: bool, open_lab: bool) -> int:
    """Write slides from a route's or a notebook's sections, and open them at a projector's size."""
    from workshop_lib.classroom import present as slides

    files = slides.write(what, tuple(section))
    for file in files:
        print(f"slides: {file}", flush=True)
        if record:
            print(f"recorded: {slides.record(file)}", flush=True)
    if not open_lab:
        return 0
    command, env = slides.lab(files[0])
    return subprocess.call(command, env=env)


def _printable(text: str) -> str:
    """The text with a "?" for every unprintable character, because such characters can control a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)
