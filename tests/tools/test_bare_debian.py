"""`make test` by an ordinary user of a bare Debian 13: without a compiler, a browser, Slurm, git or root."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from needs import needs

from workshop_lib.paths import ROOT

PACKAGES = "ca-certificates,make,python3,python3-venv"
USER = 1000
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# What may say where packages come from.
PIP_FILES = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf")
HANDED_ON = re.compile("(pip|uv)_(?!cache)|(https?|no|all)_proxy$|ssl_cert", re.IGNORECASE)
SETTINGS = {name: value for name, value in os.environ.items() if HANDED_ON.match(name)}
# All mounts and processes go away with this shell, because the namespaces are its own.
ENTER = """\
root=$1; shift
mount -t proc none "$root/proc"; mount --rbind /dev "$root/dev"; mount --rbind /sys "$root/sys"
mount -t tmpfs none "$root/dev/shm"
while [ "$1" != -- ]; do mkdir -p "$root$1"; mount --bind "$1" "$root$1"; shift; done
shift
exec /usr/sbin/chroot --userspec={user}:{user} "$root" "$@"
"""


@pytest.fixture
def debian(tmp_path):
    """The folder of a bare Debian that finds names and packages as this machine does."""
    root = tmp_path / "debian"
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "trixie", root]
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=900)
        assert made.returncode == 0, made.stdout[-2000:] + made.stderr
        root.chmod(0o755)
        for path in ("/etc/resolv.conf", "/etc/hosts", CERTIFICATES, *PIP_FILES, *filter(os.path.isfile, named())):
            copy(Path(path).expanduser(), root / path.replace("~", "home/user").lstrip("/"))
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)  # gigabytes


def copy(path: Path, to: Path) -> None:
    if path.is_file():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)


def named() -> list[str]:
    """The files and folders of this machine that pip's configuration or variables name.

    Of an index in a folder that's the folder above it, because what it offers may lie beside it.
    """
    files = [path for path in (Path(name).expanduser() for name in PIP_FILES) if path.is_file()]
    text = "\n".join([*(path.read_text() for path in files), *SETTINGS.values()])
    text = re.sub(r"file://(\S+)", lambda index: str(Path(index[1]).parent), text)
    return sorted(filter(os.path.exists, set(re.findall(r"(?<![\w/])/[\w./-]+", text))))


@needs("root", "debootstrap", "git")
@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_make_test_passes_and_says_what_was_missing(debian):
    home = debian / "home" / "user"
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True, timeout=30).split("\0")
    for name in filter(None, tracked):
        copy(ROOT / name, home / "workshop" / name)
    subprocess.run(["chown", "-R", f"{USER}:{USER}", home], check=True, timeout=60)
    settings = SETTINGS | {"HOME": "/home/user", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", ENTER.format(user=USER), "sh"]
    folders = filter(os.path.isdir, named())
    command = [*enter, debian, *folders, "--", "sh", "-c", "cd ~/workshop && exec make test"]
    ran = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=5400)
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr
    left_out = ran.stdout.partition("not everything was tested: ")[2]
    for package in ("g++", "chromium", "git"):
        assert f"install {package}" in left_out
    assert " passed, " in ran.stdout.splitlines()[-1]
