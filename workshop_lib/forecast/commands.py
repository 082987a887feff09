"""The command `workshop predict`, which 08c_forecasting mentions: a forecast from a machine's numbers."""

import argparse
from pathlib import Path

from rich.console import Console

from workshop_lib.arguments import Parser, whole_numbers
from workshop_lib.errors import InputError
from workshop_lib.machine import catalogue


def predict_arguments(parser: Parser) -> None:
    from workshop_lib.forecast.forecast import BACKENDS

    parser.runs(predict)
    parser.add_argument("model", metavar="MODEL", help="The network's name. An unknown name lists all of them.")
    parser.add_argument(
        "machine", metavar="MACHINE", help="The machine's name, or laptop if you give your own measurements."
    )
    parser.add_argument("--backend", default="ddp", metavar="NAME", help=f"One of {', '.join(BACKENDS)}.")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="Samples per device in each step.")
    parser.add_argument(
        "--global-batch",
        type=int,
        metavar="N",
        help="Samples per step on all devices together, instead of --batch-size.",
    )
    parser.add_argument(
        "--devices", default="", metavar="LIST", help="Numbers of devices, e.g. 1,8,64; 1 to 4096 if not given."
    )
    parser.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="Send gradients during the backward pass, or after it. By default, as the backend does.",
    )
    parser.add_argument(
        "--fusion-mb", type=float, metavar="X", help="Largest fused message in MB; 0 sends each tensor by itself."
    )
    parser.add_argument(
        "--compression",
        type=float,
        default=1.0,
        metavar="X",
        help="Factor by which gradients shrink before they're sent; 2 for 16 bits.",
    )
    parser.add_argument(
        "--network", type=float, default=1.0, metavar="X", help="How many times as fast the network between nodes is."
    )
    parser.add_argument(
        "--samples-per-s",
        type=float,
        metavar="X",
        help="Speed that you measured on one device, instead of the machine's.",
    )
    parser.add_argument("--latency-us", type=float, metavar="X", help="Of a message; laptop only.")
    parser.add_argument("--gb-per-s", type=float, metavar="X", help="Of a message; laptop only.")
    parser.add_argument("--out-dir", metavar="FOLDER", help="Folder for forecast.png.")


def predict(
    model: str,
    machine: str,
    batch_size: int,
    global_batch: int | None,
    devices: str,
    fusion_mb: float | None,
    samples_per_s: float | None,
    latency_us: float | None,
    gb_per_s: float | None,
    out_dir: str | None,
    **how,
) -> None:
    """Forecast step time, efficiency and time to an accuracy from 1 to 4,096 devices."""
    from workshop_lib.forecast import forecast, report

    chosen_model = catalogue.model(model)
    chosen_machine = _machine(machine, latency_us, gb_per_s)
    if samples_per_s is not None:
        chosen_machine = chosen_machine.with_speed(chosen_model, samples_per_s)
    how["message_bytes"] = None if fusion_mb is None else fusion_mb * 2**20
    how["batch_size"] = None if global_batch else batch_size
    # The user's backend, compression, network and overlap are in `how` already.
    settings = forecast.Settings(global_batch=global_batch, **how)
    counts = [n for n in forecast.DEVICES if n <= (global_batch or n)]
    if devices:
        counts = whole_numbers("--devices", devices)
    what = (chosen_model, chosen_machine, settings)
    points = forecast.forecast(*what, counts)
    conditions = report.conditions(*what)
    print(conditions)
    Console().print(report.table(points))
    print(f"\n{report.answer(points)}\n\nOn {counts[-1]:,} devices, with one thing changed:")
    Console().print(report.what_if_table(*what, counts[-1]))
    if out_dir is not None:
        from workshop_lib.forecast import figures as forecasts
        from workshop_lib.notebook.figures import save

        print(f"drawn: {save(forecasts.draw_forecast(points, conditions), Path(out_dir) / 'forecast.png')}")


def _machine(name: str, latency_us: float | None, gb_per_s: float | None) -> catalogue.Machine:
    measured = {"--latency-us": latency_us, "--gb-per-s": gb_per_s}
    if name != catalogue.LAPTOP:
        if given := [option for option, value in measured.items() if value is not None]:
            raise InputError(f"{' and '.join(given)}: only for {catalogue.LAPTOP}; {name} has its own numbers.")
        return catalogue.machine(name)
    if latency_us is None or gb_per_s is None:
        missing = [option for option, value in measured.items() if value is None]
        raise InputError(f"{name} is forecast from what was measured on it: add {' and '.join(missing)}.")
    if gb_per_s <= 0:
        raise InputError(f"--gb-per-s {gb_per_s:g}: give a number above 0.")
    return catalogue.laptop(latency_us * 1e-6, 1e-9 / gb_per_s, {})
