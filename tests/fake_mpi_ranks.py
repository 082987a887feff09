"""Ranks that are threads of this process, for code that only exchanges messages: quicker than processes."""

import pytest

from workshop_lib.collectives import counting
from workshop_lib.lessons.mpi_basics import fake_mpi
from workshop_lib.lessons.mpi_basics.explorer import OrderSearch


def run_on_threads(program, size: int) -> list:
    """What program(comm) returns on each of so many ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "MPI", fake_mpi.FakeMPI())
        outcome = OrderSearch(program, size).run_next()
    assert not outcome.kind, outcome
    return outcome.results
