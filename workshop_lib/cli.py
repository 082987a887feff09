"""The command line: `python -m workshop_lib …`, also installed as `workshop`."""

import contextlib
import sys
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from workshop_lib import cli_options as of
from workshop_lib import engines_command
from workshop_lib.paths import ROOT
from workshop_lib.predict_command import predict
from workshop_lib.training.options import TrainOptions

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


@contextlib.contextmanager
def _clear_errors():
    """End with one sentence and exit code 1 for what a user can put right."""
    try:
        yield
    except OSError as error:
        _end(str(error))
    except (ValueError, RuntimeError) as error:
        if not _is_a_sentence(error):
            raise
        _end(str(error))


def _is_a_sentence(error: Exception) -> bool:
    """Whether this library raised it on purpose: an error from inside torch or numpy keeps its traceback."""
    if type(error).__module__.startswith("workshop_lib"):
        return True
    # What compiled code raises has the frame of its caller, perhaps one of ours, so the line decides.
    place = traceback.extract_tb(error.__traceback__)[-1]
    ours = Path(place.filename).resolve().is_relative_to(ROOT / "workshop_lib")
    return ours and place.line.startswith("raise ")


def _end(message: str, code: int = 1):
    print(f"workshop: {message}", file=sys.stderr)
    raise typer.Exit(code)


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False) -> None:
    """Look at this machine: what works, what does not, and what to do about it."""
    from workshop_lib import doctor as doctor_module

    raise typer.Exit(doctor_module.main(json))


