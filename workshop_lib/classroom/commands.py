"""The classroom's commands.

`workshop assess` and `verify`: a record of what a learner can do, which others can check. `rehearse` and `present`: an
instructor's routes. `export-nbgrader`: the exercises as assignments for a grader. The functions import what they need
themselves, because most commands do without it.
"""

import os
import subprocess
import time
from pathlib import Path
from typing import Annotated

import typer

from workshop_lib import paths
from workshop_lib import ranks as teams
from workshop_lib.errors import InputError

app = typer.Typer()  # cli/commands.py adds this app's commands to `workshop`
NOTEBOOKS = paths.ROOT / "notebooks"
RECORD = paths.LEARNER.with_name("assessment.jsonl")
# Before a rehearsal: how long to watch other programs, and the cores it needs.
LOOK_S = 1.0
ROOM_FOR = 2


@app.command()
def assess(
    ranks: Annotated[int, typer.Option(help="How many, for exercises that take any number.")] = 2,
    learner: Annotated[str, typer.Option(help="A name or nickname to write into the record.")] = "",
    notebooks: Annotated[
        Path, typer.Option(envvar="WORKSHOP_NOTEBOOKS", show_envvar=False, help="The folder with your notebooks.")
    ] = NOTEBOOKS,
    out: Annotated[Path, typer.Option(help="The record, in place of an older one.")] = RECORD,
) -> None:
    """Check once more what you solved of the core path, and write a record that anyone can verify."""
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


@app.command()
def verify(
    record: Annotated[Path, typer.Argument(help="A record that `workshop assess` wrote.")],
    run: Annotated[bool, typer.Option("--run", hidden=True, help="The checks always run, with or without it.")] = False,
) -> None:
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
        raise typer.Exit(1)
    print(f"\n{record}: {len(rows)} exercises solved, by code that passes here, too. This doesn't show who wrote it.")


@app.command()
def rehearse(
    route: Annotated[str, typer.Argument(help="Its name; without one, all of them are listed.")] = "",
    plan: Annotated[bool, typer.Option("--plan", help="Say what to run, without running it.")] = False,
) -> None:
    """Run an instructor's route, and print the promised and measured minutes of each step on this machine."""
    from workshop_lib.classroom import routes
    from workshop_lib.training import load

    if not route:
        for each in routes.load().values():
            print(f"{each.name:<12} {each.minutes:>4} minutes, {len(each.steps):>2} steps: {each.title}")
        return
    chosen = routes.route(route)
    print(f"{chosen.title}: {chosen.minutes} minutes. What to say: {routes.FOLDER / 'steps.md'}\n")
    others = load.Meter()
    time.sleep(0 if plan else LOOK_S)
    if busy := others.warning(ROOM_FOR, "so cells take longer than on a quiet one"):
        print(f"{busy}\n")
    print("begins  promised     cells  reading and working   step")
    begins, run_s, late = 0, 0.0, []
    for done in map(routes.Rehearsed, chosen.steps) if plan else routes.rehearse(chosen):
        step, work = done.step, routes.effort(done.step).minutes
        begins, run_s = begins + step.minutes, run_s + done.seconds
        clock = f"{(begins - step.minutes) // 60}:{(begins - step.minutes) % 60:02}"
        cells = f"{done.seconds / 60:.1f} min" if done.cells else "-"
        over = work + done.seconds / 60 > step.minutes
        late += [step.title] if over else []
        note = " (TOO LONG)" if over else ""
        print(f"{clock:>6} {step.minutes:>5} min {cells:>9} {work:>17} min   {step.title}{note}")
        if step.notebook and plan:
            needed = routes.before(step)
            before = f" (run before: {'; '.join(needed)})" if needed else ""
            print(f"{'':<45} {step.who}, {step.notebook}: {'; '.join(step.sections)}{before}")
        if done.error:
            print(done.error)
            raise typer.Exit(1)
    print(f"{begins // 60:>3}:{begins % 60:02} {chosen.minutes:>5} min {run_s / 60:>5.1f} min")
    if late:
        print(f"Too little time for: {', '.join(late)}.")
        raise typer.Exit(1)


@app.command()
def export_nbgrader(
    notebooks: Annotated[list[str] | None, typer.Argument(help="Names such as 02_synchronous_sgd; none: all.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of a course, which may be there already.")] = Path("course"),
) -> None:
    """Write notebooks as assignments for nbgrader, with our checks as graded cells."""
    from workshop_lib.classroom import grading

    written = grading.export(notebooks or [], out)
    for each in written:
        points = grading.POINTS * len(each.exercises)
        print(f"{each.file}: {points} points, for {', '.join(each.exercises)}")
    print(f"\nNext: cd {out} && nbgrader generate_assignment {written[0].file.stem}")


@app.command()
def present(
    what: Annotated[
        str, typer.Argument(help="A route, such as 45-minutes, or a notebook, such as 02_synchronous_sgd.")
    ],
    section: Annotated[list[str] | None, typer.Option(help="This section of the notebook alone. Repeatable.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Run the slides here and keep what they show.")] = False,
    open_lab: Annotated[bool, typer.Option("--open/--no-open", help="Open JupyterLab on them.")] = True,
) -> None:
    """Write slides from a route's or a notebook's sections, and open them at a projector's size."""
    from workshop_lib.classroom import present as slides

    files = slides.write(what, tuple(section or ()))
    for file in files:
        print(f"slides: {file}", flush=True)
        if record:
            print(f"recorded: {slides.record(file)}", flush=True)
    if open_lab:
        command, env = slides.lab(files[0])
        raise typer.Exit(subprocess.call(command, env=env))


def _printable(text: str) -> str:
    """The text with a "?" for every unprintable character, because such characters can control a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)
