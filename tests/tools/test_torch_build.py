"""Which build of PyTorch the set-up takes, by the machine, and what it does if that build cannot be had."""

import platform

import pytest
from shell_programs import program

from tools import bootstrap, torch_build

PLAIN = dict.fromkeys(bootstrap.SETTINGS, "")


@pytest.mark.skipif(platform.system() != "Linux", reason="only on Linux does the build depend on the driver")
@pytest.mark.parametrize(
    ("driver", "capabilities", "build", "words"),
    [
        (None, "", "cpu", "no NVIDIA GPU was found"),
        ("580.65.06", "9.0", None, "the NVIDIA driver 580.65 runs CUDA 13"),
        ("580.65.06", "7.0", "cu126", "a GPU of compute capability 7.0 is too old for CUDA 13, which needs 7.5"),
        ("580.65.06", "9.0\\n6.0", "cu126", "compute capability 6.0 is too old"),
        ("580.65.06", "compute_cap is not a field", None, "runs CUDA 13"),
        ("550.54.15", "9.0", "cu126", "550.54 is too old for CUDA 13, which needs 580"),
        ("470.223.02", "7.0", "cpu", "470.223 is too old for CUDA 12, which needs 525"),
    ],
)
def test_the_build_follows_the_driver_and_the_gpus(tmp_path, monkeypatch, driver, capabilities, build, words):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    asked = f"case $* in *compute_cap*) printf '%b\\n' '{capabilities}';; *) echo {driver};; esac"
    program(tmp_path / "nvidia-smi", asked if driver else "echo No devices were found; exit 6")
    chosen, why = torch_build.choose()
    assert chosen == build and words in why
    assert torch_build.choose("cu126") == ("cu126", "PyTorch's build is cu126, because TORCH_INDEX says so.")


@pytest.fixture
def without_the_index(monkeypatch):
    """PyTorch's own index cannot be reached. Returns what the set-up runs."""
    ran = []

    def step(what, command, log=None):
        ran.append(command)
        if "--torch-backend" in command or "--default-index" in command:
            raise bootstrap.StepError(what, bootstrap.LOG, "error: Failed to fetch: x\n  cause: no such name")

    monkeypatch.setattr(bootstrap, "step", step)
    monkeypatch.setattr(bootstrap, "find_uv", lambda: "uv")
    return ran


def test_without_its_own_index_pytorch_comes_from_elsewhere(without_the_index, capsys):
    why = bootstrap.install_packages(PLAIN, "cpu", "PyTorch's build is cpu.")
    assert why.startswith("PyTorch's build is cpu. It could not be had (Failed to fetch: x: no such name), so PyTorch")
    assert "may be the build for CUDA, of 3 GB" in capsys.readouterr().out
    first, last = without_the_index
    assert first[-4:] == ["--no-deps", "torch", "--torch-backend", "cpu"] and "torch" in last[-1]


@pytest.mark.parametrize("given", ["cu126", "https://example.org/whl/cu126"])
def test_a_build_that_was_asked_for_is_not_replaced_by_another(without_the_index, given):
    with pytest.raises(bootstrap.StepError, match="no such name"):
        bootstrap.install_packages(PLAIN | {"TORCH_INDEX": given}, given, "")
    assert len(without_the_index) == 1 and given in without_the_index[0]
