"""`workshop plot`: draw recorded runs. pandas and matplotlib are imported only when the command runs."""

from collections.abc import Callable
from pathlib import Path

from workshop_lib.arguments import Parser
from workshop_lib.cli.terminal import show_error
from workshop_lib.notebook.results import records


def plot_arguments(parser: Parser) -> None:
    parser.runs(plot)
    parser.add_argument("files", nargs="+", metavar="FILE", help="Records (.jsonl), or trainer.py's metrics.jsonl.")
    parser.add_argument("--out-dir", default=".", metavar="FOLDER", help="Folder for the PNG files.")


def plot(files: list[str], out_dir: str) -> int:
    """Draw recorded runs: scaling and accuracy, or the accuracy of emulated workers.

    If no run was on one rank, time to solution is drawn instead of scaling.
    """
    from workshop_lib.notebook.figures import loss, save
    from workshop_lib.notebook.figures.accuracy import accuracy_curve, solution_curve, worker_curve
    from workshop_lib.notebook.figures.scaling import scaling_curve

    if all(loss.is_metrics(path) for path in files):
        print(f"drawn: {save(loss.loss_curve(files), Path(out_dir) / 'loss.png')}")
        return 0
    runs = [record for record in records.read(files) if record["kind"] == "train"]
    drawn = False
    curves: dict[str, Callable] = {"scaling": scaling_curve, "accuracy": accuracy_curve}
    if any(record["what"].get("emulate_workers") for record in runs):
        curves = {"workers": worker_curve}
    elif not any(record["what"]["world_size"] == 1 for record in runs):
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
