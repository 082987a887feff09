"""The commands. They import slow modules (PyTorch, pandas, drawing) only when they need them."""

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from workshop_lib import ranks as teams
from workshop_lib import rooms
from workshop_lib.cli import doctor as machine
from workshop_lib.cli import engines
from workshop_lib.cli.arguments import (
    BIND,
    THREADS,
    TIMEOUT_S,
    WRONG_USAGE,
    Parser,
    add_rank_options,
    add_train_options,
    first_paragraph,
    whole_numbers,
)
from workshop_lib.cli.terminal import INTERRUPTED, Interrupt, OfTeam, OfThisRank, replace_closed_streams, show_error
from workshop_lib.errors import InputError, WorkshopError
from workshop_lib.machine import catalogue, environment
from workshop_lib.machine.world import detect
from workshop_lib.notebook.results import records
from workshop_lib.notebook.results import sweep as sweeps
from workshop_lib.notebook.results.tables import rich_table
from workshop_lib.training import backends as registry
from workshop_lib.training.options import EMULATED, TrainOptions

HELP = "The workshop's command line: look at this machine, train, measure, draw and forecast."
RANK_0_FIRST_S = 1.0


def main() -> None:
    replace_closed_streams()
    sys.exit(call(sys.argv[1:]))


def call(typed: list[str]) -> int | None:
    """Run the command that was typed, and return its exit code. Errors that the user can fix become one sentence."""
    try:
        code = run(typed)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (WorkshopError, OSError) as error:
        show_error(error)
        return 1
    except KeyboardInterrupt:
        show_error("interrupted.")
        return INTERRUPTED


def run(typed: list[str]) -> int | None:
    names = [*COMMANDS, *rooms.COMMANDS]
    name = typed[0] if typed else ""
    if name in names:
        return parser_of(name).call(typed[1:])
    if name not in ("", "-h", "--help"):
        show_error(f"there is no command {name!r} (see workshop --help)")
        return WRONG_USAGE
    print(f"usage: workshop COMMAND [options]\n\n{HELP}\n`workshop COMMAND --help` lists a command's options.\n")
    commands = Table(box=None, show_header=False)
    for each in names:
        commands.add_row(each, first_paragraph(parser_of(each).description))
    Console(highlight=False).print(commands)
    return 0 if name else WRONG_USAGE


def parser_of(name: str) -> Parser:
    """Return the parser of a command, from this file or from its room."""
    parser = Parser(prog=f"workshop {name}")
    add_arguments = COMMANDS.get(name) or rooms.load(rooms.COMMANDS[name])
    add_arguments(parser)
    return parser


def doctor_arguments(parser: Parser) -> None:
    parser.runs(doctor)
    parser.add_argument("--json", action="store_true", help="Machine-readable output.")


def doctor(json: bool) -> int:
    """Look at this machine: what works, what does not, and what to do about it."""
    return machine.main(json)


def train_arguments(parser: Parser) -> None:
    parser.runs(train)
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="Start this many ranks. Without it, this process is one rank."
    )
    add_rank_options(parser)
    parser.add_argument("--out", metavar="FILE", help="Append the run record to this .jsonl file.")
    add_train_options(parser)


def train(ranks: int | None, out: str | None, **typed) -> None:
    """Train on MNIST with MPI ranks: start them with --ranks, or be one of them under mpiexec, srun or torchrun."""
    of_ranks = {name: typed.pop(name) for name in ("threads", "bind", "timeout") if name in typed}
    if ranks is None and of_ranks:
        names = " and ".join(f"--{name}" for name in of_ranks)
        raise InputError(
            f"{names}: only for ranks that are started here, so add --ranks N. Without it this "
            "process is one rank; its threads are set by OMP_NUM_THREADS, the rest by what started it."
        )
    options = TrainOptions(**typed)
    registry.require(options.backend, options.comm)
    if ranks is None:
        _train_as_one_rank(options, out)
    else:
        _train_on_ranks(options, ranks, out, **of_ranks)


def _train_on_ranks(
    options: TrainOptions,
    ranks: int,
    out: str | None,
    threads: int = THREADS,
    bind: str = BIND,
    timeout: float = TIMEOUT_S,
) -> None:
    _check([ranks], [options], out)
    with contextlib.closing(Interrupt()) as interrupt:
        try:
            team = _start(interrupt, True, ranks, threads_per_rank=threads, bind=bind)
            record = team.train(options, timeout=timeout)
        finally:
            teams.stop()
    _report(record, out)


