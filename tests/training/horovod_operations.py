"""Run on every rank: every operation of the installed Horovod against what numpy says.

horovod_operations.py torch|tensorflow FILE    rank 0 writes {operation: [what was wrong, by rank]} as JSON
"""

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

FRAMEWORK = sys.argv[1]
if FRAMEWORK == "torch":
    import horovod.torch as hvd
    import torch

    def tensor(values):
        return torch.tensor(np.asarray(values))
else:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    def tensor(values):
        return tf.constant(np.asarray(values))


WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
INTEGERS = ("uint8", "int8", "int32", "int64")
FLOATS = ("float16", "float32", "float64")
SOME = hvd.ProcessSet(sorted({0, SIZE - 1})[: SIZE - 1])


def of_rank(rank, dtype="float32", shape=(3, 4)):
    """Small whole numbers that differ by rank, so that every sum is exact in every dtype."""
    return ((np.arange(np.prod(shape)).reshape(shape) + 5 * rank) % 7).astype(dtype)


def of_all(dtype="float32"):
    return np.stack([of_rank(rank, dtype) for rank in range(SIZE)])


def equals(found, expected):
    found = found.numpy()
    assert found.dtype == expected.dtype, f"{found.dtype} instead of {expected.dtype}"
    np.testing.assert_array_equal(found, expected)


def allreduce(dtype, op):
    if FRAMEWORK == "torch" and dtype.endswith("int8"):
        return refused("is not supported", of_rank(RANK, dtype))
    reduced = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod, "Average": np.mean}[op](
        of_all(dtype).astype("float64"), axis=0
    )
    found = hvd.allreduce(tensor(of_rank(RANK, dtype)), op=getattr(hvd, op), name=f"reduce.{dtype}.{op}")
    if op == "Average":
        np.testing.assert_allclose(found.numpy(), reduced, rtol=1e-3 if dtype == "float16" else 1e-6)
    else:
        equals(found, reduced.astype(dtype))


def broadcast(dtype):
    root = SIZE - 1
    equals(hvd.broadcast(tensor(of_rank(RANK, dtype)), root, name=f"cast.{dtype}"), of_rank(root, dtype))


def rows_of(rank):
    return of_rank(rank, shape=(rank + 1, 4))


def allgather_of_unequal_sizes():
    equals(hvd.allgather(tensor(rows_of(RANK)), name="gather"), np.concatenate([*map(rows_of, range(SIZE))]))


def alltoall_of_unequal_sizes():
    """Rank r sends d + 1 rows to rank d."""
    splits = np.arange(1, SIZE + 1, dtype="int32")
    rows = of_rank(RANK, shape=(int(splits.sum()), 2))
    found, received = hvd.alltoall(tensor(rows), splits=tensor(splits), name="all")
    first = int(splits[:RANK].sum())
    parts = [of_rank(r, shape=(int(splits.sum()), 2))[first : first + RANK + 1] for r in range(SIZE)]
    equals(found, np.concatenate(parts))
    np.testing.assert_array_equal(received.numpy(), np.full(SIZE, RANK + 1))


def reducescatter():
    rows = 2 * SIZE
    total = sum(of_rank(r, shape=(rows, 3)) for r in range(SIZE))
    found = hvd.reducescatter(tensor(of_rank(RANK, shape=(rows, 3))), op=hvd.Sum, name="scatter")
    equals(found, total[2 * RANK : 2 * RANK + 2])


def grouped_allreduce():
    shapes = [(2,), (3, 4), (1,)]
    found = hvd.grouped_allreduce([tensor(of_rank(RANK, shape=s)) for s in shapes], op=hvd.Sum, name="group")
    for shape, one in zip(shapes, found, strict=True):
        equals(one, sum(of_rank(r, shape=shape) for r in range(SIZE)))


def grouped_allgather():
    found = hvd.grouped_allgather([tensor(rows_of(RANK)), tensor(of_rank(RANK))], name="groups")
    equals(found[0], np.concatenate([*map(rows_of, range(SIZE))]))
    equals(found[1], np.concatenate([*map(of_rank, range(SIZE))]))


def grouped_reducescatter():
    shapes = [(SIZE, 2), (2 * SIZE, 3)]
    own = [tensor(of_rank(RANK, shape=s)) for s in shapes]
    for shape, one in zip(shapes, hvd.grouped_reducescatter(own, op=hvd.Sum), strict=True):
        per_rank = shape[0] // SIZE
        total = sum(of_rank(r, shape=shape) for r in range(SIZE))
        equals(one, total[RANK * per_rank : (RANK + 1) * per_rank])


def process_set():
    if RANK in SOME.ranks:
        found = hvd.allreduce(tensor(of_rank(RANK)), op=hvd.Sum, name="set", process_set=SOME)
        equals(found, sum(map(of_rank, SOME.ranks)))


def join():
    """Rank r has r + 1 tensors to reduce; those who have none left take part with zeros."""
    for step in range(RANK + 1):
        found = hvd.allreduce(tensor(of_rank(RANK)), op=hvd.Sum, name=f"join.{step}")
        equals(found, sum(of_rank(r) for r in range(step, SIZE)))
    hvd.join()


def refused(text, values):
    said = "it was reduced"
    try:
        hvd.allreduce(tensor(values), name=f"bad.{text}")
    except Exception as error:
        said = str(error)
    assert text in said.lower(), said


def mismatched_shapes():
    refused("mismatched allreduce tensor shapes", np.ones(2 + (RANK == 0), "float32"))


def mismatched_dtypes():
    refused("mismatched data types", np.ones(2, "float32" if RANK == 0 else "float64"))


def main():
    hvd.init(process_sets=[SOME])
    operations = {
        f"allreduce {op} {dtype}": (allreduce, dtype, op) for dtype in INTEGERS + FLOATS for op in ("Sum", "Min", "Max")
    }
    operations |= {f"allreduce Average {dtype}": (allreduce, dtype, "Average") for dtype in FLOATS}
    operations |= {f"broadcast {dtype}": (broadcast, dtype) for dtype in INTEGERS + FLOATS}
    for function in (
        allgather_of_unequal_sizes, alltoall_of_unequal_sizes, reducescatter, grouped_allreduce,
        grouped_allgather, grouped_reducescatter, process_set, join, mismatched_shapes, mismatched_dtypes,
    ):  # fmt: skip
        operations[function.__name__.replace("_", " ")] = (function,)
    wrong = {}
    for name, (function, *arguments) in operations.items():
        try:
            function(*arguments)
            trouble = None
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        wrong[name] = [found for found in WORLD.allgather(trouble) if found]
    hvd.shutdown()
    if RANK == 0:
        Path(sys.argv[2]).write_text(json.dumps(wrong))


if __name__ == "__main__":
    main()
