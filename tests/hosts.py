"""Hosts on this machine, each with a name, an address and a network card of its own, joined by a switch.

They are Linux network namespaces: what goes from one to another passes through the kernel's network. Disk, memory and
cores are this machine's. Needs root.
"""

import contextlib
import itertools
import os
import shlex
import signal
import subprocess
import tempfile
from pathlib import Path

from shell_programs import program

COMMAND_LIMIT_S = 10.0
NUMBERS = itertools.count()  # of the sets of hosts that this process has made
# Sets the name and the names that it knows, then becomes the command.
ENTER = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'
SSH = """\
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
case $host in
{cases}
esac
echo "there is no host $host" >&2
exit 255
"""


class CannotCreate(Exception):
    """Why there can be no hosts here, in one sentence."""


class Hosts:
    """Hosts of these names, until `close()`; this machine itself reaches them at `here`.

    Raises CannotCreate where namespaces, bridges or virtual network cards are not allowed.
    """

    def __init__(self, *names: str):
        self.names = names
        tag = (8 * os.getpid() + next(NUMBERS)) % 100_000
        self._bridge = f"wsb{tag}"
        self._space = {name: f"ws{tag}-{name}" for name in names}
        self._card = {name: f"wsv{tag}-{number}" for number, name in enumerate(names)}
        # Addresses set aside for tests of networks (RFC 2544), which no real one uses.
        network = f"198.{18 + tag % 2}.{tag // 2 % 256}"
        self.here = f"{network}.1"
        self.address = {name: f"{network}.{11 + number}" for number, name in enumerate(names)}
        handle, file = tempfile.mkstemp(prefix="ws-hosts-")
        os.close(handle)
        self._file = Path(file)
        self._file.chmod(0o644)
        rows = [f"{address} {name}\n" for name, address in self.address.items()]
        self._file.write_text(Path("/etc/hosts").read_text() + "".join(rows))
        try:
            self._create()
        except (OSError, subprocess.SubprocessError) as error:
            self.close()
            why = getattr(error, "stderr", "") or str(error)
            raise CannotCreate(f"no network namespaces can be made here ({why.strip()}): run as root") from None

    def command(self, name: str) -> list[str]:
        """The words before a command that make it run on this host."""
        # Not with `ip netns exec`, which hides what is mounted under /sys, such as cgroups.
        enter = ["nsenter", f"--net=/run/netns/{self._space[name]}", "unshare", "--uts", "--mount"]
        return [*enter, "sh", "-c", ENTER, "sh", name, str(self._file)]

    def ssh(self, folder: Path) -> str:
        """A program in the place of ssh, made in this folder: it runs a command on a host in a new environment."""
        clean = 'env -i HOME="$HOME" PATH=/usr/bin:/bin sh -c "$*"'
        cases = [f"{name}) exec {shlex.join(self.command(name))} {clean};;" for name in self.names]
        return str(program(folder / "ssh", SSH.format(cases="\n".join(cases))))

    def lose(self, name: str) -> None:
        """Kill everything that runs on this host, as if its power were cut."""
        pids = _run("ip", "netns", "pids", self._space[name]).split()
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none sees another one end
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), number)

    def close(self) -> None:
        """Take everything away; what runs on the hosts has to be ended before."""
        for name in self.names:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                _run("ip", "netns", "delete", self._space[name])
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _run("ip", "link", "delete", self._bridge)
        self._file.unlink(missing_ok=True)

    def _create(self) -> None:
        _run("unshare", "--uts", "--mount", "hostname", self.names[0])
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "address", "add", f"{self.here}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        for name in self.names:
            space, card = self._space[name], self._card[name]
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", card, "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "link", "set", card, "master", self._bridge, "up")
            self._inside(name, "ip", "address", "add", f"{self.address[name]}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self._inside(name, "ip", "link", "set", device, "up")

    def _inside(self, name: str, *words: str) -> str:
        return _run("ip", "netns", "exec", self._space[name], *words)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=True)
    return done.stdout
