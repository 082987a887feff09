"""Judges `resume` of 13b_runs_that_survive, which loads a sharded checkpoint onto another number of ranks."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.tensor import DTensor

from workshop_lib.exercises.play import Edit, played
from workshop_lib.words import plural

from lessons.runs_that_survive import resharded
from lessons.zero_and_fsdp import by_hand

NOTEBOOK = "13b_runs_that_survive"
WRITERS = 2  # ranks that save
SAVED_STEP = 3


def get_ready() -> None:
    """Join the process group, and create an optimizer, because a process's first one loads much of PyTorch."""
    by_hand.join()
    torch.optim.AdamW([torch.zeros(1)])


def whole(model: torch.nn.Module) -> torch.Tensor:
    """All weights of a sharded network. All ranks that share it call this."""
    return torch.cat([cast(DTensor, p).full_tensor().detach().flatten() for p in model.parameters()])


def save(place: Path, mesh) -> None:
    """Train on the ranks of the mesh, and save what the notebook's cell saves."""
    model, optimizer = resharded.start(mesh)
    resharded.train(model, optimizer, mesh, 0, SAVED_STEP)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": SAVED_STEP}
    dcp.save(state, checkpoint_id=place, process_group=mesh.get_group())


def play_resume(resume: Callable, comm) -> Iterator[tuple]:
    """Save on two ranks, and continue on all of them and on one."""
    place = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))
    try:
        mesh = resharded.mesh_of_first(WRITERS)
        if comm.rank < WRITERS:
            save(place, mesh)
        comm.Barrier()
        for readers in (comm.size, 1):
            mesh = resharded.mesh_of_first(readers)
            step = weights = after = None
            if comm.rank < readers:
                model, optimizer = resharded.start(mesh)
                step = resume(place, model, optimizer, mesh.get_group())
                weights = whole(model)
                resharded.train(model, optimizer, mesh, SAVED_STEP, SAVED_STEP + 1)
                after = whole(model)
            on = f"on {plural(readers, 'rank')}"
            yield f"{on}, it returns the step", step
            yield f"{on}, the model has the weights of the checkpoint", weights, f"{on}, right after the call"
            yield f"{on}, the next step is that of an uninterrupted run", after, f"{on}, after one more step"
    finally:
        if comm.rank == 0:
            shutil.rmtree(place, ignore_errors=True)


SET = """set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )"""
resume = played(
    "resume",
    NOTEBOOK,
    play_resume,
    [
        Edit(
            "Adam's moments start at zero again. A fresh optimizer has none, so its own `state_dict()` asks for none. "
            "`get_state_dict` creates them first.",
            ("get_state_dict(model, optimizer)", "model.state_dict(), optimizer.state_dict()"),
            (SET, 'optimizer.load_state_dict(state["optimizer"])'),
        ),
        Edit("`dcp.load` puts the saved step into the dictionary: return that.", ('return state["step"]', "return 0")),
    ],
    ready=get_ready,
    watched=False,
    group_of=0,  # its play continues on one rank
    timeout_s=15.0,
    stuck="the ranks outside `group` don't call it, so nobody may wait for them: give `dcp.load` the `process_group`.",
    unknown="does the dictionary that `dcp.load` fills have the same three entries as the one that was saved?",
)