@app.command()
def train(
    context: typer.Context,
    ranks: Annotated[int | None, typer.Option(help="Start this many ranks; without it, be one.")] = None,
    backend: of.Backend = TrainOptions.backend,
    zero_stage: of.ZeroStage = TrainOptions.zero_stage,
    network: of.Network = TrainOptions.network,
    precision: of.Precision = TrainOptions.precision,
    epochs: of.Epochs = TrainOptions.epochs,
    batch_size: of.BatchSize = TrainOptions.batch_size,
    lr: of.LearningRate = TrainOptions.lr,
    lr_scaling: of.LrScaling = TrainOptions.lr_scaling,
    warmup: of.Warmup = TrainOptions.warmup,
    warmup_epochs: of.WarmupEpochs = TrainOptions.warmup_epochs,
    decay: of.Decay = TrainOptions.decay,
    optimizer: of.Optimizer = TrainOptions.optimizer,
    momentum: of.Momentum = None,
    nesterov: of.Nesterov = TrainOptions.nesterov,
    device: of.Device = TrainOptions.device,
    seed: of.Seed = TrainOptions.seed,
    data_dir: of.DataDir = None,
    train_samples: of.TrainSamples = None,
    emulate_workers: of.EmulateWorkers = None,
    max_steps: Annotated[int | None, typer.Option(help="End after so many steps.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="File to write after each epoch.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint.")] = False,
    threads: of.Threads = 1,
    bind: of.Bind = "none",
    timeout: of.Timeout = 3600.0,
    out: Annotated[str | None, typer.Option(help="Append the run record to this .jsonl file.")] = None,
) -> None:
    """Train MNIST on MPI ranks: as one of them under mpiexec, srun or torchrun, or starting them."""
    given = {name: value for name, value in locals().items() if name in _option_names()}
    if ranks is None:
        _refuse_what_needs_ranks(context)
        _train_as_one_rank(given, out)
        return
    with _clear_errors():
        options = TrainOptions(**given)
        with _team(ranks, threads, bind) as team:
            _report(team.train(options, timeout=timeout), out)


def _option_names() -> set[str]:
    return {field.name for field in fields(TrainOptions)}


def _refuse_what_needs_ranks(context: typer.Context) -> None:
    names = ("threads", "bind", "timeout")
    given = [f"--{name}" for name in names if context.get_parameter_source(name).name != "DEFAULT"]
    if given:
        _end(
            f"{' and '.join(given)}: only for ranks that are started here, so add --ranks N. Without it this "
            "process is one rank; its threads are set by OMP_NUM_THREADS, the rest by what started it.",
            code=2,
        )


def _train_as_one_rank(given: dict, out: str | None) -> None:
    """Be one rank. An error on any rank ends them all: the others would wait for this one for ever."""
    from workshop_lib.training.trainer import train as train_as_rank
    from workshop_lib.training.world import detect

    try:
        with _clear_errors():
            options = TrainOptions(**given)
            world = detect()
            with contextlib.closing(_Terminal()) as terminal:
                record = train_as_rank(options, callbacks=[terminal] if world.rank == 0 else [])
            if world.rank == 0:
                _report(record, out)
    except BaseException as error:
        MPI = getattr(sys.modules.get("mpi4py"), "MPI", None)
        if MPI is None or not MPI.Is_initialized() or MPI.COMM_WORLD.size == 1:
            raise
        if not isinstance(error, typer.Exit):
            sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(getattr(error, "exit_code", 1) or 1)


class _Terminal:
    """Callbacks that print progress from rank 0."""

    def __init__(self):
        from workshop_lib.ranks.progress import TextView

        self.view, self.lead = TextView(1), {"epochs": []}

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


@contextlib.contextmanager
def _team(n: int, threads: int, bind: str):
    from workshop_lib import ranks

    try:
        yield ranks.start(n, threads_per_rank=threads, bind=bind)
    finally:
        ranks.stop()


def _report(record: dict, out: str | None) -> None:
    from workshop_lib.scaling import records
    from workshop_lib.scaling.sweep import result_line

    if out is not None:
        records.write(out, record)
    print(result_line(record))


@app.command()
def sweep(
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, e.g. 1,2,4.")] = "1,2",
    backends: Annotated[str, typer.Option(help="all, or names separated by commas.")] = "all",
    zero_stages: Annotated[str, typer.Option(help="Of deepspeed, separated by commas.")] = "0,1,2,3",
    emulate_workers: Annotated[
        str | None, typer.Option(help="Numbers of workers to do the arithmetic of, e.g. 1,8,64.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each point.")] = 1,
    network: of.Network = TrainOptions.network,
    epochs: of.Epochs = TrainOptions.epochs,
    batch_size: of.BatchSize = TrainOptions.batch_size,
    lr: of.LearningRate = TrainOptions.lr,
    lr_scaling: of.LrScaling = TrainOptions.lr_scaling,
    warmup: of.Warmup = TrainOptions.warmup,
    warmup_epochs: of.WarmupEpochs = TrainOptions.warmup_epochs,
    decay: of.Decay = TrainOptions.decay,
    optimizer: of.Optimizer = TrainOptions.optimizer,
    momentum: of.Momentum = None,
    nesterov: of.Nesterov = TrainOptions.nesterov,
    device: of.Device = TrainOptions.device,
    seed: of.Seed = TrainOptions.seed,
    data_dir: of.DataDir = None,
    train_samples: of.TrainSamples = None,
    threads: of.Threads = 1,
    bind: of.Bind = "none",
    timeout: of.Timeout = 3600.0,
    out: Annotated[str, typer.Option(help="Append the run records to this .jsonl file.")] = "sweep.jsonl",
) -> None:
    """Train with each backend on each number of ranks, and print what scales."""
    common = {name: value for name, value in locals().items() if name in _option_names()}
    del common["emulate_workers"]
    with _clear_errors():
        from rich.console import Console

        from workshop_lib import ranks as ranks_module
        from workshop_lib.scaling import curves, records
        from workshop_lib.scaling.sweep import sweep as run_sweep

        counts = of.counts("--ranks", ranks)
        stages = {"deepspeed": of.counts("--zero-stages", zero_stages, at_least=0)}
        workers = [None] if emulate_workers is None else of.counts("--emulate-workers", emulate_workers)
        options = [
            TrainOptions(backend=name, zero_stage=stage, emulate_workers=number, **common)
            for name in _backends(backends)
            for stage in stages.get(name, [None])
            for number in workers
        ]
        done = []
        try:
            start = lambda n: ranks_module.start(n, threads_per_rank=threads, bind=bind)  # noqa: E731
            of_speed = workers == [None]  # else it is about accuracy
            for record in run_sweep(start, counts, options, repeats, timeout, compare=of_speed, restart=True):
                records.write(out, record)
                done.append(record)
        finally:
            ranks_module.stop()
        if of_speed:
            Console().print(curves.summary(done))
        print(f"records: {out}")


def _backends(text: str) -> list[str]:
    from workshop_lib.training import backends

    return backends.available() if text == "all" else text.split(",")


@app.command()
def plot(
    files: Annotated[list[str], typer.Argument(help="Record files (.jsonl).")],
    out_dir: Annotated[str, typer.Option(help="Folder for the PNG files.")] = ".",
) -> None:
    """Draw recorded runs: scaling and accuracy, what emulated workers came to, or steps to target."""
    drawn = []
    with _clear_errors():
        from workshop_lib.notebook import plots
        from workshop_lib.notebook.worker_curve import worker_curve
        from workshop_lib.scaling import records

        found = records.read(files)
        curves = {"scaling": plots.scaling_curve, "accuracy": plots.accuracy_curve}
        if any(record["what"].get("emulate_workers") for record in found if "what" in record):
            curves = {"workers": worker_curve}
        elif any(record.get("kind") == "steps_to_target" for record in found):
            from workshop_lib.notebook.limits import target_curve  # and with it PyTorch

            curves = {"steps_to_target": target_curve}
        for name, draw in curves.items():
            try:
                figure = draw(found)
            except records.RecordError as error:
                print(f"workshop: no {name} curve: {error}", file=sys.stderr)
                continue
            drawn.append(plots.save(figure, Path(out_dir) / f"{name}.png"))
            print(f"drawn: {drawn[-1]}")
    if not drawn:
        raise typer.Exit(1)


app.command()(_clear_errors()(predict))


engines = typer.Typer(no_args_is_help=True, help="Ranks that a job holds for notebooks to attach to.")
app.add_typer(engines, name="engines")
engines.command()(_clear_errors()(engines_command.start))
engines.command()(_clear_errors()(engines_command.stop))


def main() -> None:
    app()
