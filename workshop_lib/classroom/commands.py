"""The classroom's commands.

`rehearse` and `present`: an instructor's routes. `export-nbgrader`: the exercises as assignments for a grader. The
functions import what they need themselves, because most commands do without it.
"""

import argparse
import subprocess
from pathlib import Path

from workshop_lib.arguments import Parser


def rehearse_arguments(parser: Parser) -> None:
    parser.runs(rehearse)
    parser.add_argument(
        "route", nargs="?", default="", metavar="ROUTE", help="The route's name. Without one, all routes are listed."
    )
    parser.add_argument("--plan", action="store_true", help="Print what to run, without running it.")


def rehearse(route: str, plan: bool) -> int:
    """Run an instructor's route, and print the promised and measured minutes of each step on this machine."""
    from workshop_lib.classroom import routes

    if not route:
        for each in routes.load().values():
            print(f"{each.name:<12} {each.minutes:>4} minutes, {len(each.steps):>2} steps: {each.title}")
        return 0
    chosen = routes.route(route)
    print(f"{chosen.title}: {chosen.minutes} minutes. What to say: {routes.FOLDER / 'steps.md'}\n")
    print(f"begins  promised{'' if plan else '     cells'}  reading and working   step")
    begins = 0  # minutes from the start of the route
    run_s = 0.0
    late = []
    for done in map(routes.Rehearsed, chosen.steps) if plan else routes.rehearse(chosen):
        step = done.step
        work = routes.effort(step).minutes
        clock = f"{begins // 60}:{begins % 60:02}"
        begins += step.minutes
        run_s += done.seconds
        measured = f"{done.seconds / 60:.1f} min" if done.cells else "-"
        cells = "" if plan else f" {measured:>9}"
        over = work + done.seconds / 60 > step.minutes
        if over:
            late.append(step.title)
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
    parser.add_argument(
        "--open",
        action=argparse.BooleanOptionalAction,
        default=True,
        dest="open_lab",
        help="Open JupyterLab on the slides.",
    )


def present(what: str, section: list[str], open_lab: bool) -> int:
    """Write slides from a route's or a notebook's sections, and open them at a projector's size."""
    from workshop_lib.classroom import present as slides

    files = slides.write(what, tuple(section))
    for file in files:
        print(f"slides: {file}", flush=True)
    if not open_lab:
        return 0
    command, env = slides.lab(files[0])
    return subprocess.call(command, env=env)
