"""Which build of PyTorch the set-up takes, by the machine, with and without PyTorch's own index."""

import functools
import http.server
import platform
import subprocess
import sys
import threading
import urllib.parse
import zipfile

import pytest
from shell_programs import program

from workshop_lib.maintain import bootstrap, pytorch_build

VERSION = "2.13.0"
HERE = sys.version_info[:2]
TAG = f"cp{HERE[0]}{HERE[1]}"
UNREACHABLE = "http://127.0.0.1:9/whl"  # nobody listens on the discard port


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Makes an nvidia-smi that reports this driver and these GPUs, or, without a driver, that finds no GPU."""
    if platform.system() != "Linux":
        pytest.skip("only on Linux does the build depend on the driver")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def answers(version=None, capabilities="9.0"):
        if version is None:
            program(tmp_path / "nvidia-smi", "echo No devices were found; exit 6")
            return
        asked = f"case $* in *compute_cap*) printf '%b\\n' '{capabilities}';; *) echo {version};; esac"
        program(tmp_path / "nvidia-smi", asked)

    answers()
    return answers


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Also a proxy: it takes the pages of every host from its own folder."""

    def translate_path(self, path):
        return super().translate_path(urllib.parse.urlsplit(path).path)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """An index on this machine with the layout of PyTorch's: a folder for each build, with a page of links."""
    folder = tmp_path_factory.mktemp("whl")
    for build in ("cpu", "cu126"):
        page = folder / build / "torch"
        page.mkdir(parents=True)
        name = f"torch-{VERSION}+{build}-{TAG}-{TAG}-manylinux_2_28_{platform.machine()}.whl"
        with zipfile.ZipFile(page / name, "w") as wheel:
            about = f"torch-{VERSION}+{build}.dist-info"
            wheel.writestr("torch/__init__.py", "")
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}+{build}\n")
            wheel.writestr(
                f"{about}/WHEEL", f"Wheel-Version: 1.0\nTag: {TAG}-{TAG}-manylinux_2_28_{platform.machine()}\n"
            )
            wheel.writestr(f"{about}/RECORD", "")
        quoted = name.replace("+", "%2B")
        (page / "index.html").write_text(f'<!DOCTYPE html><html><body><a href="{quoted}">{name}</a></body></html>')
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("version", "build", "words"),
    [
        (None, "cpu", "no NVIDIA GPU was found"),
        ("580.65.06", None, "for CUDA 13, which the NVIDIA driver 580.65.06 runs"),
        ("550.54.15", "cu126", "550.54.15 is too old for CUDA 13, which needs 580"),
        ("470.223.02", "cpu", "470.223.02 is too old for CUDA 12, which needs 525"),
    ],
)
def test_the_build_is_chosen_by_the_driver(driver, index, monkeypatch, version, build, words):
    driver(version)
    monkeypatch.setattr(pytorch_build, "INDEXES", index)
    choice = pytorch_build.choose(VERSION, HERE)
    assert choice.index == (f"{index}/{build}" if build else None)
    assert words in choice.why and choice.with_cuda == (build != "cpu")


@pytest.mark.parametrize(
    ("capabilities", "build"),
    [("7.0", "cu126"), ("9.0\\n6.0", "cu126"), ("7.5", None), ("12.0", None), ("compute_cap is not a field", None)],
)
def test_a_gpu_that_cuda_13_has_no_code_for_gets_cuda_12(driver, index, monkeypatch, capabilities, build):
    driver("580.65.06", capabilities)
    monkeypatch.setattr(pytorch_build, "INDEXES", index)
    choice = pytorch_build.choose(VERSION, HERE)
    assert choice.index == (f"{index}/{build}" if build else None)
    assert ("is too old for CUDA 13, which needs 7.5" in choice.why) is (build is not None)


def test_without_the_index_pip_takes_what_it_finds(driver, monkeypatch):
    monkeypatch.setattr(pytorch_build, "INDEXES", UNREACHABLE)
    choice = pytorch_build.choose(VERSION, HERE)
    assert choice.index is None and choice.with_cuda, "room for the larger build is asked for"
    assert "PyTorch's own index cannot be reached (" in choice.why


def test_pips_own_proxy_is_used_for_the_look(driver, index, monkeypatch):
    monkeypatch.setattr(pytorch_build, "INDEXES", "http://pytorch.invalid")
    for name in ("http_proxy", "HTTP_PROXY", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_PROXY", index)
    monkeypatch.setenv("PIP_TRUSTED_HOST", "pytorch.invalid")  # pip asks that of a host without https
    choice = pytorch_build.choose(VERSION, HERE)
    assert choice.index == "http://pytorch.invalid/cpu" and not choice.with_cuda
    assert pytorch_build.choose(VERSION, (3, 99)).index is None


def test_an_index_without_this_pythons_wheel_is_not_used(driver, index, monkeypatch):
    monkeypatch.setattr(pytorch_build, "INDEXES", index)
    choice = pytorch_build.choose(VERSION, (3, 99))
    assert choice.index is None and f"has no cpu build of PyTorch {VERSION} for Python 3.99" in choice.why


def test_torch_index_decides_alone(driver):
    driver("550.54.15")
    choice = pytorch_build.choose(VERSION, HERE, "https://example.org/whl/cpu")
    assert choice.index == "https://example.org/whl/cpu" and not choice.with_cuda
    choice = pytorch_build.choose(VERSION, HERE, "cu126")
    assert (choice.index, choice.with_cuda) == (f"{pytorch_build.INDEXES}/cu126", True)


def test_pip_installs_the_chosen_build(driver, index, monkeypatch, tmp_path):
    """The step as it stands, into a folder of its own."""
    monkeypatch.setattr(pytorch_build, "INDEXES", index)
    (what, arguments, may_fail), *_ = bootstrap.pip_steps(
        dict.fromkeys(bootstrap.SETTINGS, ""), pytorch_build.choose(VERSION, HERE)
    )
    assert may_fail and what == f"Installing PyTorch from {index}/cpu"
    command = [sys.executable, "-m", "pip", *arguments, "--target", str(tmp_path / "there"), "--no-cache-dir"]
    environment = {"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null", "HOME": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "there" / f"torch-{VERSION}+cpu.dist-info").is_dir()


def test_a_step_from_the_index_that_fails_leaves_it_to_pip(monkeypatch, tmp_path, capsys):
    """The look found the index, and the download broke off: the set-up still succeeds."""
    ran = []

    def step(what, command, log):
        ran.append(what)
        if "from http" in what:
            raise bootstrap.StepError(what, str(tmp_path / "log"), [], [])

    monkeypatch.setattr(bootstrap, "step", step)
    for name in ("check_pip_configuration", "check_machine", "write_stamp"):
        monkeypatch.setattr(bootstrap, name, lambda *_: None)
    monkeypatch.setattr(bootstrap, "LOG", str(tmp_path / "log"))
    monkeypatch.setattr(bootstrap, "continues", lambda settings: True)
    choice = pytorch_build.PytorchBuild("http://127.0.0.1:9/whl/cpu", "PyTorch's build is cpu.", with_cuda=False)
    monkeypatch.setattr(pytorch_build, "choose", lambda *_: choice)
    settings = dict.fromkeys(bootstrap.SETTINGS, "")
    bootstrap.install_core(sys.executable, settings)
    assert ran[-1].startswith("Installing the workshop")
    assert "pip takes PyTorch from where it finds it instead" in capsys.readouterr().out
    with pytest.raises(bootstrap.StepError):
        bootstrap.install_core(sys.executable, settings | {"TORCH_INDEX": choice.index})
