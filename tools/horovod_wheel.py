"""Install Horovod for this Python's PyTorch, TensorFlow and MPI, either from a cache of wheels or by building it.

    python tools/horovod_wheel.py

The set-up runs this in .venv. Horovod's last release, 0.28.1 of June 2023, does not build against today's
PyTorch and TensorFlow without the changes in PATCHES, which also says why each is needed. GCC 12, 13, 14 and 15 and
clang 19 have built it, in about 4 minutes on two cores, and two ranks trained with each build as one process does. A
wheel fits exactly one Python, PyTorch, TensorFlow and MPI, so these make up the name of its folder in the cache, which
lies in the user's cache folder (XDG_CACHE_HOME, or ~/.cache).

The system's C library is part of that name, too, because a wheel built on a newer system does not load on an older one
that shares its home folder. The compiler is not: GCC and clang build to one ABI and use the same libstdc++, so a wheel
of one works beside a PyTorch built with another, also on a machine without any compiler.

It is built without its gloo: where MPI carries the messages, nothing uses that, and it is a fifth of the build.
Horovod's own variables are passed on. With HOROVOD_GPU_OPERATIONS=NCCL, Horovod is built against the NCCL that
PyTorch brought, so that a process has only one NCCL, unless HOROVOD_NCCL_HOME names another NCCL. CUDA's nvcc has to
be on PATH for that.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from importlib import metadata, util
from pathlib import Path

from workshop_lib.errors import WorkshopError
from workshop_lib.machine.cores import usable_threads
from workshop_lib.paths import replacing

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

# The name of each framework, and the packages that may provide it.
FRAMEWORKS = (("torch", "torch"), ("tensorflow", "tensorflow-cpu", "tensorflow"))
# (file, text in the file, its replacement, reason)
PATCHES = (
    (
        "horovod/torch/CMakeLists.txt",
        "CMAKE_CXX_STANDARD 14",
        "CMAKE_CXX_STANDARD 20",
        "PyTorch's headers need C++17, and C++20 since 2.15",
    ),
    (
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
        "",
        "XLA's headers have moved since, and these operations are for GPUs alone",
    ),
    (
        "cmake/Modules/FindPytorch.cmake",
        'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)',
        'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)\nif (NOT HAVE_CUDA)\n    set(Pytorch_CUDA FALSE)\nendif()',
        "PyTorch's CUDA build is PyPI's default, and CPU operations need neither a GPU nor a CUDA toolkit with it",
    ),
    (
        "CMakeLists.txt",
        "if(CMAKE_CUDA_COMPILER)\n",
        "if(CMAKE_CUDA_COMPILER AND DEFINED HOROVOD_GPU_ALLREDUCE)\n",
        "CPU operations don't need the CUDA compiler, so one that doesn't work must not stop their build",
    ),
    (
        "cmake/Modules/FindTensorflow.cmake",
        'set(Tensorflow_LIBRARIES "${Tensorflow_LIBRARIES} '
        '${Tensorflow_LIB_PATH}/python/_pywrap_tensorflow_internal.so")',
        "",
        "it has no SONAME: its absolute path would tie the wheel to this folder",
    ),
    (
        "CMakeLists.txt",
        "-pthread -fPIC -Wall",
        "-pthread -fPIC -Wall -include cstdint -include stdexcept -include string",
        "its files use these headers without naming them, and since GCC 13 no others bring them along",
    ),
    (
        "third_party/flatbuffers/include/flatbuffers/stl_emulation.h",
        "pointer const data_;\n  const size_type count_;",
        "pointer data_;\n  size_type count_;",
        "span's assignment operator sets both, and since GCC 14 that is an error even where nobody calls it",
    ),
    ("setup.py", "'RelWithDebInfo'", "'Release'", "the same code without debugging symbols builds sooner"),
)


class HorovodError(WorkshopError):
    """An error whose text says in one sentence what went wrong and what to do."""


def main() -> int:
    try:
        install()
    except HorovodError as error:
        print(f"ERROR: {error}", flush=True)
        return 1
    return 0


def install() -> None:
    folder = cache_folder() / key()
    wheel = next(folder.glob("horovod-*.whl"), None) or build(folder)
    # --no-deps, because the workshop already has Horovod's requirements. Without --force-reinstall, pip would
    # keep a Horovod of the same version that was built for another MPI. The user's own settings of pip could lead it
    # elsewhere, and a file needs none of them.
    pip("install", "--no-deps", "--force-reinstall", str(wheel), env=os.environ | {"PIP_CONFIG_FILE": os.devnull})


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distributed-dl-workshop"


def key() -> str:
    """Everything that a built wheel depends on, as the name of a folder."""
    parts = [
        f"horovod-{VERSION}",
        f"py{sys.version_info.major}{sys.version_info.minor}",
        platform.machine(),
        "".join(platform.libc_ver()),
        *(f"{name}-{version_of(*packages)}" for name, *packages in FRAMEWORKS),
        cuda_of_pytorch(),
        mpi_library(),
    ]
    own = {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}
    recipe = hashlib.sha256(f"{PATCHES}{sorted(own.items())}".encode()).hexdigest()[:8]
    return re.sub(r"[^\w.+-]+", "_", "-".join([*parts, recipe]))


def version_of(*packages: str) -> str:
    """The version of the first of these packages that is installed."""
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    raise HorovodError(f"Horovod needs {packages[0]} in this Python, and it is not there: run `make setup`.")


def cuda_of_pytorch() -> str:
    """The CUDA that PyTorch was built for, such as "cuda-13.0", or "cpu". A PyPI build's version does not show it."""
    spec = util.find_spec("torch")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        raise HorovodError("Horovod needs torch in this Python, and it is not there: run `make setup`.")
    # Reading version.py saves the seconds that importing torch takes.
    text = (Path(next(iter(folders))) / "version.py").read_text()
    cuda = re.search(r"^cuda\b.*= '([\d.]+)'", text, re.MULTILINE)
    return f"cuda-{cuda[1]}" if cuda else "cpu"


