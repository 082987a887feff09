"""Runs for the equivalence ladder, and how two ends of it are compared."""

import gzip

import numpy as np
import pytest
from needs import needs_backend

from workshop_lib.notebook.results.records import all_names
from workshop_lib.training import equivalence
from workshop_lib.training.backends import CHOOSE_TRANSPORT, REGISTRY
from workshop_lib.training.data import mnist

# Every name of a run has its rungs in one of three files: test_ladder_sharded, test_ladder_horovod, and test_ladder for
# all that is in neither list. The number is the stage of ZeRO that shards the same states.
SHARDED = {"fsdp": 3, "fsdp-mpi": 3} | {f"deepspeed-{stage}": stage for stage in range(4)}
HOROVOD = [name for name, entry in REGISTRY.items() if "horovod" in entry.packages]
REPLICATED = [name for name in all_names() if name not in (*SHARDED, *HOROVOD)]
IN_PYTORCH = [name for name, entry in REGISTRY.items() if entry.framework == "PyTorch"]
OVER_MPI = [f"{name}-mpi" for name in CHOOSE_TRANSPORT]
GLOBAL_BATCH = 64
STEPS_PER_EPOCH = 13
STEPS = 2 * STEPS_PER_EPOCH
WARM_UP = {"warmup_epochs": 5, "epochs": 20}  # the rate climbs from step to step, and is never the same in two
# In the ragged run the last step of an epoch has 3 samples, so that one of four ranks has none, and ranks of two have
# different numbers.
SAMPLES = {"even": STEPS_PER_EPOCH * GLOBAL_BATCH, "ragged": (STEPS_PER_EPOCH - 1) * GLOBAL_BATCH + 3}


def cases(every, quick):
    """Parameters for a test: all, of which those that are not `quick(*case)` are exhaustive. Of the quick ones, `make
    test` runs those on two ranks. A case needs the backend that it names."""
    return [pytest.param(*case, marks=marks_of(case, quick)) for case in every]


def marks_of(case, quick):
    marks = [needs_backend(word) for word in case if isinstance(word, str)]
    if not quick(*case):
        return [*marks, pytest.mark.exhaustive]
    return [*marks, pytest.mark.full] if 4 in case else marks


TEST_SAMPLES = 502  # 251 on each of two ranks, 125 or 126 on each of four


def idx_bytes(array):
    """The content of a file in MNIST's format with these bytes."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_small_mnist(folder, train_samples=SAMPLES["even"], test_samples=TEST_SAMPLES, shape=(28, 28)):
    """The first rows of MNIST as plain IDX files, so that loading and evaluation do not take most of the time; cut to a
    height and width."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in (("train", train_samples), ("test", test_samples)):
        whole = mnist.load(split)
        height, width = shape
        arrays = (whole.images[:rows, :height, :width], whole.labels[:rows])
        for name, array in zip(mnist.FILES[split], arrays, strict=True):
            (folder / name).write_bytes(idx_bytes(array))


def write_packed_mnist(folder, train_samples=6_000, test_samples=1_000):
    """The same as MNIST is published, because the scripts to take home read nothing else."""
    write_small_mnist(folder, train_samples, test_samples)
    for path in list(folder.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), compresslevel=1))
        path.unlink()


def ladder_run(folder, network, case, ranks, backend, name="", options=(), **more):
    """backend: base, for one process; one of the library's; or, with "-mpi" behind it, that one over MPI. The
    run's weights go to FOLDER/NAME.pt."""
    name = name or f"{network}-{case}-{backend}-{ranks}"
    over_mpi = backend.endswith("-mpi")
    defaults = {
        "backend": "mpi" if backend == "base" else backend.removesuffix("-mpi"),
        "comm": "mpi" if over_mpi else "auto",
        "batch_size": GLOBAL_BATCH // ranks,
        "train_samples": SAMPLES[case],
        "max_steps": STEPS,
        "data_dir": str(folder),
        **WARM_UP,
        "weight_decay": 0.05,  # so that the same runs compare this too
        "checkpoint": str(folder / f"{name}.pt"),
    }
    return {"name": name, "options": defaults | dict(options), "network": network, "backend_object": backend} | more


def agreed_record(outcomes, name):
    """The record of a run that ended well, with the same weights and the same record on every rank."""
    assert [rank.get("error") for rank in outcomes[name]] == [None] * len(outcomes[name])
    records = [rank["record"] for rank in outcomes[name]]
    assert all(record == records[0] for record in records)
    assert len(set(records[0]["weights_sha256"])) == 1
    return records[0]


def weights(folder, name):
    return equivalence.weights(folder / f"{name}.pt")


def difference(folder, name, reference):
    """Print and return the largest relative difference between the weights of two runs."""
    found = equivalence.largest_relative_difference(weights(folder, name), weights(folder, reference))
    print(f"{name} against {reference}: {found:.1e}")
    return found
