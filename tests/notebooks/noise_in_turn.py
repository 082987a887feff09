"""Run on every rank: scripts of notebooks/scripts in turn, with a network that drops units and normalizes batches.

    noise_in_turn.py FOLDER SCRIPT...    with MNIST's files in FOLDER/data

Each script trains for an epoch. FOLDER/<script>.<rank>.json then says how the rank trained and tested: digests of which
units its first batch dropped and of the statistics that it tested with, and the number of batches that it tested.
ddp_resume is also ended in the middle of the epoch and started again, and told to end, on rank 1 alone: "ended with" is
its exit code.
"""

import contextlib
import hashlib
import json
import os
import runpy
import shutil
import signal
import sys
from pathlib import Path
from unittest import mock

import torch
from scripts_in_turn import SCRIPTS, one_process_group, short
from torch import nn

OPTIONS = {
    "ddp_resume": ["--save-every", "3"],
    "fsdp2": ["--recompute", "--accumulate", "2", "--clip", "0.5"],
    "zero_deepspeed": ["--stage", "3"],
}


def noisy_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.MaxPool2d(4), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 10)
    )


def digest(*tensors: torch.Tensor) -> str:
    return hashlib.sha256(b"".join(tensor.float().numpy().tobytes() for tensor in tensors)).hexdigest()


@contextlib.contextmanager
def watched():
    """Within this context, note what dropout drops, and what batch normalization tests with."""
    seen: dict = {"dropped": "", "tested with": "", "batches tested": 0}

    def look(module, inputs, output):
        if isinstance(module, nn.Dropout) and module.training:
            seen["dropped"] = seen["dropped"] or digest(output == 0)
        if isinstance(module, nn.BatchNorm2d) and not module.training:
            seen["tested with"] = digest(module.running_mean, module.running_var)
            seen["batches tested"] += 1

    hook = nn.modules.module.register_module_forward_hook(look)
    try:
        yield seen
    finally:
        hook.remove()


def saved_in_the_epoch(copy: Path):
    """Keep a checkpoint from within the epoch in this file, as a run that is killed there would."""
    save = torch.save

    def save_and_copy(state, path, **options):
        save(state, path, **options)
        if isinstance(state, dict) and state.get("images") and not copy.exists():
            shutil.copy(path, copy)

    return mock.patch.object(torch, "save", save_and_copy)


def start(name: str, folder: Path, *options: str) -> None:
    sys.argv = [name, *short(folder, name), *OPTIONS.get(name, []), *options]
    runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")


def told_to_end(folder: Path) -> int | str | None:
    """The exit code of ddp_resume.py, if rank 1 gets a signal during its third batch."""
    batches = 0

    def count(module, inputs):
        nonlocal batches
        batches += isinstance(module, nn.Linear)
        if batches == 3 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)

    hook = nn.modules.module.register_module_forward_pre_hook(count)
    try:
        start("ddp_resume", folder, "--out", str(folder / "ddp_resume-told.pt"))
    except SystemExit as ended:
        return ended.code
    finally:
        hook.remove()
    return None


def main(folder: Path, names: list[str]) -> None:
    sys.path.insert(0, str(SCRIPTS))
    import mnist_data

    mnist_data.cnn = noisy_network
    destroy = one_process_group() if "RANK" in os.environ else lambda: None
    rank = os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
    again = folder / "ddp_resume-again.pt"
    for name in names:
        with watched() as seen, saved_in_the_epoch(again):
            start(name, folder)
        if name == "ddp_resume":
            seen["ended with"] = told_to_end(folder)
            start(name, folder, "--out", str(again))
        (folder / f"{name}.{rank}.json").write_text(json.dumps(seen))
    destroy()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
