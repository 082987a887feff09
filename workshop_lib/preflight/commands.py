"""The command `workshop preflight`."""

import json as as_json
from pathlib import Path

from workshop_lib import ranks as teams
from workshop_lib.arguments import BIND, Parser
from workshop_lib.errors import InputError
from workshop_lib.findings import EXIT_CODES, as_data, show, worst
from workshop_lib.paths import BUILD, IS_CHECKOUT
from workshop_lib.training.options import DEVICES


def preflight_arguments(parser: Parser) -> None:
    parser.runs(preflight)
    parser.add_argument("--ranks", type=int, metavar="N", help="How many ranks; by default as many as fill the job.")
    parser.add_argument("--machine", metavar="NAME", help="Compare with a machine of `workshop predict`.")
    parser.add_argument("--threads", type=int, metavar="N", help="Threads per rank; the job's cores per task, or 1.")
    parser.add_argument("--bind", default=BIND, metavar="NAME", help="Bind ranks to cores: none or core.")
    parser.add_argument("--device", default="auto", metavar="NAME", help=f"{', '.join(DEVICES)}.")
    parser.add_argument(
        "--folder", metavar="FOLDER", help="Where your checkpoints go; by default build/, or the current one."
    )
    parser.add_argument("--out", metavar="FILE", help="Keep the record in this .json file.")
    parser.add_argument("--json", action="store_true", help="Machine-readable output.")


def preflight(
    ranks: int | None,
    machine: str | None,
    threads: int | None,
    bind: str,
    device: str,
    folder: str | None,
    out: str | None,
    json: bool,
) -> int:
    """Look at every rank, device, link and disk of an allocation before a long job. Takes about a minute.

    The exit code is 0 if all is well, 2 if something is worth a look, and 3 if something is wrong.
    """
    from workshop_lib.machine import catalogue
    from workshop_lib.preflight import checks, run

    if device not in DEVICES:
        raise InputError(f"--device {device}: choose one of {', '.join(DEVICES)}.")
    compared_with = catalogue.machine(machine) if machine else None
    place = Path(folder or (BUILD if IS_CHECKOUT else "."))
    if folder and not place.is_dir():
        raise InputError(f"--folder {folder}: there is no such folder.")
    place.mkdir(exist_ok=True)
    if out and not Path(out).absolute().parent.is_dir():
        raise InputError(f"--out {out}: there is no such folder.")
    try:
        team = teams.start(ranks, threads_per_rank=threads, bind=bind)
        report = run.report_of(team, place, device)
    finally:
        teams.stop()
    if out:
        Path(out).write_text(as_json.dumps(report, indent=1) + "\n")
    lines = checks.check(report, compared_with)
    if json:
        print(as_json.dumps({"lines": as_data(lines), "report": report}, indent=1))
    else:
        show(lines)
    return EXIT_CODES[worst(lines)]
