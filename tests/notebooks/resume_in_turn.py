"""Run on two ranks: scripts that resume, and mesh.py, in one process, so that PyTorch is imported once.

    resume_in_turn.py FOLDER    with MNIST's files in FOLDER/data

Checkpoints go into FOLDER/saved, and what each rank prints into FOLDER/<rank>.txt. For one start, rank 1 alone sees a
checkpoint, in FOLDER/1, as on a node whose copy of the file system is behind.
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
from torch.distributed.device_mesh import init_device_mesh

# 12 micro-batches per epoch, and the last of a step is smaller than the others. The gradients are clipped.


def started(script: str, title: str, *options: object) -> None:
    """Run a script as a program, print its title before, and the sentence of one that ends itself."""
    print(f"--- {title}", flush=True)
    sys.argv = [script, *map(str, options)]
    try:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    except SystemExit as ended:
        print(ended)


def killed_after_one_epoch(copies: list[Path]):
    """Leave the first epoch's checkpoint in these files, as a run that is killed there would."""
    save = torch.save

    def save_and_copy(state, path, **options):
        save(state, path, **options)
        if isinstance(state, dict) and state["epoch"] == 1:
            for copy in copies:
                shutil.copy(path, copy)

    return mock.patch.object(torch, "save", save_and_copy)


def shards_in_bf16(out: Path) -> None:
    """Print in which types fsdp2.py computes and keeps weights with --bf16, and which share of them a rank keeps."""
    script = runpy.run_path(str(SCRIPTS / "fsdp2.py"))
    sys.argv = ["fsdp2.py", "--bf16", "--recompute", "--out", str(out)]
    model = script["build"](torch.device("cpu"), script["parse_arguments"]())
    logits = model(torch.zeros(1, 1, 28, 28))
    last = list(model.parameters())[-2]
    print(f"--- bf16\n{logits.dtype} {last.dtype} {last.to_local().nbytes / last.nbytes}", flush=True)


def norm(model) -> torch.Tensor:
    return torch.stack([parameter.grad.full_tensor().norm() for parameter in model.parameters()]).norm()


def clip_on_a_mesh(shape: str) -> None:
    """Print the norm of mesh.py's gradient on a mesh of this shape, before and after clipping at 0.5."""
    script = runpy.run_path(str(SCRIPTS / "mesh.py"))
    sys.argv = ["mesh.py", "--mesh", shape]
    args = script["parse_arguments"]()
    rows, columns = script["mesh_shape"](args, torch.distributed.get_world_size())
    mesh = init_device_mesh("cpu", (rows, columns), mesh_dim_names=("data", "tensor"))
    model = script["build"](args, mesh, torch.device("cpu"))
    tokens = torch.arange(64).reshape(2, 32)  # the same samples on all ranks, so FSDP averages equal gradients
    torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    before = norm(model)
    script["clip"](model.parameters(), 0.5)
    print(f"--- clipped{rows}\n{before:.5f} {norm(model):.5f}", flush=True)


def main(place: Path) -> None:
    rank = os.environ["RANK"]
    folder = place / "saved"
    folder.mkdir(exist_ok=True)
    own = place / rank
    own.mkdir()
    sys.path.insert(0, str(SCRIPTS))
    destroy = one_process_group()
    with open(place / f"{rank}.txt", "w") as file, contextlib.redirect_stdout(file):
        data = "--data", place / "data"
        ddp = *data, "--epochs", 2, "--images"
        with killed_after_one_epoch([folder / f"{name}.pt" for name in ("same", "more", "fewer")]):
            started("ddp_resume.py", "whole", *ddp, IMAGES, "--out", folder / "whole.pt")
        started("ddp_resume.py", "same", *ddp, IMAGES, "--out", folder / "same.pt")
        if rank == "1":
            shutil.copy(folder / "same.pt", own / "behind.pt")
        started("ddp_resume.py", "behind", *data, "--epochs", 1, "--images", IMAGES, "--out", own / "behind.pt")
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
        torch.distributed.barrier()
        print(
            f"--- timeouts\n{torch.distributed.group.WORLD._get_backend(torch.device('cpu')).options._timeout}",
            flush=True,
        )
        with mock.patch.object(shutil, "rmtree"):  # keeps the first epoch's checkpoint
            started("fsdp2.py", "sharded", *ddp, IMAGES, "--out", folder / "sharded")
        shards_in_bf16(folder / "in_bf16")
        started("ddp_resume.py", "other", *ddp, IMAGES, "--out", folder / "other.pt")
        started("mesh.py", "mesh", "--steps", 5)
        for shape in ("1x2", "2x1"):
            clip_on_a_mesh(shape)
        started("mesh.py", "wrong", "--mesh", "1x1")
        started("mesh.py", "heads", "--mesh", "1x2", "--heads", 1)
    destroy()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
