"""Time the optimizer steps of a plain training script on this machine's device, while the script runs.

    python -m workshop_lib.dryrun.step_timer --out FILE SCRIPT …    under torchrun

The script is ended after WARM_UP + STEPS steps. FILE then has the seconds of the last STEPS of them and the device's
name, or the error that ended the script. calibrate.py starts this.
"""

import argparse
import contextlib
import itertools
import json
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from workshop_lib.dryrun.meter import EnoughSteps, ended_itself, run, sentence

WARM_UP = 5  # steps in which kernels are chosen or compiled, and memory is allocated
STEPS = 20


class StepTimer:
    """Reads the clock after each optimizer step, when the device has finished the step."""

    def __init__(self):
        self.clock = None  # no machine is emulated
        self.device = torch.device("cpu")
        self.ended_s: list[float] = []

    @contextlib.contextmanager
    def watching(self):
        hook = register_optimizer_step_post_hook(lambda optimizer, *_: self._step_ended(optimizer))
        try:
            yield
        finally:
            hook.remove()

    def _step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        self.device = optimizer.param_groups[0]["params"][0].device
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        self.ended_s.append(time.perf_counter())
        if len(self.ended_s) > WARM_UP + STEPS:
            raise EnoughSteps

    def step_s(self) -> list[float]:
        """Seconds of each step after the warm-up."""
        return [end - begin for begin, end in itertools.pairwise(self.ended_s[WARM_UP:])]


def timed(script: str, options: list[str]) -> dict:
    timer = StepTimer()
    try:
        run(script, options, timer, None, False)
    except SystemExit as error:
        return {"error": ended_itself(error)}
    except Exception as error:  # a script may raise anything, and whoever calibrates gets to read it
        return {"error": sentence(error, script)}
    if not timer.step_s():
        return {"error": f"it took {len(timer.ended_s)} optimizer steps; a measurement needs more than {WARM_UP + 1}"}
    name = torch.cuda.get_device_name(timer.device) if timer.device.type == "cuda" else timer.device.type
    return {"step_s": timer.step_s(), "device": name}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("script")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")  # an ordinary run of the script shows warnings
    args.out.write_text(json.dumps(timed(args.script, args.options)), encoding="utf-8")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
