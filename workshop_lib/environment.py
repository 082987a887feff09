"""Environment variables and files of other programs that would harm ranks, and what the workshop does about each.

Clusters' modules, batch scripts and other programs set variables that slow ranks down or crash them, and whose cause
nobody sees. TABLE is the one list of them. Whoever starts ranks gives them `for_ranks(…)`; a rank that the user's own
launcher started calls `clean()`. What was done about a variable is in NOTE, and from there in the run record.
"""

import json
import os
import pwd
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from workshop_lib.pinning import give_back_cores

NOTE = "WORKSHOP_NEUTRALIZED"  # a list of sentences, as JSON, in the environment of ranks
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
# Variables that set parameters of the MPI library. A wrong one stops all ranks.
MPI_PREFIXES = ("OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_", "UCX_", "MPICH_", "I_MPI_", "HYDRA_")
KERAS_DEFAULTS = {"floatx": "float32", "backend": "tensorflow", "image_data_format": "channels_last"}


@dataclass(frozen=True)
class Rule:
    """A variable that harms ranks with some values, and what they get instead: None for nothing."""

    variable: str
    harms: Callable[[str], bool]  # given its value
    why: str
    instead: str | None = None
    one_host: bool = False  # whether it harms only ranks that are all on this host
    launchers: bool = False  # whether launchers set it for their ranks, who then need it

    def sentence(self, value: str) -> str:
        """What was done, and why."""
        done = "ignored" if self.instead is None else f"replaced by {self.instead}"
        return f"{self.variable}={value} {done}: {self.why}"


def no_gpu() -> bool:
    """Whether nothing on this host looks like an NVIDIA GPU."""
    return shutil.which("nvidia-smi") is None and not list(Path("/dev").glob("nvidia[0-9]*"))


def is_missing_interface(names: str) -> bool:
    """Whether none of these network interfaces, separated by commas, is on this host."""
    here = {name for _, name in socket.if_nameindex()}
    return here.isdisjoint(name.strip() for name in names.split(","))


def is_one_of(*values: str) -> Callable[[str], bool]:
    """Whether a variable has one of these values, in whichever case."""
    return lambda value: value.lower() in values


def is_none_of(*values: str) -> Callable[[str], bool]:
    """Whether a variable has a different value."""
    return lambda value: value.lower() not in values


PINS = "it pins every rank to the same core"
OVER_MPI = "these ranks talk over MPI, and Horovod would crash"
TABLE = (
    Rule("OMP_PROC_BIND", is_none_of("false"), PINS, "false"),
    Rule("OMP_PLACES", is_none_of(), PINS),
    Rule("GOMP_CPU_AFFINITY", is_none_of(), PINS),
    Rule("KMP_AFFINITY", is_none_of("disabled", "none"), PINS),
    Rule("KERAS_BACKEND", is_none_of("tensorflow"), "Horovod's Keras needs TensorFlow", "tensorflow"),
    Rule("TF_USE_LEGACY_KERAS", is_none_of("", "0", "false"), "the workshop uses Keras 3"),
    Rule("HOROVOD_CONTROLLER", is_none_of("mpi"), OVER_MPI),
    Rule("HOROVOD_CPU_OPERATIONS", is_none_of("mpi"), OVER_MPI),
    Rule("TORCH_DISTRIBUTED_DEBUG", is_one_of("detail"), "DDP crashes with it on a CPU", "INFO"),
    Rule("DS_ACCELERATOR", lambda value: value == "cuda" and no_gpu(), "this host has no GPU", "cpu"),
    Rule("GLOO_SOCKET_IFNAME", is_missing_interface, "this host has no such network interface", one_host=True),
    Rule("GLOO_DEVICE_TRANSPORT", is_none_of("tcp"), "ranks on one host talk over TCP", one_host=True),
    Rule("MASTER_ADDR", is_none_of(*LOOPBACK_NAMES), "the ranks are all on this host", one_host=True, launchers=True),
)
PINNING = tuple(rule.variable for rule in TABLE if rule.why is PINS)


def harmful(environ: Mapping[str, str], one_host: bool, launched: bool) -> list[Rule]:
    """The rules that apply to this environment."""
    found = []
    for rule in TABLE:
        applies = (one_host or not rule.one_host) and not (launched and rule.launchers)
        if applies and rule.variable in environ and rule.harms(environ[rule.variable].strip()):
            found.append(rule)
    return found


