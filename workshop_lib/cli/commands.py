"""The commands. They import slow modules (PyTorch, pandas, drawing) only when they need them."""

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer.core import TyperGroup

from workshop_lib import environment, rooms
from workshop_lib import ranks as teams
from workshop_lib.cli import doctor as machine
from workshop_lib.cli import engines
from workshop_lib.cli import options as of
from workshop_lib.cli.terminal import INTERRUPTED, Interrupt, OfTeam, OfThisRank, prepare_output, show_error
from workshop_lib.errors import InputError, WorkshopError
from workshop_lib.results import records
from workshop_lib.results import sweep as sweeps
from workshop_lib.training import backends as registry
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.world import detect

RANK_0_FIRST_S = 1.0


class OneSentence(TyperGroup):
    """A group of commands. Errors that the user can fix are reported in one sentence, with exit code 1."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # Typer then ends quietly: the reader of the output, such as `head`, has seen enough
        except (WorkshopError, OSError) as error:
            show_error(error)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            show_error("interrupted.")
            raise typer.Exit(INTERRUPTED) from None

    def list_commands(self, ctx):
        return [*super().list_commands(ctx), *rooms.COMMANDS]

    def get_command(self, ctx, cmd_name):
        if cmd_name not in rooms.COMMANDS:
            return super().get_command(ctx, cmd_name)
        of_room = typer.main.get_group(rooms.load(rooms.COMMANDS[cmd_name]))
        return of_room.get_command(ctx, cmd_name)


HELP = "The workshop's command line: look at this machine, train, measure, draw and forecast."
app = typer.Typer(cls=OneSentence, add_completion=False, no_args_is_help=True, help=HELP)
engines_app = typer.Typer(no_args_is_help=True, help="Ranks that a job holds for notebooks to attach to.")
app.add_typer(engines_app, name="engines")
engines_app.command()(engines.start)
engines_app.command()(engines.stop)


def main() -> None:
    prepare_output()
    app()


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False) -> None:
    """Look at this machine: what works, what does not, and what to do about it."""
    raise typer.Exit(machine.main(json))


@app.command()
@of.takes_train_options()
def train(
    chosen: dict,
    context: typer.Context,
    ranks: Annotated[int | None, typer.Option(help="Start this many ranks; without it, be one.")] = None,
    threads: of.Threads = 1,
    bind: of.Bind = "none",
    timeout: of.Timeout = 3600.0,
    out: Annotated[str | None, typer.Option(help="Append the run record to this .jsonl file.")] = None,
) -> None:
    """Train on MNIST with MPI ranks: start them with --ranks, or be one of them under mpiexec, srun or torchrun."""
    sources = {f"--{name}": context.get_parameter_source(name) for name in ("threads", "bind", "timeout")}
    typed = [option for option, source in sources.items() if source and source.name != "DEFAULT"]
    if ranks is None and typed:
        raise InputError(
            f"{' and '.join(typed)}: only for ranks that are started here, so add --ranks N. Without it this "
            "process is one rank; its threads are set by OMP_NUM_THREADS, the rest by what started it."
        )
    options = TrainOptions(**chosen)
    registry.require(options.backend, options.comm)
    if ranks is None:
        _train_as_one_rank(options, out)
        return
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
        raise typer.Exit(INTERRUPTED)


@app.command()
@of.takes_train_options(
    "backend", "zero_stage", "comm", "emulate_workers", "precision", "max_steps", "checkpoint", "resume"
)
def sweep(
    chosen: dict,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, e.g. 1,2,4.")] = "1,2",
    backends: Annotated[str, typer.Option(help="all, or names separated by commas.")] = "all",
    zero_stages: Annotated[str, typer.Option(help="Of deepspeed, separated by commas.")] = "0,1,2,3",
    comm: Annotated[
        str,
        typer.Option(help=f"Of {' and '.join(registry.CHOOSE_TRANSPORT)}: auto, mpi, or both, separated by a comma."),
    ] = "auto",
    emulate_workers: Annotated[
        str | None, typer.Option(help="Numbers of workers to do the arithmetic of, e.g. 1,8,64.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each point.")] = 1,
    brief: Annotated[bool, typer.Option("--brief", help="One line per run, without its epochs.")] = False,
    threads: of.Threads = 1,
    bind: of.Bind = "none",
    timeout: of.Timeout = 3600.0,
    out: Annotated[str, typer.Option(help="Append the run records to this .jsonl file.")] = "sweep.jsonl",
) -> None:
    """Train with each backend on each number of ranks, and print how well each of them scales."""
    counts = of.whole_numbers("--ranks", ranks)
    stages: list = of.whole_numbers("--zero-stages", zero_stages, at_least=0)
    workers: list = [None] if emulate_workers is None else of.whole_numbers("--emulate-workers", emulate_workers)
    names = registry.available() if backends == "all" else backends.split(",")
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
    done = []
    with contextlib.closing(Interrupt()) as interrupt:
        start = functools.partial(_start, interrupt, not brief, threads_per_rank=threads, bind=bind)
        runs = sweeps.sweep(start, counts, options, repeats, timeout, compare=of_speed, restart=True)
        try:
            for record in runs:
                records.write(out, record)
                done.append(record)
                if interrupt.asked:
                    show_error(f"the sweep was stopped before its end. What it measured is in {out}.")
                    raise typer.Exit(INTERRUPTED)
        finally:
            teams.stop()
    if of_speed:
        from workshop_lib.results import curves

        Console().print(curves.summary(done))
    print(f"records: {out}")


@app.command()
def plot(
    files: Annotated[list[str], typer.Argument(help="Record files (.jsonl).")],
    out_dir: Annotated[str, typer.Option(help="Folder for the PNG files.")] = ".",
) -> None:
    """Draw recorded runs: scaling and accuracy, the accuracy of emulated workers, or steps to target.

    If no run was on one rank, time to solution is drawn instead of scaling.
    """
    from workshop_lib.notebook.figures import save
    from workshop_lib.notebook.figures.accuracy import accuracy_curve, solution_curve, worker_curve
    from workshop_lib.notebook.figures.scaling import scaling_curve

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
    if not drawn:
        raise typer.Exit(1)
