"""The commands. What is slow to import (PyTorch, pandas, drawing) they import only once they need it."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from workshop_lib import ranks as teams
from workshop_lib.cli import engines
from workshop_lib.cli import options as of
from workshop_lib.cli.predict import predict
from workshop_lib.errors import WorkshopError
from workshop_lib.training import backends as registry
from workshop_lib.training.options import TrainOptions


class OneSentence(TyperGroup):
    """Ends with one sentence and exit code 1 for what a user can put right."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except (WorkshopError, OSError) as error:
            show_error(error)
            raise typer.Exit(1) from None


def show_error(error: Exception | str) -> None:
    print(f"workshop: {error}", file=sys.stderr, flush=True)


HELP = "The workshop's command line: look at this machine, train, measure, draw and forecast."
app = typer.Typer(cls=OneSentence, add_completion=False, no_args_is_help=True, help=HELP)
engines_app = typer.Typer(no_args_is_help=True, help="Ranks that a job holds for notebooks to attach to.")
app.add_typer(engines_app, name="engines")
engines_app.command()(engines.start)
engines_app.command()(engines.stop)
app.command()(predict)


def main() -> None:
    app()


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False) -> None:
    """Look at this machine: what works, what does not, and what to do about it."""
    from workshop_lib.cli.doctor import main as examine_and_show  # with psutil, which training does without

    raise typer.Exit(examine_and_show(json))


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
    """Train MNIST on MPI ranks: as one of them under mpiexec, srun or torchrun, or starting them."""
    if ranks is None:
        _refuse_what_needs_ranks(context)
    options = TrainOptions(**chosen)
    registry.require(options.backend)
    if ranks is None:
        _train_as_one_rank(options, out)
        return
    with _stopping_ranks():
        _report(teams.start(ranks, threads_per_rank=threads, bind=bind).train(options, timeout=timeout), out)


def _refuse_what_needs_ranks(context: typer.Context) -> None:
    names = ("threads", "bind", "timeout")
    sources = {name: context.get_parameter_source(name) for name in names}
    typed = [f"--{name}" for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
    if typed:
        show_error(
            f"{' and '.join(typed)}: only for ranks that are started here, so add --ranks N. Without it this "
            "process is one rank; its threads are set by OMP_NUM_THREADS, the rest by what started it."
        )
        raise typer.Exit(2)


@contextlib.contextmanager
def _stopping_ranks():
    try:
        yield
    finally:
        teams.stop()


def _train_as_one_rank(options: TrainOptions, out: str | None) -> None:
    """Be one rank. An error on any rank ends them all: the others would wait for this one forever."""
    from workshop_lib.training.trainer import train as train_as_rank
    from workshop_lib.training.world import detect

    try:
        world = detect()
        with contextlib.closing(_Terminal()) as terminal:
            record = train_as_rank(options, callbacks=[terminal] if world.rank == 0 else [])
        if world.rank == 0:
            _report(record, out)
    except BaseException as error:
        MPI = getattr(sys.modules.get("mpi4py"), "MPI", None)
        if MPI is None or not MPI.Is_initialized() or MPI.COMM_WORLD.size == 1:
            raise
        if isinstance(error, WorkshopError | OSError):
            show_error(error)
        else:
            sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)


class _Terminal:
    """Callbacks that print progress from rank 0."""

    def __init__(self):
        from workshop_lib.ranks.progress import TextView

        self.view = TextView(1)
        self.lead: Any = {"epochs": []}

    def on_start(self, info):
        self.lead["info"] = info
        self._update()

    def on_step(self, event):
        if event["step"] % 20 == 0 or event["step"] == event["steps_per_epoch"]:
            self.lead["step"] = event
            self._update()

    def on_epoch(self, row):
        self.lead["epochs"].append(row)
        self._update()

    def close(self):
        self.view.close()

    def _update(self):
        self.view.update([self.lead], 0.0, [0])


def _report(record: Mapping, out: str | None) -> None:
    from workshop_lib.scaling import records
    from workshop_lib.scaling.sweep import result_line

    if out is not None:
        records.write(out, record)
    print(result_line(record))


@app.command()
@of.takes_train_options("backend", "zero_stage", "emulate_workers", "precision", "max_steps", "checkpoint", "resume")
def sweep(
    chosen: dict,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, e.g. 1,2,4.")] = "1,2",
    backends: Annotated[str, typer.Option(help="all, or names separated by commas.")] = "all",
    zero_stages: Annotated[str, typer.Option(help="Of deepspeed, separated by commas.")] = "0,1,2,3",
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
    """Train with each backend on each number of ranks, and print what scales."""
    counts = of.whole_numbers("--ranks", ranks)
    stages: dict[str, list] = {"deepspeed": of.whole_numbers("--zero-stages", zero_stages, at_least=0)}
    workers: list = [None]
    if emulate_workers is not None:
        workers = of.whole_numbers("--emulate-workers", emulate_workers)
    options = [
        TrainOptions(backend=name, zero_stage=stage, emulate_workers=number, **chosen)
        for name in (registry.available() if backends == "all" else backends.split(","))
        for stage in stages.get(name, [None])
        for number in workers
    ]
    for each in options:
        registry.require(each.backend)

    from workshop_lib.scaling import records
    from workshop_lib.scaling.sweep import sweep as train_in_turn

    print(f"Training {repeats * len(counts) * len(options)} times, on {ranks} ranks.", flush=True)
    of_speed = emulate_workers is None  # else it is about accuracy
    done = []
    with _stopping_ranks():
        start = lambda n: teams.start(n, threads_per_rank=threads, bind=bind)  # noqa: E731
        for record in train_in_turn(
            start, counts, options, repeats, timeout, show=not brief, compare=of_speed, restart=True
        ):
            records.write(out, record)
            done.append(record)
    if of_speed:
        from rich.console import Console

        from workshop_lib.scaling import curves

        Console().print(curves.summary(done))
    print(f"records: {out}")


@app.command()
def plot(
    files: Annotated[list[str], typer.Argument(help="Record files (.jsonl).")],
    out_dir: Annotated[str, typer.Option(help="Folder for the PNG files.")] = ".",
) -> None:
    """Draw recorded runs: scaling and accuracy, what emulated workers came to, or steps to target."""
    from workshop_lib.notebook.figures import save
    from workshop_lib.notebook.figures.accuracy import accuracy_curve, worker_curve
    from workshop_lib.notebook.figures.scaling import scaling_curve
    from workshop_lib.scaling import records

    runs, drawn = records.read(files), []
    curves: dict[str, Callable] = {"scaling": scaling_curve, "accuracy": accuracy_curve}
    if any(record["what"].get("emulate_workers") for record in runs if "what" in record):
        curves = {"workers": worker_curve}
    elif any(record.get("kind") == "steps_to_target" for record in runs):
        from workshop_lib.notebook.figures.learning import target_curve  # and with it PyTorch

        curves = {"steps_to_target": target_curve}
    for name, draw in curves.items():
        try:
            figure = draw(runs)
        except records.RecordError as error:
            show_error(f"no {name} curve: {error}")
            continue
        drawn.append(save(figure, Path(out_dir) / f"{name}.png"))
        print(f"drawn: {drawn[-1]}")
    if not drawn:
        raise typer.Exit(1)
