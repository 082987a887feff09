"""`workshop train` and `workshop sweep`: train on ranks, and keep the records."""

import argparse
import contextlib
import functools
import sys
import time
import typing
from collections.abc import Collection, Mapping
from dataclasses import fields

from rich.console import Console

from workshop_lib import ranks as teams
from workshop_lib.arguments import BIND, Parser, whole_numbers
from workshop_lib.cli.terminal import INTERRUPTED, Interrupt, OfTeam, OfThisRank, show_error
from workshop_lib.errors import InputError, WorkshopError
from workshop_lib.machine import environment
from workshop_lib.machine.world import detect
from workshop_lib.notebook.results import records
from workshop_lib.notebook.results import sweep as sweeps
from workshop_lib.training import backends as registry
from workshop_lib.training.options import EMULATED, TrainOptions

RANK_0_FIRST_S = 1.0
METAVARS = {int: "N", float: "X", str: "NAME"}
# How ranks are started and waited for, unless something else was typed.
THREADS = 1
TIMEOUT_S = 3600.0


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
    """Start ranks and return their team, with `interrupt` armed to stop their training runs."""
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


def add_train_options(parser: Parser, without: Collection[str] = ()) -> None:
    """Add an option for each field of TrainOptions, except for `without`."""
    parser.usage = "%(prog)s [options]"
    group = parser.add_argument_group("options of the training")
    for each in fields(TrainOptions):
        if each.name in without:
            continue
        rule = each.metadata["rule"]
        flag = f"--{each.name.replace('_', '-')}"
        choices = f": {', '.join(map(str, rule.choices))}" if rule.choices else ""
        text = f"{rule.help}{choices}."
        kind, *_ = typing.get_args(each.type) or (each.type,)  # `int | None` gives int and NoneType
        if kind is not bool:
            metavar = METAVARS[kind] if rule.choices or kind is not str else "PATH"
            group.add_argument(flag, type=kind, default=each.default, metavar=metavar, help=text)
        elif each.default is not False:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=each.default, help=text)
        else:
            group.add_argument(flag, action="store_true", help=text)


def add_rank_options(parser: Parser) -> None:
    """Add the options of ranks that a command starts. The command gets those that were typed, and no others."""
    options: list[tuple] = [
        ("threads", int, THREADS, "Threads per rank."),
        ("bind", str, BIND, "Bind ranks to cores: none or core."),
        ("timeout", float, TIMEOUT_S, "End ranks that hang after this many seconds."),
    ]
    for name, kind, default, text in options:
        text = f"{text} (default: {default})"
        parser.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS, metavar=METAVARS[kind], help=text)
