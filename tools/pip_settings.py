"""What people configured for pip, as variables for uv, which doesn't read pip's configuration.

A mirror, a proxy or a certificate of one's own is set once, for pip, and has to count for the set-up as well. Variables
of uv that are set already win.

This module uses only the standard library, because nothing is installed yet.
"""

import configparser
import os
import ssl
import sys
import urllib.parse

# An option of pip, and the variables of uv that mean the same. The first of them is set, unless one of them is set.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra-index-url": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "find-links": ("UV_FIND_LINKS",),
    "no-index": ("UV_NO_INDEX",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "cert": ("SSL_CERT_FILE", "SSL_CERT_DIR"),
    "client-cert": ("SSL_CLIENT_CERT",),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "retries": ("UV_HTTP_RETRIES",),
    "keyring-provider": ("UV_KEYRING_PROVIDER",),
    "cache-dir": ("UV_CACHE_DIR",),
}
# The options that may have several values, and what separates these in a variable of uv.
SEPARATORS = {"extra-index-url": " ", "find-links": ",", "trusted-host": " "}
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")


def for_uv(environment):
    """The variables to add to `environment` so that uv gets packages from where pip would."""
    options = configured(environment)
    added = {}
    for option, names in VARIABLES.items():
        value = options.get(option, "")
        if option in SEPARATORS:
            values = value.split()
            if option == "find-links":
                values = [place for place in map(os.path.expanduser, values) if is_there(place)]
            value = SEPARATORS[option].join(values)
        if value and not any(name in environment for name in names):
            added[names[0]] = value
    if "UV_CACHE_DIR" in added:
        added["UV_CACHE_DIR"] = os.path.join(added["UV_CACHE_DIR"], "uv")
    if added.get("UV_KEYRING_PROVIDER") not in (None, "disabled", "subprocess"):
        del added["UV_KEYRING_PROVIDER"]  # uv knows no others
    if os.path.isdir(added.get("SSL_CERT_FILE", "")):
        added["SSL_CERT_DIR"] = added.pop("SSL_CERT_FILE")
    if "proxy" in options:
        address = options["proxy"]
        added.update(dict.fromkeys(PROXIES, address if "://" in address else "http://" + address))
    # pip takes the newest version in any index. The lock's hashes say which file may be installed.
    if "UV_INDEX_STRATEGY" not in environment:
        added["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    # Like pip, uv should trust the authorities that this machine trusts, if it has a list of them.
    known = ssl.get_default_verify_paths()
    if (known.cafile or known.capath and os.listdir(known.capath)) and "UV_SYSTEM_CERTS" not in environment:
        added["UV_SYSTEM_CERTS"] = "1"
    return added


def is_there(place):
    """Whether this folder or file of links exists, as far as this can be seen here. pip goes on without it if not."""
    scheme, _, path = place.rpartition("://")
    return scheme not in ("", "file") or os.path.exists(urllib.parse.unquote(path))


def configured(environment):
    """pip's options by their names in its files. Later files override earlier ones, and variables override files."""
    parser = configparser.RawConfigParser()
    found = {}
    for path in files(environment):
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself refuses such a file and says where the mistake is
    for section in ("global", "install"):
        if parser.has_section(section):
            found.update({name.replace("_", "-"): value for name, value in parser.items(section)})
    # Libraries that pip uses read these two.
    for name in ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        if environment.get(name):
            found.setdefault("cert", environment[name])
    for name, value in environment.items():
        if name.startswith("PIP_") and value:
            found[name[len("PIP_") :].lower().replace("_", "-")] = value
    return found


def files(environment):
    """The files that pip reads its configuration from, in its order."""
    if environment.get("PIP_CONFIG_FILE") == os.devnull:
        return []
    home = environment.get("HOME", "/")
    for_all = "/Library/Application Support" if sys.platform == "darwin" else "/etc"
    folders = environment.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    found = [os.path.join(folder, "pip", "pip.conf") for folder in folders]
    found += [os.path.join(for_all, "pip.conf"), os.path.join(for_all, "pip", "pip.conf")]
    found += [os.path.join(home, ".pip", "pip.conf")]
    if sys.platform == "darwin":
        found += [os.path.join(home, "Library", "Application Support", "pip", "pip.conf")]
    found += [os.path.join(environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "pip", "pip.conf")]
    found += [os.path.join(environment.get("VIRTUAL_ENV") or sys.prefix, "pip.conf")]
    return found + [environment.get("PIP_CONFIG_FILE", "")]
