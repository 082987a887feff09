"""The command `workshop calibrate`: which share of its peak a device reaches in a script's training steps.

Forecasts, dry runs and emulated ranks compute times from this share. It's a number of the script's kernels as much as
of the device, so it's measured with the script itself.
"""

import datetime
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workshop_lib.arguments import Parser
from workshop_lib.dryrun.dry_run import LIMIT_S, TORCHRUN, checked, dry_run, read_result, run_to_end
from workshop_lib.errors import InputError
from workshop_lib.machine.catalogue import emulated_machine


@dataclass(frozen=True)
class Calibration:
    """What one device reached in a script's steps."""

    machine: str
    device: str  # the device's name, as PyTorch tells it
    step_s: list[float]  # measured, in the order of the steps
    flops: float  # floating-point operations of a step, counted in a dry run
    peak_flops_per_s: float

    @property
    def median_s(self) -> float:
        return statistics.median(self.step_s)

    @property
    def share(self) -> float:
        return self.flops / (self.median_s * self.peak_flops_per_s)


def calibrate(script, *options, machine: str, timeout_s: float = LIMIT_S) -> Calibration:
    """Run `script` on one device of this host, time its steps, and count a step's operations in a dry run.

    machine: the machine of the table, or the file, whose peak the device has. Raises InputError if the machine has no
    peak, and if the script is missing, raises, or takes longer than `timeout_s` seconds for each of the two runs.
    """
    chosen = emulated_machine(machine)
    peaks = chosen.peak_flops_per_s
    if not peaks:
        raise InputError(f"machine {machine}: it has no peak_flops_per_s, of which a share could be measured.")
    words = checked(script, options, 1, "", 0)
    flops = dry_run(script, *options, world_size=1, timeout_s=timeout_s).flops
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "steps.json"
        timer = [*TORCHRUN, "1", "-m", "workshop_lib.dryrun.step_timer", "--out", str(out)]
        output = run_to_end([*timer, str(script), *words], timeout_s, script)
        found = read_result(out, script, output)
    if "error" in found:
        raise InputError(f"{script} could not be timed: {found['error']}")
    return Calibration(chosen.name, found["device"], found["step_s"], flops, max(peaks.values()))


def calibrate_arguments(parser: Parser) -> None:
    parser.runs(calibrate_command)
    parser.set_defaults(rest=[])  # options that this command doesn't have are passed on to the script
    parser.add_argument("script", metavar="SCRIPT", help="A plain training script that torchrun could start.")
    parser.add_argument("--machine", required=True, metavar="NAME", help="The machine, or file, whose peak to compare.")
    parser.add_argument("--timeout", type=float, default=LIMIT_S, metavar="X", help="Seconds for the script's steps.")


def calibrate_command(script: str, machine: str, timeout: float, rest: list[str]) -> None:
    """Run a training script on one device, and print which share of the peak its steps reach.

    The script really trains for 26 steps, and is then ended. Options that aren't listed below go to the script.
    """
    found = calibrate(script, *rest, machine=machine, timeout_s=timeout)
    fastest_ms, slowest_ms = 1e3 * min(found.step_s), 1e3 * max(found.step_s)
    print(
        f"{script} on one device ({found.device}): {found.flops / 1e12:,.4g} Tflop per step, in "
        f"{1e3 * found.median_s:,.4g} ms (median of {len(found.step_s)} steps, which took {fastest_ms:,.4g} to "
        f"{slowest_ms:,.4g} ms)."
    )
    print(f"That is {found.share:.1%} of {found.peak_flops_per_s / 1e12:,.4g} Tflop/s, the peak of {found.machine}.")
    if found.share > 1:
        raise InputError(f"no device exceeds its peak: is this {found.machine}, and is its peak_flops_per_s right?")
    print("Keep it in the machine's file, as `convolutional` instead if the network is one:\n")
    print(f"[{found.machine}.utilization]")
    print(f"transformer = {found.share:.3g}  # {Path(script).name} on {found.device}, {datetime.date.today()}")
