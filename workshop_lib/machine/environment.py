"""Environment variables and files of other programs that would harm ranks, and what the workshop does about each.

A cluster's modules, batch scripts and other programs set variables that slow ranks down or crash them, and no error
message points to the variable. TABLE is the one list of these variables. A process that starts ranks gives them the
environment that `for_ranks(…)` returns; a rank that the user's own launcher started calls `clean()`. The variable NOTE
says what was done about each harmful variable, and the run record repeats it.
"""

import json
import os
import pwd
import shutil
import socket
import tempfile
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from workshop_lib.machine.pinning import give_back_cores

NOTE = "WORKSHOP_NEUTRALIZED"  # a list of sentences, as JSON, in the environment of ranks
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
# Variables that set parameters of the MPI library. A wrong one stops all ranks.
MPI_PREFIXES = ("OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_", "UCX_", "MPICH_", "I_MPI_", "HYDRA_")
KERAS_DEFAULTS = {"floatx": "float32", "backend": "tensorflow", "image_data_format": "channels_last"}


@dataclass(frozen=True)
class VariableRule:
    """A variable that harms ranks if it has certain values, and the value that ranks get instead (None: no value)."""

    variable: str
    harms: Callable[[str], bool]  # takes the variable's value
    why: str
    instead: str | None = None
    one_host: bool = False  # whether it does harm only if all ranks are on this host
    launchers: bool = False  # whether launchers set it for their ranks, which then need it

    def sentence(self, value: str) -> str:
        """A sentence on what was done about this value of the variable, and why."""
        done = "ignored" if self.instead is None else f"replaced by {self.instead}"
        return f"{self.variable}={value} {done}: {self.why}"


def no_gpu() -> bool:
    """Whether nothing on this host looks like an NVIDIA GPU."""
    return shutil.which("nvidia-smi") is None and not list(Path("/dev").glob("nvidia[0-9]*"))


def is_missing_interface(names: str) -> bool:
    """Whether this host has none of the network interfaces in this comma-separated list."""
    here = {name for _, name in socket.if_nameindex()}
    return here.isdisjoint(name.strip() for name in names.split(","))


def is_none_of(*values: str) -> Callable[[str], bool]:
    """A test of whether a variable's value is none of these, ignoring case."""
    return lambda value: value.lower() not in values


PINS = "it pins every rank to the same core"
OVER_MPI = "these ranks talk over MPI, and Horovod would crash"
TABLE = (
    VariableRule("OMP_PROC_BIND", is_none_of("false"), PINS, "false"),
    VariableRule("OMP_PLACES", is_none_of(), PINS),
    VariableRule("GOMP_CPU_AFFINITY", is_none_of(), PINS),
    VariableRule("KMP_AFFINITY", is_none_of("disabled", "none"), PINS),
    VariableRule("KERAS_BACKEND", is_none_of("tensorflow"), "Horovod's Keras needs TensorFlow", "tensorflow"),
    VariableRule("TF_USE_LEGACY_KERAS", is_none_of("", "0", "false"), "the workshop uses Keras 3"),
    VariableRule("HOROVOD_CONTROLLER", is_none_of("mpi"), OVER_MPI),
    VariableRule("HOROVOD_CPU_OPERATIONS", is_none_of("mpi"), OVER_MPI),
    VariableRule(
        "TORCH_DISTRIBUTED_DEBUG", lambda value: value.lower() == "detail", "DDP crashes with it on a CPU", "INFO"
    ),
    VariableRule("DS_ACCELERATOR", lambda value: value == "cuda" and no_gpu(), "this host has no GPU", "cpu"),
    VariableRule("GLOO_SOCKET_IFNAME", is_missing_interface, "this host has no such network interface", one_host=True),
    VariableRule("GLOO_DEVICE_TRANSPORT", is_none_of("tcp"), "ranks on one host talk over TCP", one_host=True),
    VariableRule("PYTHONWARNINGS", lambda value: "error" in value, "a warning of any package would end the ranks"),
    VariableRule(
        "MASTER_ADDR", is_none_of(*LOOPBACK_NAMES), "the ranks are all on this host", one_host=True, launchers=True
    ),
)
PINNING = tuple(rule.variable for rule in TABLE if rule.why is PINS)


def harmful(environ: Mapping[str, str], one_host: bool, launched: bool) -> list[VariableRule]:
    """The rules that apply to this environment."""
    found = []
    for rule in TABLE:
        applies = (one_host or not rule.one_host) and not (launched and rule.launchers)
        if applies and rule.variable in environ and rule.harms(environ[rule.variable].strip()):
            found.append(rule)
    return found