def _check(counts: list[int], options: list[TrainOptions], out: str | None) -> None:
    """Raise InputError, before any rank starts, for anything that these numbers of ranks could not train."""
    from workshop_lib.cli import checks  # imports NumPy, which a wrong option does without

    for ranks in counts:
        if ranks < 1:
            raise InputError(f"--ranks {ranks}: give a whole number of at least 1.")
        for each in options:
            checks.before_ranks(each, ranks, out)


def _start(interrupt: Interrupt, show: bool, *arguments, **named):
    """Start ranks and return their team, with `interrupt` armed to stop their trainings."""
    team = teams.start(*arguments, **named)
    interrupt.arm()
    team.view = functools.partial(OfTeam, team=team, interrupt=interrupt, show=show)
    return team


def _train_as_one_rank(options: TrainOptions, out: str | None) -> None:
    """Train as one rank. An error on any rank ends all of them, because the others would wait for it forever."""
    environment.clean()  # must come before PyTorch and MPI, which read the environment
    from workshop_lib.training.trainer import train as train_as_rank

    world = None
    try:
        world = detect()
        if world.rank == 0 and out is not None:
            records.require_place(out)
        with contextlib.closing(OfThisRank()) as terminal, contextlib.closing(Interrupt()) as interrupt:
            alone = [interrupt] if world.world_size == 1 else []
            record = train_as_rank(options, callbacks=[terminal, *alone] if world.rank == 0 else [])
        if world.rank == 0:
            _report(record, out)
    except BaseException as error:
        MPI = getattr(sys.modules.get("mpi4py"), "MPI", None)
        if MPI is None or not MPI.Is_initialized() or MPI.COMM_WORLD.size == 1:
            raise
        if isinstance(error, WorkshopError | OSError):
            if world is not None and world.rank > 0:
                time.sleep(RANK_0_FIRST_S)  # an error of all ranks is shown once: rank 0 shows it and ends the others
            show_error(error)
        else:
            sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)


def _report(record: Mapping, out: str | None) -> None:
    """Print a run's result and write its record; end with an error if the run was stopped."""
    print(sweeps.result_line(record), flush=True)
    if out is not None:
        records.write(out, record)
    if record["stopped"]:
        kept = f" Its record in {out} says so." if out is not None else ""
        go_on = " Go on with --resume." if record["what"].get("checkpoint") else ""
        show_error(f"the training was stopped before its end.{kept}{go_on}")
        raise SystemExit(INTERRUPTED)


def sweep_arguments(parser: Parser) -> None:
    parser.runs(sweep)
    parser.add_argument("--ranks", default="1,2", metavar="LIST", help="Numbers of ranks, e.g. 1,2,4.")
    parser.add_argument("--backends", default="all", metavar="LIST", help="all, or names separated by commas.")
    parser.add_argument(
        "--zero-stages", default="0,1,2,3", metavar="LIST", help="ZeRO stages for deepspeed, separated by commas."
    )
    parser.add_argument(
        "--comm",
        default="auto",
        metavar="LIST",
        help=f"What carries the messages of {' and '.join(registry.CHOOSE_TRANSPORT)}: auto, mpi, or both as auto,mpi.",
    )
    parser.add_argument("--emulate-workers", metavar="LIST", help="Numbers of workers to emulate, e.g. 1,8,64.")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="Number of runs per point.")
    parser.add_argument("--brief", action="store_true", help="One line per run, without its epochs.")
    add_rank_options(parser)
    parser.add_argument(
        "--out", default="sweep.jsonl", metavar="FILE", help="Append the run records to this .jsonl file."
    )
    # A sweep has several values of the first four, and the other four are of no use in it.
    several = ("backend", "zero_stage", "comm", "emulate_workers")
    add_train_options(parser, without=(*several, "precision", "max_steps", "checkpoint", "resume"))


