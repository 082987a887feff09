"""The user's own settings of uv: a mirror counts, and a cutoff for new packages does not change what is installed."""

import stat
import subprocess
import zipfile

from tools import bootstrap, uv_settings

OF_THE_USER = """\
exclude-newer = "2001-01-01T00:00:00Z"
resolution = "lowest"
no-index = true
find-links = [
    "{wheels}",  # ours
]
constraint-dependencies = [
    "six<1",
]

[[index]]
name = "ours"
url = "https://user:secret@mirror.invalid/simple"
exclude-newer = false

[pip]
require-hashes = true
link-mode = "copy"

[exclude-newer-package]
six = "2001-01-01T00:00:00Z"
"""
OF_ALL = 'offline = true\nno-index = false\n[[index]]\nurl = "https://second.invalid/simple"\n'
COUNTS = """\
no-index = true
find-links = [
    "{wheels}",  # ours
]
offline = true
[pip]
link-mode = "copy"

[[index]]
name = "ours"
url = "https://user:secret@mirror.invalid/simple"
[[index]]
url = "https://second.invalid/simple"
"""


def user(tmp_path):
    """The variables of a user with these settings in uv's configuration files."""
    for folder, text in (("home", OF_THE_USER), ("machine", OF_ALL)):
        (tmp_path / folder / "uv").mkdir(parents=True)
        (tmp_path / folder / "uv" / "uv.toml").write_text(text.format(wheels=tmp_path))
    return {"XDG_CONFIG_HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "machine")}


def test_settings_that_say_where_packages_come_from_count_and_no_others(tmp_path):
    texts = [uv_settings.read(path) for path in uv_settings.files(user(tmp_path))]
    blank_lines_aside = [line for line in uv_settings.kept(texts).splitlines() if line]
    assert blank_lines_aside == [line for line in COUNTS.format(wheels=tmp_path).splitlines() if line]
    environment = {"UV_EXCLUDE_NEWER": "2001-01-01", "UV_CONSTRAINT": "x", "UV_INDEX": "https://a", "UV_NO_CONFIG": "1"}
    uv_settings.keep(environment, str(tmp_path / "uv.toml"))
    assert environment == {"UV_INDEX": "https://a", "UV_NO_CONFIG": "1"}


def test_uv_installs_what_the_users_own_settings_would_refuse(tmp_path):
    with zipfile.ZipFile(tmp_path / "six-2.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("six-2.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: six\nVersion: 2.0\n")
        wheel.writestr("six-2.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("six-2.0.dist-info/RECORD", "")
    environment = user(tmp_path) | {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "UV_NO_BINARY": "1"}
    command = [bootstrap.find_uv(), "pip", "install", "--target", str(tmp_path / "there"), "six"]
    refuses = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, timeout=60)
    file = tmp_path / "build" / "uv.toml"
    uv_settings.keep(environment, str(file))
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert refuses.returncode and ran.returncode == 0, ran.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "an address may contain a password"
