"""The names that PyTorch 2.13 gave two collectives, for older versions of PyTorch."""

import torch.distributed as dist

OLDER = {"reduce_scatter_single": "reduce_scatter_tensor", "all_gather_single": "all_gather_into_tensor"}


def give_newer_names() -> None:
    """Let an older PyTorch know its collectives by the newer names, too. The arguments have stayed the same."""
    for newer, older in OLDER.items():
        if not hasattr(dist, newer):
            setattr(dist, newer, getattr(dist, older))
