"""Horovod's wheel: what makes its name in the cache, and one sentence for each thing that goes wrong."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import horovod_wheel
from tools.horovod_wheel import HorovodError


@pytest.fixture(autouse=True)
def complete_machine(tmp_path_factory, monkeypatch):
    """A compiler and Python's headers, as far as `check_machine` can see: this machine may have neither."""
    include = tmp_path_factory.mktemp("include")
    (include / "Python.h").touch()
    monkeypatch.setenv("CXX", "true")
    monkeypatch.setattr(horovod_wheel.sysconfig, "get_paths", lambda: {"include": str(include)})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(horovod_wheel, "FRAMEWORKS", (("torch", "torch"),))  # TensorFlow may be missing here
    return tmp_path


def test_everything_that_a_wheel_depends_on_is_in_its_name(cache, monkeypatch):
    changes = {
        "platform.libc_ver": lambda: ("glibc", "9.9"),
        "cuda_of_pytorch": lambda: "cuda-99.0",
        "mpi_library": lambda: "MPICH 4",
        "version_of": lambda *_: "9.9",
        "PATCHES": (),
    }
    seen = {horovod_wheel.key()}
    for name, value in changes.items():
        monkeypatch.setattr(f"tools.horovod_wheel.{name}", value)
        seen.add(horovod_wheel.key())
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    seen.add(horovod_wheel.key())
    assert len(seen) == 7
    assert all(name.startswith("horovod-0.28.1-py3") and "/" not in name for name in seen)


def test_a_cached_wheel_is_installed_and_nothing_is_built(cache, monkeypatch):
    folder = horovod_wheel.cache_folder() / horovod_wheel.key()
    folder.mkdir(parents=True)
    assert folder.is_relative_to(cache)
    wheel = folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.touch()
    calls = []
    monkeypatch.setattr(horovod_wheel, "pip", lambda *arguments, **_: calls.append(arguments))
    horovod_wheel.install()
    assert calls == [("install", "--no-deps", "--force-reinstall", str(wheel))]


@pytest.mark.parametrize(
    ("what", "where", "value", "words"),
    [
        ("compiler", "shutil.which", lambda name: None, "C.. compiler.*apt-get install g.."),
        ("path", "sys.prefix", "/home/a $b/.venv", "under a path with '.' in it"),
        ("headers", "sysconfig.get_paths", lambda: {"include": "/nonexistent"}, "/nonexistent/Python.h.*python3-dev"),
    ],
)
def test_what_a_build_needs_of_the_machine_is_named(monkeypatch, what, where, value, words):
    monkeypatch.setattr(f"tools.horovod_wheel.{where}", value)
    with pytest.raises(HorovodError, match=words):
        horovod_wheel.check_machine()


def test_a_changed_archive_is_refused_with_both_checksums(tmp_path, monkeypatch):
    name = f"horovod-{horovod_wheel.VERSION}.tar.gz"
    monkeypatch.setattr(horovod_wheel, "pip", lambda *_, **__: (tmp_path / name).write_bytes(b"other"))
    with pytest.raises(HorovodError) as refused:
        horovod_wheel.unpack(tmp_path)
    assert name in str(refused.value) and horovod_wheel.SHA256 in str(refused.value)
    assert hashlib.sha256(b"other").hexdigest() in str(refused.value)


def test_sources_that_are_not_as_expected_are_refused(tmp_path):
    for name, *_ in horovod_wheel.PATCHES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("something else")
    with pytest.raises(HorovodError, match="CMakeLists.txt does not say 'CMAKE_CXX_STANDARD 14'"):
        horovod_wheel.patch(tmp_path)


def test_as_a_program_it_ends_with_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(horovod_wheel, "FRAMEWORKS", (("torch", "no-such-framework"),))
    assert horovod_wheel.main() == 1
    assert capsys.readouterr().out.startswith("ERROR: Horovod needs no-such-framework")


def test_with_nccl_it_is_built_against_the_one_that_pytorch_brought(tmp_path, monkeypatch):
    brought = tmp_path / "site" / "nvidia" / "nccl"
    for name in ("include/nccl.h", "lib/libnccl.so.2", "__init__.py"):
        (brought / name).parent.mkdir(parents=True, exist_ok=True)
        (brought / name).touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    home = Path(horovod_wheel.nccl_of_pytorch(tmp_path / "nccl")["HOROVOD_NCCL_HOME"])
    assert (home / "include" / "nccl.h").exists() and (home / "lib" / "libnccl.so").exists()


def test_without_an_nccl_or_nvcc_it_says_so(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(horovod_wheel.util, "find_spec", lambda name: None)
    with pytest.raises(HorovodError, match="this PyTorch brought none: set TORCH_INDEX"):
        horovod_wheel.nccl_of_pytorch(tmp_path / "nccl")
    for program in ("cmake", "mpicxx"):
        (tmp_path / program).touch(mode=0o755)
    path = {"PATH": str(tmp_path), "HOROVOD_GPU_OPERATIONS": "NCCL"}
    monkeypatch.setattr(horovod_wheel, "build_environment", lambda: path)
    with pytest.raises(HorovodError, match="needs nvcc to be built"):
        horovod_wheel.build(cache)


def test_the_first_error_of_a_failing_build_is_told(tmp_path):
    (tmp_path / "setup.py").write_text("print('x.cc:1: fatal error: mpi.h: none'); raise SystemExit(1)")
    with pytest.raises(HorovodError, match="`pip wheel` failed: .*error: "):
        horovod_wheel.pip("wheel", "--no-build-isolation", "--no-deps", "-v", "-w", str(tmp_path), str(tmp_path))


def test_cmakes_reason_is_told_and_not_its_place():
    lines = [
        "-- The CXX compiler",
        "CMake Error at /a/b.cmake:71 (message):",
        "",
        "The C++ compiler is broken.",
        "more",
    ]
    assert horovod_wheel.first_error(lines) == "The C++ compiler is broken."
    assert horovod_wheel.first_error(["x"]) == "no reason given."


def test_pytorchs_build_is_read_from_its_own_file(tmp_path, monkeypatch):
    """PyPI's builds for CUDA and the CPU builds of other indexes may have the same version."""
    import torch.version

    assert horovod_wheel.cuda_of_pytorch() == (f"cuda-{torch.version.cuda}" if torch.version.cuda else "cpu")
    (tmp_path / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(horovod_wheel.util, "find_spec", lambda name: found)
    assert horovod_wheel.cuda_of_pytorch() == "cuda-13.0"
