"""Which build of PyTorch this machine should have, and where pip finds it.

On Linux, pip's default is the build for CUDA, with gigabytes of libraries that a machine without an NVIDIA GPU never
uses. So the set-up looks at the GPU's driver and takes the build that fits from PyTorch's own index. If that index
cannot be reached, pip takes the build that it finds, and the set-up goes on.

This module uses only the standard library, because nothing is installed yet.
"""

import http.client
import os
import platform
import re
import subprocess
import sys
import urllib.parse
import urllib.request

INDEXES = "https://download.pytorch.org/whl"
LOOK_LIMIT_S = 6
# The major version of the oldest driver that runs each CUDA, from NVIDIA's table of minor version compatibility.
# PyPI's wheels have been built for CUDA 13 since PyTorch 2.11.
CUDA_13_DRIVER = 580
CUDA_12_DRIVER = 525
CUDA_12_BUILD = "cu126"
# PyTorch's builds for CUDA 13 have no code for older GPUs, such as V100 (7.0) and P100 (6.0), although a new driver may
# still know them.
CUDA_13_CAPABILITY = 7.5


class PytorchBuild:
    """Where PyTorch is installed from, and why.

    index: a package index, or None for the build that pip finds by itself. why: a sentence for the reader.
    with_cuda: whether PyTorch may bring gigabytes of CUDA's libraries.
    """

    def __init__(self, index, why, with_cuda):
        self.index = index
        self.why = why
        self.with_cuda = with_cuda


def choose(version, python, given_index=""):
    """The PytorchBuild for this machine.

    version: the version of PyTorch, such as "2.13.0". python: the version of the interpreter, such as (3, 12).
    given_index: the setting TORCH_INDEX, which overrides everything else: an address, or a build of PyTorch's own
    index, such as "cu126".
    """
    if given_index:
        why = f"PyTorch's build is the one at {given_index}, as TORCH_INDEX says."
        index = given_index if "/" in given_index else INDEXES + "/" + given_index
        return PytorchBuild(index, why, with_cuda=not index.rstrip("/").endswith("cpu"))
    if platform.system() != "Linux":
        why = f"PyTorch's build is the one that pip finds for {platform.system()}."
        return PytorchBuild(None, why, with_cuda=False)
    driver = driver_version()
    major = int(driver.split(".")[0]) if driver else 0
    if major >= CUDA_13_DRIVER:
        oldest = oldest_capability()
        if oldest is None or oldest >= CUDA_13_CAPABILITY:
            why = f"PyTorch's build is the default, for CUDA 13, which the NVIDIA driver {driver} runs."
            return PytorchBuild(None, why, with_cuda=True)
        build = CUDA_12_BUILD
        why = f"a GPU of compute capability {oldest} is too old for CUDA 13, which needs {CUDA_13_CAPABILITY}"
    elif major >= CUDA_12_DRIVER:
        build = CUDA_12_BUILD
        why = f"the NVIDIA driver {driver} is too old for CUDA 13, which needs {CUDA_13_DRIVER}"
    elif driver:
        build = "cpu"
        why = f"the NVIDIA driver {driver} is too old for CUDA 12, which needs {CUDA_12_DRIVER}"
    else:
        build = "cpu"
        why = "no NVIDIA GPU was found"
    index = INDEXES + "/" + build
    problem = missing_from(index, version, build, python)
    if problem:
        why = f"PyTorch's build is the one that pip finds: {why}, but {problem}."
        return PytorchBuild(None, why, with_cuda=True)
    return PytorchBuild(index, f"PyTorch's build is {build}, because {why}.", with_cuda=build != "cpu")


def driver_version():
    """The version of the NVIDIA driver, such as "580.65.06"; None if no GPU answers."""
    text = ""
    try:
        text = ask_nvidia_smi("driver_version")
    except (OSError, subprocess.SubprocessError):
        # Some machines have the driver without its tools.
        if os.path.exists("/dev/nvidiactl") and os.path.exists("/proc/driver/nvidia/version"):
            with open("/proc/driver/nvidia/version", errors="replace") as file:
                text = file.readline()
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return found.group() if found else None


def oldest_capability():
    """The lowest compute capability among the NVIDIA GPUs here, such as 7.0; None if nvidia-smi doesn't tell."""
    try:
        text = ask_nvidia_smi("compute_cap")
    except (OSError, subprocess.SubprocessError):
        return None
    return min(map(float, re.findall(r"^\d+\.\d+$", text, re.MULTILINE)), default=None)


def ask_nvidia_smi(what):
    """What nvidia-smi says, a line for each GPU; empty if it finds none. Raises OSError if it isn't installed."""
    query = ["nvidia-smi", "--query-gpu=" + what, "--format=csv,noheader"]
    ran = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10)
    return ran.stdout.decode(errors="replace") if ran.returncode == 0 else ""


def missing_from(index, version, build, python):
    """Why pip cannot take this wheel from `index`, as half a sentence; empty if it can."""
    try:
        with urllib.request.urlopen(index + "/torch/", timeout=LOOK_LIMIT_S) as page:
            listed = urllib.parse.unquote(page.read().decode(errors="replace"))
    except (OSError, ValueError, http.client.HTTPException) as error:
        if pip_finds(index, version, build, python):
            return ""
        reason = getattr(error, "reason", error)
        return "PyTorch's own index cannot be reached ({})".format(getattr(reason, "strerror", None) or reason)
    tag = "cp{}{}".format(*python)
    name = r"torch-{}\+{}-{}-{}-\w*linux\w*_{}\.whl"
    wheel = name.format(re.escape(version), build, tag, tag, re.escape(platform.machine()))
    if re.search(wheel, listed):
        return ""
    return "its own index has no {} build of PyTorch {} for Python {}.{}".format(build, version, *python)


def pip_finds(index, version, build, python):
    """Whether pip finds this wheel in `index`: its settings may name a proxy or a certificate that urllib ignores."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch", "--index-url", index]
    command += ["--python-version", "{}.{}".format(*python), "--only-binary", ":all:"]
    command += ["--retries", "0", "--timeout", str(LOOK_LIMIT_S)]
    only_there = dict(os.environ, PIP_EXTRA_INDEX_URL=index, PIP_FIND_LINKS=os.devnull)
    try:
        ran = subprocess.run(
            command, env=only_there, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=3 * LOOK_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return f"{version}+{build}" in re.split(r"[\s,]+", ran.stdout.decode(errors="replace"))