def mpi_library() -> str:
    """Name and version of the MPI that mpi4py uses. This does not start MPI."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise HorovodError(f"Horovod needs MPI, and mpi4py does not work here ({error}).") from None
    return " ".join(MPI.Get_library_version().split(",")[0].split()[:4])


def build(folder: Path) -> Path:
    """Build the wheel, and put it into the cache atomically; return its path there."""
    environment = build_environment()
    check_machine()
    needed = [("cmake", "run `make setup`"), ("mpicxx", "run `make setup`, or load your cluster's MPI")]
    with_nccl = environment.get("HOROVOD_GPU_OPERATIONS") == "NCCL"
    if with_nccl:
        needed.append(("nvcc", "load your cluster's CUDA module"))
    for program, remedy in needed:
        if not shutil.which(program, path=environment["PATH"]):
            raise HorovodError(f"Horovod needs {program} to be built, and it was not found: {remedy}.")
    with tempfile.TemporaryDirectory() as scratch:
        if with_nccl and "HOROVOD_NCCL_HOME" not in environment:
            environment |= nccl_of_pytorch(Path(scratch) / "nccl")
        source = unpack(Path(scratch))
        out = Path(scratch) / "wheel"
        patch(source)
        pip("wheel", "--no-build-isolation", "--no-deps", "-v", "-w", str(out), str(source), env=environment)
        (wheel,) = out.glob("horovod-*.whl")
        with replacing(folder / wheel.name) as temporary:
            shutil.copy(wheel, temporary)
    return folder / wheel.name


def check_machine() -> None:
    """Raise HorovodError if this machine cannot compile an extension module."""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    compilers = [os.environ.get("CXX", "").split(" ")[0], "g++", "c++", "clang++"]
    if not any(name and shutil.which(name) for name in compilers):
        packages = "g++" if header.exists() else "g++ python3-dev"
        raise HorovodError(
            "Horovod needs a C++ compiler to be built, and none was found: install g++ (Debian: apt-get install "
            f"{packages}), load your cluster's compiler module, or name one with CXX."
        )
    if not header.exists():
        raise HorovodError(
            f"Horovod needs Python's headers to be built, and {header} is not there: install them (Debian: apt-get "
            "install python3-dev)."
        )
    if unusual := re.search(r"[$;&]", sys.prefix):
        raise HorovodError(f"Horovod cannot be built under a path with {unusual[0]!r} in it ({sys.prefix}): move it.")


def build_environment() -> dict[str, str]:
    folder = Path(sys.executable).parent
    # The loader's search paths are relative to site-packages/horovod/torch, so the wheel works in any folder.
    places = "$ORIGIN/../../torch/lib:$ORIGIN/../../tensorflow:$ORIGIN/../../../..:$ORIGIN/../../nvidia/nccl/lib"
    switches = ("WITH_PYTORCH", "WITH_TENSORFLOW", "WITH_MPI", "WITHOUT_GLOO", "WITHOUT_MXNET")
    defaults = {f"HOROVOD_{switch}": "1" for switch in switches} | {
        "MAKEFLAGS": f"-j{usable_threads()}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    paths = {
        "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}",
        "LDFLAGS": f"-Wl,-rpath,{places} {os.environ.get('LDFLAGS', '')}",
    }
    return defaults | os.environ | paths


def nccl_of_pytorch(folder: Path) -> dict[str, str]:
    """Variables for a build with PyTorch's NCCL, after linking it into `folder` in the layout that Horovod expects."""
    found = util.find_spec("nvidia.nccl") if util.find_spec("nvidia") else None
    if found is None or not found.submodule_search_locations:
        raise HorovodError(
            "HOROVOD_GPU_OPERATIONS=NCCL needs NCCL, and this PyTorch brought none: set TORCH_INDEX to PyTorch's index "
            "for your CUDA, or HOROVOD_NCCL_HOME to the folder of an NCCL."
        )
    home = Path(next(iter(found.submodule_search_locations)))
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(home / "include")
    (folder / "lib" / "libnccl.so").symlink_to(home / "lib" / "libnccl.so.2")  # the linker looks for this name
    return {"HOROVOD_NCCL_HOME": str(folder), "HOROVOD_NCCL_LINK": "SHARED"}


