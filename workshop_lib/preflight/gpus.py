"""What a pre-flight check asks a rank's device: its name, and which one it is."""

import os

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
