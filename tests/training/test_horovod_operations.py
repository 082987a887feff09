"""The Horovod that was built: each of its operations, in both frameworks, on two and three ranks, against NumPy."""

import importlib

import numpy as np
import pytest
from mpi4py import MPI
from needs import needs
from our_ranks import on_every_rank

from workshop_lib import ranks

pytestmark = [needs("horovod"), pytest.mark.full]

INTEGERS = ("uint8", "int8", "int32", "int64")
FLOATS = ("float16", "float32", "float64")


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.exhaustive)])
def team(request):
    return ranks.start(request.param)


def of_rank(rank, dtype="float32", shape=(3, 4)):
    """Small whole numbers that differ by rank, so that every sum is exact in every dtype."""
    return ((np.arange(np.prod(shape)).reshape(shape) + 5 * rank) % 7).astype(dtype)


def rows_of(rank):
    return of_rank(rank, shape=(rank + 1, 4))


def equals(found, expected):
    found = found.numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


class Operations:
    """Each method calls one operation of Horovod, and asserts what this rank gets."""

    def __init__(self, framework):
        self.torch = framework == "torch"
        self.hvd = importlib.import_module(f"horovod.{framework}")
        module = importlib.import_module(framework)
        self.tensor = lambda values: (module.tensor if self.torch else module.constant)(np.asarray(values))
        self.rank, self.size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        self.some = self.hvd.ProcessSet(sorted({0, self.size - 1})[: self.size - 1])

    def summed(self, shape):
        return sum(of_rank(rank, shape=shape) for rank in range(self.size))

    def own(self, shape=(3, 4), dtype="float32"):
        return self.tensor(of_rank(self.rank, dtype, shape))

    def refused(self, text, values):
        with pytest.raises(Exception, match=f"(?i){text}"):
            self.hvd.allreduce(self.tensor(values), name=f"bad.{text}")

    def allreduce(self):
        operations = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Average": np.mean}
        for dtype in INTEGERS + FLOATS:
            if self.torch and dtype.endswith("int8"):
                self.refused("is not supported", of_rank(self.rank, dtype))
                continue
            everyone = np.stack([of_rank(rank, dtype) for rank in range(self.size)]).astype("float64")
            for op, of_numpy in operations.items():
                if op == "Average" and dtype in INTEGERS:
                    continue
                name = f"reduce.{dtype}.{op}"
                found = self.hvd.allreduce(self.own(dtype=dtype), op=getattr(self.hvd, op), name=name)
                expected = of_numpy(everyone, axis=0)
                if op == "Average":
                    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3 if dtype == "float16" else 1e-6)
                else:
                    equals(found, expected.astype(dtype))

    def broadcast(self):
        root = self.size - 1
        for dtype in INTEGERS + FLOATS:
            equals(self.hvd.broadcast(self.own(dtype=dtype), root, name=f"cast.{dtype}"), of_rank(root, dtype))

    def allgather_of_unequal_sizes(self):
        expected = np.concatenate([*map(rows_of, range(self.size))])
        equals(self.hvd.allgather(self.tensor(rows_of(self.rank)), name="gather"), expected)

    def alltoall_of_unequal_sizes(self):
        """Rank r sends d + 1 rows to rank d."""
        splits = np.arange(1, self.size + 1, dtype="int32")
        shape = (int(splits.sum()), 2)
        found, received = self.hvd.alltoall(self.own(shape), splits=self.tensor(splits), name="all")
        first = int(splits[: self.rank].sum())
        parts = [of_rank(rank, shape=shape)[first : first + self.rank + 1] for rank in range(self.size)]
        equals(found, np.concatenate(parts))
        np.testing.assert_array_equal(received.numpy(), np.full(self.size, self.rank + 1))

    def reducescatter(self):
        shape = (2 * self.size, 3)
        found = self.hvd.reducescatter(self.own(shape), op=self.hvd.Sum, name="scatter")
        equals(found, self.summed(shape)[2 * self.rank : 2 * self.rank + 2])

    def grouped_allreduce(self):
        shapes = [(2,), (3, 4), (1,)]
        found = self.hvd.grouped_allreduce([self.own(shape) for shape in shapes], op=self.hvd.Sum, name="group")
        for shape, one in zip(shapes, found, strict=True):
            equals(one, self.summed(shape))

    def grouped_allgather(self):
        found = self.hvd.grouped_allgather([self.tensor(rows_of(self.rank)), self.own()], name="groups")
        equals(found[0], np.concatenate([*map(rows_of, range(self.size))]))
        equals(found[1], np.concatenate([*map(of_rank, range(self.size))]))

    def grouped_reducescatter(self):
        shapes = [(self.size, 2), (2 * self.size, 3)]
        found = self.hvd.grouped_reducescatter([self.own(shape) for shape in shapes], op=self.hvd.Sum)
        for shape, one in zip(shapes, found, strict=True):
            rows = shape[0] // self.size
            equals(one, self.summed(shape)[self.rank * rows : (self.rank + 1) * rows])

    def process_set(self):
        if self.rank in self.some.ranks:
            found = self.hvd.allreduce(self.own(), op=self.hvd.Sum, name="set", process_set=self.some)
            equals(found, sum(map(of_rank, self.some.ranks)))

    def join(self):
        """Rank r has r + 1 tensors to reduce; those who have none left take part with zeros."""
        for step in range(self.rank + 1):
            found = self.hvd.allreduce(self.own(), op=self.hvd.Sum, name=f"join.{step}")
            equals(found, sum(of_rank(rank) for rank in range(step, self.size)))
        self.hvd.join()

    def mismatches(self):
        self.refused("mismatched allreduce tensor shapes", np.ones(2 + (self.rank == 0), "float32"))
        self.refused("mismatched data types", np.ones(2, "float32" if self.rank == 0 else "float64"))


@pytest.mark.parametrize(
    "framework", ["torch", pytest.param("tensorflow", marks=[pytest.mark.exhaustive, needs("tensorflow")])]
)
@on_every_rank
def test_every_operation(framework):
    operations = Operations(framework)
    operations.hvd.init(process_sets=[operations.some])
    try:
        operations.allreduce()
        operations.broadcast()
        operations.allgather_of_unequal_sizes()
        operations.alltoall_of_unequal_sizes()
        operations.reducescatter()
        operations.grouped_allreduce()
        operations.grouped_allgather()
        operations.grouped_reducescatter()
        operations.process_set()
        operations.join()
        operations.mismatches()
    finally:
        operations.hvd.shutdown()