def unpack(scratch: Path) -> Path:
    as_source = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation")
    pip("download", *as_source, f"horovod=={VERSION}", "-d", str(scratch))
    archive = scratch / f"horovod-{VERSION}.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        raise HorovodError(f"{archive.name} has the SHA-256 {digest} instead of {SHA256}: it was changed.")
    with tarfile.open(archive) as tar:
        tar.extractall(scratch)  # safe, because the archive has the known checksum
    return scratch / f"horovod-{VERSION}"


def patch(source: Path) -> None:
    for name, old, new, why in PATCHES:
        text = (source / name).read_text()
        if old not in text:
            raise HorovodError(f"Horovod's {name} does not say {old!r}, which had to change: {why}.")
        (source / name).write_text(text.replace(old, new))


def pip(*arguments: str, env: dict | None = None) -> None:
    """Run pip, printing its output. Raises HorovodError with the first error that pip reports."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert process.stdout is not None  # stdout is a pipe
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line.strip())
    if process.wait():
        raise HorovodError(f"`pip {arguments[0]}` failed: {first_error(lines)}")


def first_error(lines: list[str]) -> str:
    """The first line that names an error; for CMake, the first line below "CMake Error at PLACE"."""
    for number, line in enumerate(lines):
        if line.startswith("CMake Error at"):
            return next(filter(None, lines[number + 1 :]), line)
        if re.search(r"\berror: |CMake Error|ERROR: ", line):
            return line
    return "no reason given."


if __name__ == "__main__":
    sys.exit(main())
