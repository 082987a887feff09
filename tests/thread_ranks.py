"""Ranks that are threads of this process, for code that only exchanges messages: quicker than processes."""

import inspect

import pytest
from mpi4py import MPI

from workshop_lib.lessons.mpi_basics import counting, fake_mpi
from workshop_lib.lessons.mpi_basics.explorer import OrderSearch


class _Comm:
    """The explorer's communicator; its calls tell their parameters, as mpi4py's do."""

    def __init__(self, comm: fake_mpi.FakeComm):
        self.fake, self.rank, self.size = comm, comm.rank, comm.size

    def __getattr__(self, name: str):
        call = getattr(self.fake, name)
        call.__signature__ = inspect.signature(getattr(MPI.COMM_SELF, name))
        return call


def run_on_threads(program, size: int) -> list:
    """What program(comm) returns on each of so many ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "MPI", fake_mpi.FakeMPI())
        outcome = OrderSearch(lambda comm: program(_Comm(comm)), size).run_next()
    assert not outcome.kind, outcome
    return outcome.results
