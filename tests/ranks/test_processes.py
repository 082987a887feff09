"""What ranks' processes may use of this machine."""

import resource

import pytest

from workshop_lib.ranks import RankError, processes

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "raised"),
    [((1024, 4096), None), ((64, 4096), 136), ((64, UNLIMITED), 136), ((UNLIMITED, UNLIMITED), None)],
)
def test_the_limit_of_open_files_is_raised_where_it_is_too_low(monkeypatch, limits, raised):
    chosen = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: chosen.append(pair))
    processes.allow_open_files(136)
    assert chosen == ([] if raised is None else [(raised, limits[1])])


def test_a_limit_of_open_files_that_cannot_be_raised_is_said_before_anything_starts(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(RankError, match=r"need about 136 open files, and here at most 64 are allowed. Run `ulimit"):
        processes.allow_open_files(136)