def sweep(
    ranks: str,
    backends: str,
    zero_stages: str,
    comm: str,
    emulate_workers: str | None,
    repeats: int,
    brief: bool,
    out: str,
    threads: int = THREADS,
    bind: str = BIND,
    timeout: float = TIMEOUT_S,
    **chosen,
) -> None:
    """Train with each backend on each number of ranks, and print how well each of them scales."""
    counts = whole_numbers("--ranks", ranks)
    stages: list = whole_numbers("--zero-stages", zero_stages, at_least=0)
    workers: list = [None] if emulate_workers is None else whole_numbers("--emulate-workers", emulate_workers)
    machine = chosen["machine"]
    names = registry.available() if backends == "all" else backends.split(",")
    if machine is not None and backends == "all":
        names = list(EMULATED)
    for name in names:
        registry.require(name)
    options = [
        TrainOptions(backend=name, zero_stage=stage, comm=carrier, emulate_workers=number, **chosen)
        for name in names
        for stage in (stages if registry.REGISTRY[name].has_zero_stages else [None])
        for carrier in (comm.split(",") if name in registry.CHOOSE_TRANSPORT else ["auto"])
        for number in workers
    ]
    for each in options:
        registry.require(each.backend, each.comm)
    _check(counts, options, out)

    print(f"Training {repeats * len(counts) * len(options)} times, on {ranks} ranks.", flush=True)
    of_speed = emulate_workers is None  # with emulated workers, the sweep is about accuracy
    compare = of_speed and machine is None  # emulation changes no result
    done = []
    with contextlib.closing(Interrupt()) as interrupt:
        start = functools.partial(_start, interrupt, not brief, threads_per_rank=threads, bind=bind)
        runs = sweeps.sweep(start, counts, options, repeats, timeout, compare=compare, restart=True)
        try:
            for record in runs:
                records.write(out, record)
                done.append(record)
                if interrupt.asked:
                    show_error(f"the sweep was stopped before its end. What it measured is in {out}.")
                    raise SystemExit(INTERRUPTED)
        finally:
            teams.stop()
    if of_speed:
        from workshop_lib.notebook.results import curves

        Console().print(curves.summary(done))
    print(f"records: {out}")


def plot_arguments(parser: Parser) -> None:
    parser.runs(plot)
    parser.add_argument("files", nargs="+", metavar="FILE", help="Records (.jsonl), or trainer.py's metrics.jsonl.")
    parser.add_argument("--out-dir", default=".", metavar="FOLDER", help="Folder for the PNG files.")


def plot(files: list[str], out_dir: str) -> int:
    """Draw recorded runs: scaling and accuracy, the accuracy of emulated workers, or steps to target.

    If no run was on one rank, time to solution is drawn instead of scaling.
    """
    from workshop_lib.notebook.figures import loss, save
    from workshop_lib.notebook.figures.accuracy import accuracy_curve, solution_curve, worker_curve
    from workshop_lib.notebook.figures.scaling import scaling_curve

    if all(loss.is_metrics(path) for path in files):
        print(f"drawn: {save(loss.loss_curve(files), Path(out_dir) / 'loss.png')}")
        return 0
    runs = records.read(files)
    drawn = False
    curves: dict[str, Callable] = {"scaling": scaling_curve, "accuracy": accuracy_curve}
    if any(record["what"].get("emulate_workers") for record in runs if "what" in record):
        curves = {"workers": worker_curve}
    elif any(record.get("kind") == "steps_to_target" for record in runs):
        curves = {"steps_to_target": rooms.load(rooms.TARGET_CURVE)}  # loading this curve imports PyTorch
    elif not any(record["what"]["world_size"] == 1 for record in runs if "what" in record):
        curves = {"solution": solution_curve, "accuracy": accuracy_curve}  # a speed-up needs a run on one rank
    for name, draw in curves.items():
        try:
            figure = draw(runs)
        except records.RecordError as error:
            show_error(f"no {name} curve: {error}")
            continue
        print(f"drawn: {save(figure, Path(out_dir) / f'{name}.png')}")
        drawn = True
    return 0 if drawn else 1


def engines_arguments(parser: Parser) -> None:
    parser.description = "Ranks that a job holds for notebooks to attach to."
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    engines.start_arguments(commands.add_parser("start", help=first_paragraph(engines.start.__doc__)))
    engines.stop_arguments(commands.add_parser("stop", help=first_paragraph(engines.stop.__doc__)))


def machines_arguments(parser: Parser) -> None:
    parser.runs(machines)


def machines() -> None:
    """List the machines that ranks can emulate, with their devices and links."""
    table = rich_table("name", "devices\na node", "inside a node", "between nodes", "machine")
    for name, each in catalogue.emulated_machines().items():
        links = [
            f"{link.latency_s * 1e6:g} µs, {1 / link.s_per_byte / 1e9:,.3g} GB/s"
            for link in (each.inside, each.between)
        ]
        if each.devices_a_node == 1:
            links[0] = "–"
        table.add_row(name, str(each.devices_a_node), *links, each.title)
    Console().print(table)
    print("Use one as in: workshop train --ranks 8 --machine a100-ethernet --stands-for resnet-50")
    print("For a machine of your own, give a TOML file, as in: --machine mycluster.toml (book/emulated.md shows one)")


COMMANDS: dict[str, Callable[[Parser], None]] = {
    "doctor": doctor_arguments,
    "train": train_arguments,
    "sweep": sweep_arguments,
    "plot": plot_arguments,
    "engines": engines_arguments,
    "machines": machines_arguments,
}
