"""Run on two ranks: scripts that resume, and mesh.py, in one process, so that PyTorch is imported once.

    resume_in_turn.py FOLDER    with MNIST's files in FOLDER/data

Each rank has a folder of its own for checkpoints, FOLDER/0 or FOLDER/1, like nodes whose disks aren't shared. What each
rank prints goes into FOLDER/<rank>.txt.
"""

import contextlib
import os
import runpy
import shutil
import sys
from pathlib import Path
from unittest import mock

import torch
from scripts_in_turn import IMAGES, SCRIPTS, one_process_group

# 12 micro-batches per epoch, and the last of a step is smaller than the others. The gradients are clipped.
REALISTIC = ("--images", 724, "--epochs", 2, "--no-bf16", "--clip", 0.5)


def started(script: str, title: str, *options: object) -> None:
    """Run a script as a program, print its title before, and the sentence of one that ends itself."""
    print(f"--- {title}", flush=True)
    sys.argv = [script, *map(str, options)]
    try:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    except SystemExit as ended:
        print(ended)


def killed_after_one_epoch(copies: list[Path]):
    """Leave the first epoch's checkpoint in these files, as a training that is killed there would."""
    save = torch.save

    def save_and_copy(state, path, **options):
        save(state, path, **options)
        if isinstance(state, dict) and state["epoch"] == 1:
            for copy in copies:
                shutil.copy(path, copy)

    return mock.patch.object(torch, "save", save_and_copy)


def main(place: Path) -> None:
    rank = os.environ["RANK"]
    folder = place / rank
    folder.mkdir()
    sys.path.insert(0, str(SCRIPTS))
    destroy = one_process_group()
    with open(place / f"{rank}.txt", "w") as file, contextlib.redirect_stdout(file):
        data = "--data", place / "data"
        ddp = *data, "--epochs", 2, "--images"
        with killed_after_one_epoch([folder / f"{name}.pt" for name in ("same", "more", "fewer")]):
            started("ddp_resume.py", "whole", *ddp, IMAGES, "--out", folder / "whole.pt")
        started("ddp_resume.py", "same", *ddp, IMAGES, "--out", folder / "same.pt")
        started("ddp_resume.py", "more", *ddp, 2 * IMAGES, "--out", folder / "more.pt")
        started("ddp_resume.py", "fewer", *ddp, IMAGES // 2, "--out", folder / "fewer.pt")
        started("ddp_resume.py", "done", *ddp, IMAGES, "--out", folder / "same.pt")
        diloco = *data, "--images", IMAGES // 2, "--epochs", 2, "--alone", 4, "--out"
        with killed_after_one_epoch([folder / "goes_on.pt"]):
            started("diloco.py", "rounds", *diloco, folder / "rounds.pt")
        started("diloco.py", "goes_on", *diloco, folder / "goes_on.pt")
        elastic = *data, "--batch", 64, "--steps"
        started("elastic.py", "alone", *elastic, 4, "--out", folder / "alone.pt")
        started("elastic.py", "half", *elastic, 2, "--out", folder / "lost.pt")
        started("elastic.py", "lost", *elastic, 4, "--out", folder / "lost.pt")
        if rank == "0":
            torch.save({"model": {}}, folder / "other.pt")
        started("ddp_resume.py", "other", *ddp, IMAGES, "--out", folder / "other.pt")
        realistic = *data, *REALISTIC, "--batch", 32
        with killed_after_one_epoch([folder / "resumed.pt"]):
            started("ddp_realistic.py", "realistic", *realistic, "--out", folder / "realistic.pt")
        started("ddp_realistic.py", "resumed", *realistic, "--out", folder / "resumed.pt")
        quick = *data, "--images", 256, "--epochs", 1, "--out", folder / "quick.pt", "--profile", place / "traces"
        started("ddp_realistic.py", "quick", *quick)
        started("mesh.py", "mesh", "--steps", 5)
        started("mesh.py", "wrong", "--mesh", "1x1")
        started("mesh.py", "heads", "--mesh", "1x2", "--heads", 1)
    destroy()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