def for_ranks(environ: Mapping[str, str], one_host: bool, launched: bool = False) -> dict[str, str]:
    """This environment without what harms ranks, and with a note of what that was.

    one_host: all ranks are on this host. launched: a launcher has set this environment for one rank.
    """
    cleaned = dict(environ)
    for rule in harmful(environ, one_host, launched):
        note(cleaned, rule.sentence(cleaned.pop(rule.variable)))
        if rule.instead is not None:
            cleaned[rule.variable] = rule.instead
    for sentence in keras_notes(environ):
        note(cleaned, sentence)
    cleaned["KERAS_BACKEND"] = "tensorflow"
    if not environ.get("HOME"):
        cleaned["HOME"] = home()
        note(cleaned, f"HOME was not set: the ranks use {cleaned['HOME']}")
    return cleaned


def clean(one_host: bool = False) -> None:
    """Take what harms ranks from this process, which is one; called before it imports a framework."""
    unpin()
    cleaned = for_ranks(os.environ, one_host, launched=True)
    for name in os.environ.keys() - cleaned.keys():
        del os.environ[name]
    os.environ.update(cleaned)


def unpin() -> None:
    """Give this thread back the cores that an OpenMP library took from it, because ranks inherit its cores."""
    note(os.environ, give_back_cores(PINNING))


def note(environ: MutableMapping[str, str], sentence: str) -> None:
    """Add a sentence about what was done to the note in this environment, if it's new there."""
    if sentence and sentence not in (known := notes(environ)):
        environ[NOTE] = json.dumps([*known, sentence])


def notes(environ: Mapping[str, str] = os.environ) -> list[str]:
    """What was done about harmful variables, a sentence for each."""
    try:
        return list(json.loads(environ.get(NOTE, "[]")))
    except (ValueError, TypeError):
        return []


def home() -> str:
    """The user's home folder by the system's list of users, or a temporary folder for somebody who isn't in it."""
    try:
        listed = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return tempfile.gettempdir()
    return listed if os.path.isdir(listed) else tempfile.gettempdir()


def keras_notes(environ: Mapping[str, str]) -> list[str]:
    """What the user's Keras settings would change; ranks never read them (backends/horovod_tf.py)."""
    folder = environ.get("KERAS_HOME") or os.path.join(environ.get("HOME") or home(), ".keras")
    file = Path(folder, "keras.json")
    try:
        settings = KERAS_DEFAULTS | json.loads(file.read_text())
    except (OSError, ValueError, TypeError):
        return []
    changed = [f"{name} {settings[name]}" for name, usual in KERAS_DEFAULTS.items() if settings[name] != usual]
    return [f"{file} ignored: it sets {', '.join(changed)}"] if changed else []


def mpi_variables(environ: Mapping[str, str]) -> list[str]:
    """The variables that set parameters of the MPI library."""
    return sorted(name for name in environ if name.startswith(MPI_PREFIXES))


def mpi_files(environ: Mapping[str, str]) -> list[Path]:
    """The user's files that set parameters of Open MPI."""
    folders = (".openmpi", ".pmix", ".prte")
    files = [Path(environ.get("HOME") or home(), folder, "mca-params.conf") for folder in folders]
    return [file for file in files if file.is_file()]


def mpi_suspects(ours: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> str:
    """A sentence for ranks that did not start, naming what the user has set for MPI; empty when nothing is set.

    ours: the variables that the workshop sets itself, which are not the user's when they have these values.
    """
    theirs = {name: value for name, value in environ.items() if ours.get(name) != value}
    variables, files = mpi_variables(theirs), mpi_files(theirs)
    sentences = []
    if variables:
        shown = ", ".join(f"{name}={theirs[name]}" for name in variables)
        in_python = "; ".join(f"del os.environ[{name!r}]" for name in variables)
        sentences.append(
            f"Your environment changes MPI's settings: {shown}. If they don't belong to this MPI, remove them (in a "
            f"terminal: unset {' '.join(variables)}; in a notebook: {in_python}) and start the ranks again."
        )
    if files:
        sentences.append(f"MPI also reads {', '.join(map(str, files))}: if ranks still don't start, rename it.")
    return " ".join(sentences)
