"""The command `workshop predict`, which 08c_forecasting mentions: a forecast from a machine's numbers."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from workshop_lib.cli import options as of
from workshop_lib.errors import InputError
from workshop_lib.lessons.forecasting import catalogue, forecast, report

app = typer.Typer()  # cli.commands adds its commands to the command line


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="A network; an unknown name is answered with all of them.")],
    machine: Annotated[str, typer.Argument(help="A machine, or laptop with what was measured on it.")],
    backend: Annotated[str, typer.Option(help=f"One of {', '.join(forecast.BACKENDS)}.")] = "ddp",
    batch_size: Annotated[int, typer.Option(help="Samples a device in each step.")] = 32,
    global_batch: Annotated[int | None, typer.Option(help="Of all devices, shared out among them.")] = None,
    devices: Annotated[str, typer.Option(help="Numbers of devices, e.g. 1,8,64; 1 to 4096 if not given.")] = "",
    overlap: Annotated[bool | None, typer.Option(help="Instead of what the backend does.")] = None,
    fusion_mb: Annotated[float | None, typer.Option(help="Fused messages; 0: each tensor its own.")] = None,
    compression: Annotated[float, typer.Option(help="Divides the gradients' bytes; 2 for 16 bits.")] = 1.0,
    network: Annotated[float, typer.Option(help="Times as fast between nodes.")] = 1.0,
    samples_per_s: Annotated[
        float | None, typer.Option(help="Measured on one device, instead of the machine's number.")
    ] = None,
    latency_us: Annotated[float | None, typer.Option(help="Of a message; laptop only.")] = None,
    gb_per_s: Annotated[float | None, typer.Option(help="Of a message; laptop only.")] = None,
    out_dir: Annotated[str | None, typer.Option(help="Folder for forecast.png.")] = None,
) -> None:
    """Forecast step time, efficiency and time to an accuracy from 1 to 4,096 devices."""
    chosen_model = catalogue.model(model)
    chosen_machine = _machine(machine, latency_us, gb_per_s)
    if samples_per_s is not None:
        chosen_machine = chosen_machine.with_speed(chosen_model, samples_per_s)
    settings = forecast.Settings(
        backend,
        batch_size=None if global_batch else batch_size,
        global_batch=global_batch,
        compression=compression,
        network=network,
        message_bytes=None if fusion_mb is None else fusion_mb * 2**20,
        overlap=overlap,
    )
    counts = [n for n in forecast.DEVICES if n <= (global_batch or n)]
    if devices:
        counts = of.whole_numbers("--devices", devices)
    what = (chosen_model, chosen_machine, settings)
    points = forecast.forecast(*what, counts)
    conditions = report.conditions(*what)
    print(conditions)
    Console().print(report.table(points))
    print(f"\n{report.answer(points)}\n\nOn {counts[-1]:,} devices, with one thing changed:")
    Console().print(report.what_if_table(*what, counts[-1]))
    if out_dir is not None:
        from workshop_lib.lessons.forecasting import figures as forecasts
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
