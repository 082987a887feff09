"""What a pre-flight check asks a rank's device: its name, which one it is, and whether PyTorch has code for it."""

import os
import re

import torch


def name_of(device: torch.device) -> str:
    """The model of a GPU, or "cpu"."""
    return "cpu" if device.type == "cpu" else torch.get_device_module(device).get_device_name(device)


def identity(device: torch.device) -> str:
    """What no other device of this host has; empty for a CPU."""
    if device.type == "cpu":
        return ""
    if device.type == "cuda":
        return str(torch.cuda.get_device_properties(device).uuid)
    # Ranks may see different tiles of Intel's GPUs, and then the mask has the tiles' numbers.
    mask = os.environ.get("ZE_AFFINITY_MASK", "")
    visible = mask.split(",") if mask else []
    return visible[device.index] if device.index < len(visible) else str(device.index)


def unfit(device: torch.device) -> str:
    """Why this PyTorch cannot compute on an NVIDIA GPU that it sees; empty if it can, and for other devices."""
    if device.type != "cuda" or torch.version.cuda is None:
        return ""
    capability = torch.cuda.get_device_capability(device)
    built_for = torch.cuda.get_arch_list()
    if not built_for or has_code(capability, built_for):
        return ""
    oldest = min(int(re.sub(r"\D", "", name)) for name in built_for)
    older = 10 * capability[0] + capability[1] < oldest
    return (
        f"{name_of(device)} has compute capability {capability[0]}.{capability[1]}, and this PyTorch "
        f"({torch.__version__}) is built for {', '.join(built_for)}, so it can't compute there: install a build for "
        + ("CUDA 12.6, which `make setup` chooses on such a node." if older else "a newer CUDA.")
    )


def has_code(capability: tuple[int, int], built_for: list[str]) -> bool:
    """Whether a build for these architectures, such as ["sm_80", "compute_90"], runs on a GPU of this capability.

    Machine code (sm) runs on GPUs of the same major version, from its minor version on. Intermediate code (compute)
    runs on all newer GPUs. A name that ends with "a" is for this one capability.
    """
    for name in built_for:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if match is None:
            return True  # nothing is known about such a build
        kind, major, minor, suffix = match.groups()
        version = int(major), int(minor)
        if suffix == "a":
            fits = version == capability
        elif kind == "sm":
            fits = version[0] == capability[0] and version <= capability
        else:
            fits = version <= capability
        if fits:
            return True
    return False
