"""What people configured for pip reaches uv: an index, a proxy, a folder of wheels, and everything else."""

import functools
import http.server
import subprocess
import threading
import urllib.parse
import zipfile

import pytest

from tools import bootstrap, pip_settings

PROBE = "workshop_probe-1.0-py3-none-any.whl"


class Proxy(http.server.SimpleHTTPRequestHandler):
    """Answers for every host from its own folder."""

    def translate_path(self, path):
        self.server.asked.append(path)
        return super().translate_path(urllib.parse.urlsplit(path).path)

    def log_message(self, *_):
        pass


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Writes a pip.conf, and returns the variables of a user who has it and nothing else."""
    monkeypatch.setattr(pip_settings, "files", lambda environment: [environment["PIP_CONFIG_FILE"]])

    def variables(configuration="", **more):
        (tmp_path / "pip.conf").write_text(configuration)
        nothing = {"HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "cache")}
        return (
            {"PATH": "/usr/bin:/bin", "UV_HTTP_RETRIES": "0", "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
            | nothing
            | more
        )

    return variables


def test_a_mirror_and_a_proxy_that_only_pip_knows(user, tmp_path):
    page = tmp_path / "index" / "simple" / "workshop-probe"
    page.mkdir(parents=True)
    (page / "index.html").write_text(f'<!DOCTYPE html><html><body><a href="{PROBE}">{PROBE}</a></body></html>')
    with zipfile.ZipFile(page / PROBE, "w") as wheel:
        about = "workshop_probe-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: workshop-probe\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    serves = functools.partial(Proxy, directory=tmp_path / "index")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serves) as proxy:
        proxy.asked = []
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        here = f"proxy = 127.0.0.1:{proxy.server_port}"
        environment = user(f"[install]\nindex_url = http://packages.invalid/simple\n{here}\n")
        command = [bootstrap.find_uv(), "pip", "install", "--target", tmp_path / "there", "workshop-probe"]
        environment |= pip_settings.for_uv(environment)
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        proxy.shutdown()
    assert ran.returncode == 0, ran.stderr
    assert f"http://packages.invalid/simple/workshop-probe/{PROBE}" in proxy.asked


@pytest.mark.parametrize(
    ("configuration", "variables", "uv"),
    [
        (
            "[global]\nfind-links = /usr /missing file:///bin file:///missing https://a\n",
            {},
            {"UV_FIND_LINKS": "/usr,file:///bin,https://a"},
        ),
        ("[global]\nindex-url = https://a\n", {"PIP_INDEX_URL": "https://b"}, {"UV_DEFAULT_INDEX": "https://b"}),
        ("[global]\nindex-url = https://a\n[install]\nindex-url = https://b\n", {}, {"UV_DEFAULT_INDEX": "https://b"}),
        ("[global]\nindex-url = https://a\n", {"UV_INDEX_URL": "https://own"}, {}),
        ("[global]\nextra-index-url =\n    https://a\n    https://b\n", {}, {"UV_INDEX": "https://a https://b"}),
        ("", {"PIP_NO_INDEX": "1"}, {"UV_NO_INDEX": "1"}),
        ("", {"PIP_CLIENT_CERT": "/c.pem"}, {"SSL_CLIENT_CERT": "/c.pem"}),
        ("", {"PIP_CERT": "/etc"}, {"SSL_CERT_DIR": "/etc"}),
        ("[global]\ncert = /ca.pem\ntrusted-host = a b\n", {}, {"SSL_CERT_FILE": "/ca.pem", "UV_INSECURE_HOST": "a b"}),
        ("", {"REQUESTS_CA_BUNDLE": "/ca.pem"}, {"SSL_CERT_FILE": "/ca.pem"}),
        ("this is no configuration", {"PIP_TIMEOUT": "9"}, {"UV_HTTP_TIMEOUT": "9"}),
        ("[global]\ntimeout = 60\n", {"UV_HTTP_TIMEOUT": "7"}, {}),
        ("[global]\nconstraint = /a.txt\n", {}, {}),
        ("", {"PIP_KEYRING_PROVIDER": "subprocess"}, {"UV_KEYRING_PROVIDER": "subprocess"}),
        ("", {"PIP_KEYRING_PROVIDER": "auto"}, {}),
    ],
)
def test_what_is_handed_on(user, configuration, variables, uv):
    added = pip_settings.for_uv(user(configuration, **variables))
    always = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "1"}
    assert {name: added[name] for name in added if name not in always} == uv


def test_where_pip_keeps_its_cache_uv_does_too(user):
    environment = user(PIP_CACHE_DIR="/scratch/me")
    del environment["UV_CACHE_DIR"]
    assert pip_settings.for_uv(environment)["UV_CACHE_DIR"] == "/scratch/me/uv"


def test_a_configuration_that_is_switched_off_is_not_read(tmp_path):
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "pip.conf").write_text("[global]\nindex-url = https://a\n")
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert pip_settings.for_uv(environment)["UV_DEFAULT_INDEX"] == "https://a"
    assert "UV_DEFAULT_INDEX" not in pip_settings.for_uv(environment | {"PIP_CONFIG_FILE": "/dev/null"})