def for_ranks(environ: Mapping[str, str], one_host: bool, launched: bool = False) -> dict[str, str]:
    """A copy of this environment without what harms ranks, and with a note of each change (NOTE).

    one_host: whether all ranks are on this host. launched: whether a launcher made this environment for a rank.
    """
    cleaned = dict(environ)
    for rule in harmful(environ, one_host, launched):
        note(cleaned, rule.sentence(cleaned.pop(rule.variable)))
        if rule.instead is not None:
            cleaned[rule.variable] = rule.instead
    folders = environ.get("PATH", "").split(os.pathsep)
    closed = [folder for folder in folders if _is_closed(folder)]
    if closed:
        cleaned["PATH"] = os.pathsep.join(folder for folder in folders if folder not in closed)
        note(cleaned, f"PATH without {' and '.join(closed)}: you have no permission to search there")
    for sentence in keras_notes(environ):
        note(cleaned, sentence)
    cleaned["KERAS_BACKEND"] = "tensorflow"
    if not environ.get("HOME"):
        cleaned["HOME"] = home()
        note(cleaned, f"HOME was not set: the ranks use {cleaned['HOME']}")
    return cleaned


def _is_closed(folder: str) -> bool:
    """Whether this user may not look for a program in this folder.

    If PATH has such a folder, a program that is nowhere counts as forbidden instead of missing, which ends
    training runs that would do without it.
    """
    try:
        os.stat(os.path.join(folder, "program"))
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def clean(one_host: bool = False) -> None:
    """Remove what harms ranks from this process's environment. A rank calls this before it imports a framework."""
    unpin()
    cleaned = for_ranks(os.environ, one_host, launched=True)
    removed = os.environ.keys() - cleaned.keys()
    for name in removed:
        del os.environ[name]
    if "PYTHONWARNINGS" in removed:  # Python has read it by now
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
    os.environ.update(cleaned)


def unpin() -> None:
    """Give this thread back the cores that an OpenMP library took from it, because ranks inherit the thread's cores."""
    note(os.environ, give_back_cores(PINNING))


def note(environ: MutableMapping[str, str], sentence: str) -> None:
    """Add a sentence about what was done to the note in this environment, unless the note already has it."""
    if sentence and sentence not in (known := notes(environ)):
        environ[NOTE] = json.dumps([*known, sentence])


def notes(environ: Mapping[str, str] = os.environ) -> list[str]:
    """What was done about harmful variables, one sentence per variable."""
    try:
        return list(json.loads(environ.get(NOTE, "[]")))
    except (ValueError, TypeError):
        return []


def home() -> str:
    """The home folder in the system's list of users; a temporary folder if the user or the folder is missing."""
    try:
        listed = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return tempfile.gettempdir()
    return listed if os.path.isdir(listed) else tempfile.gettempdir()


def keras_notes(environ: Mapping[str, str]) -> list[str]:
    """A sentence on what the user's Keras settings would change, or no sentence.

    Ranks never read these settings (training/backends/horovod_tf.py).
    """
    folder = environ.get("KERAS_HOME") or os.path.join(environ.get("HOME") or home(), ".keras")
    file = Path(folder, "keras.json")
    try:
        settings = KERAS_DEFAULTS | json.loads(file.read_text())
    except (OSError, ValueError, TypeError):
        return []
    changed = [f"{name} {settings[name]}" for name, usual in KERAS_DEFAULTS.items() if settings[name] != usual]
    return [f"{file} ignored: it sets {', '.join(changed)}"] if changed else []


def mpi_suspects(ours: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> str:
    """What to say about the user's own MPI settings when ranks did not start; empty if there are none.

    ours: the variables that the workshop sets itself. A variable with the workshop's value is not the user's.
    """
    theirs = {name: value for name, value in environ.items() if ours.get(name) != value}
    variables = sorted(name for name in theirs if name.startswith(MPI_PREFIXES))
    if not variables:
        return ""
    shown = ", ".join(f"{name}={theirs[name]}" for name in variables)
    in_python = "; ".join(f"del os.environ[{name!r}]" for name in variables)
    return (
        f"Your environment changes MPI's settings: {shown}. If they don't belong to this MPI, remove them (in a "
        f"terminal: unset {' '.join(variables)}; in a notebook: {in_python}) and start the ranks again."
    )
