"""Which device a rank computes on."""

import torch

from workshop_lib.training.world import World


def choose(name: str, world: World) -> torch.device:
    """The device of this rank: "cpu", "cuda", or "auto".

    "auto" takes the GPU numbered local_rank when each rank on this host can have its own, and
    else the CPU. "cuda" shares the GPUs when there are more ranks. Raises ValueError for "cuda"
    where there is none.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cuda" and gpus == 0:
        raise ValueError(
            "device 'cuda': this PyTorch sees no GPU; use device 'cpu', or install a PyTorch "
            "built for your GPU (README)"
        )
    if name == "cpu" or gpus == 0 or (name == "auto" and gpus < world.local_size):
        return torch.device("cpu")
    device = torch.device("cuda", world.local_rank % gpus)
    torch.cuda.set_device(device)
    # Runs are compared to the last bits: no algorithm that varies, no 10-bit mantissa.
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    return device


def keep_freed_memory() -> None:
    """Let the allocator keep what a step frees for the next step.

    glibc gives freed memory back to the system, to be mapped and zeroed again in the next step, until a large
    block has been freed; then it raises its limits (mallopt(3), M_MMAP_THRESHOLD). Freeing one now saves a
    third of the first epoch's time.
    """
    torch.empty(30 * 2**20, dtype=torch.uint8)
