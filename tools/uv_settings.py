"""The user's own settings of uv, without those that would change what the lock installs.

A mirror, a proxy or a certificate counts for the set-up. A cutoff for new packages, other hashes, constraints or builds
from source would make a locked installation fail, or install something else. uv's configuration files are copied line
by line into one file with the settings that count, so that uv itself reads their values.

This module uses only the standard library, because nothing is installed yet.
"""

import os
import re

# Settings whose names begin like this say where packages come from and how uv gets and keeps them.
KEPT = (
    *("index", "default-index", "extra-index-url", "find-links", "no-index", "offline"),
    *("keyring-provider", "credentials"),
    *("http", "no-proxy", "request-timeout", "concurrent", "allow-insecure-host", "insecure-host", "trusted-host"),
    *("native-tls", "system-certs", "cache", "no-cache", "link-mode", "python-install-mirror", "python-downloads"),
)
TABLE = re.compile(r"\s*\[\[?\s*([\w.-]+)\s*\]")
SETTING = re.compile(r"\s*([\w.-]+)\s*=")


def keep(environment, file):
    """Take the other settings out of these variables, and have uv read `file` instead of its configuration files.

    The file is written only if any setting counts. Only its owner can read it, because an index may have a password.
    """
    text = kept([read(path) for path in files(environment)])
    for name in list(environment):
        if name.startswith("UV_") and not name[3:].lower().replace("_", "-").startswith(KEPT):
            del environment[name]
    if not text:
        environment["UV_NO_CONFIG"] = "1"
        return
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as copy:
        copy.write(text)
    environment["UV_CONFIG_FILE"] = file


def kept(texts):
    """One configuration with what counts in all these. Of a setting that several of them have, the first counts."""
    tables = {"": [], "pip": [], "index": []}  # type: dict[str, list[str]]
    seen = set()
    for text in texts:
        table = ""
        counts = False
        for line in text.splitlines():
            header = TABLE.match(line)
            setting = SETTING.match(line)
            if header:
                table = header.group(1)
                counts = table == "index"
            elif setting and table == "index":
                counts = not setting.group(1).startswith("exclude-newer")
            elif setting:
                name = (table, setting.group(1))
                counts = table in tables and name[1].startswith(KEPT) and name not in seen
                seen.add(name)
            if counts:  # any other line goes on with the setting above it
                tables[table].append(line)
    if tables["pip"]:
        tables["pip"].insert(0, "[pip]")
    return "".join(line + "\n" for lines in tables.values() for line in lines)


def files(environment):
    """The configuration files of this user and this machine, those that count more first.

    Those in folders around the checkout belong to other projects.
    """
    if environment.get("UV_CONFIG_FILE"):
        return [environment["UV_CONFIG_FILE"]]
    if environment.get("UV_NO_CONFIG", "").lower() not in ("", "0", "false", "no", "off"):
        return []
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", "/"), ".config")
    of_all = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") + ["/etc"]
    paths = [os.path.join(folder, "uv", "uv.toml") for folder in of_all]
    return [os.path.join(home, "uv", "uv.toml")] + list(filter(os.path.exists, paths))[:1]


def read(path):
    """The text of a file; empty if it can't be read."""
    try:
        with open(path, encoding="utf8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
