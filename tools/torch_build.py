"""Which build of PyTorch this machine should have.

On Linux, the default is the build for CUDA, with gigabytes of libraries that a machine without an NVIDIA GPU never
uses. So the set-up looks at the GPU's driver and takes the build that fits from PyTorch's own index. uv could choose
(--torch-backend=auto), but it looks at the driver alone: for a V100 under a new driver it takes a build for CUDA 13,
which has no code for it, and under a driver of 2021 it looks for a build that this PyTorch doesn't have.

This module uses only the standard library, because nothing is installed yet.
"""

import os
import platform
import re
import shutil
import subprocess

# The major version of the oldest driver that runs each CUDA, from NVIDIA's table of minor version compatibility.
# PyPI's wheels have been built for CUDA 13 since PyTorch 2.11. They have no code for older GPUs, such as V100 (7.0) and
# P100 (6.0).
CUDA_13_DRIVER = 580
CUDA_13_CAPABILITY = 7.5
CUDA_12_DRIVER = 525
CUDA_12_BUILD = "cu126"


def choose(given=""):
    """The name of the build, or None for the default, and a sentence that says why.

    given: the setting TORCH_INDEX, which overrides everything else: the name of a build, or the address of an index.
    """
    driver = ask_nvidia_smi("driver_version") if shutil.which("nvidia-smi") else loaded_driver()
    capability = ask_nvidia_smi("compute_cap")
    build = None
    if given:
        build = given
        why = "TORCH_INDEX says so"
    elif platform.system() != "Linux":
        why = f"this is {platform.system()}"
    elif driver is None:
        build = "cpu"
        why = "no NVIDIA GPU was found"
    elif driver < CUDA_12_DRIVER:
        build = "cpu"
        why = f"the NVIDIA driver {driver} is too old for CUDA 12, which needs {CUDA_12_DRIVER}"
    elif driver < CUDA_13_DRIVER:
        build = CUDA_12_BUILD
        why = f"the NVIDIA driver {driver} is too old for CUDA 13, which needs {CUDA_13_DRIVER}"
    elif capability is not None and capability < CUDA_13_CAPABILITY:
        build = CUDA_12_BUILD
        why = f"a GPU of compute capability {capability} is too old for CUDA 13, which needs {CUDA_13_CAPABILITY}"
    else:
        why = f"the NVIDIA driver {driver} runs CUDA 13"
    return build, f"PyTorch's build is {build or 'the default'}, because {why}."


def ask_nvidia_smi(what):
    """The smallest number that nvidia-smi gives for the GPUs here, such as 580.65; None if it gives none."""
    query = ["nvidia-smi", "--query-gpu=" + what, "--format=csv,noheader"]
    try:
        text = subprocess.check_output(query, stderr=subprocess.DEVNULL, timeout=10).decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None
    return min(map(float, re.findall(r"^\d+\.\d+", text, re.MULTILINE)), default=None)


def loaded_driver():
    """The version of the driver that the kernel has loaded: some machines have the driver without its tools."""
    if not os.path.exists("/dev/nvidiactl") or not os.path.exists("/proc/driver/nvidia/version"):
        return None
    with open("/proc/driver/nvidia/version", errors="replace") as file:
        found = re.search(r"\b(\d{3,}\.\d+)", file.readline())
    return float(found.group(1)) if found else None
