"""What a notebook hears when it starts ranks, without any ranks."""

from types import SimpleNamespace

import pytest

from workshop_lib.errors import InputError
from workshop_lib.ranks import session
from workshop_lib.ranks.launch import cluster, crowding


@pytest.mark.parametrize("in_notebook", [True, False])
def test_other_programs_are_a_quiet_line_once(monkeypatch, capsys, in_notebook):
    monkeypatch.setattr(crowding, "in_notebook", lambda: in_notebook)
    current = cluster.Current()
    monkeypatch.setattr(session, "CURRENT", current)

    def team(n, threads, bind, machine):
        return SimpleNamespace(healthy=True, shape=(n, threads, bind), machine=machine, stop=list)

    monkeypatch.setattr(session, "Ranks", team)
    monkeypatch.setattr(session.Meter, "warning", lambda *_: "Others use 2 of 2 cores.")
    for n in (1, 2):
        assert session.start(n).shape[:3] == (n, 1, "none") and current.team.shape[0] == n
    printed = capsys.readouterr()
    line = "Others use 2 of 2 cores.\n"
    assert printed.out == line * in_notebook, "once; stdout of a program is for its results"
    assert printed.err == line * (not in_notebook), "a notebook shows stderr in red"


@pytest.mark.parametrize(
    ("n", "memory_gb", "insist", "refused"),
    [
        (64, 16, "0", ""),
        (1000, 16, "1", ""),
        (
            1000,
            16,
            "0",
            "1,000 ranks are far too many for this machine, which has 2 cores and 16 GB of memory. Start at most 64.",
        ),
        (64, 2, "0", "which has 2 cores and 2 GB of memory. Start at most 50."),
    ],
)
def test_far_too_many_ranks_are_refused_before_any_starts(monkeypatch, n, memory_gb, insist, refused):
    monkeypatch.setenv("WORKSHOP_OVERSUBSCRIBE", insist)
    monkeypatch.setattr(crowding.allocation, "find", lambda: None)
    monkeypatch.setattr(crowding.cores, "usable_cores", lambda: 2)
    monkeypatch.setattr(crowding.cores, "usable_threads", lambda: 2)
    monkeypatch.setattr(crowding.cgroups, "memory_bytes", lambda: memory_gb * 1e9)
    if not refused:
        return crowding.check(n)
    with pytest.raises(InputError) as caught:
        crowding.check(n)
    assert refused in str(caught.value) and "WORKSHOP_OVERSUBSCRIBE=1" in str(caught.value)


@pytest.mark.parametrize(
    ("n", "noted"), [(4, ""), (16, "16 ranks take turns on 2 cores: whatever they compute takes 8")]
)
def test_many_ranks_on_few_cores_are_noted(monkeypatch, capsys, n, noted):
    monkeypatch.setattr(crowding.allocation, "find", lambda: None)
    monkeypatch.setattr(crowding.cores, "usable_cores", lambda: 2)
    monkeypatch.setattr(crowding.cores, "usable_threads", lambda: 2)
    crowding.note(n)
    assert capsys.readouterr().err.startswith(noted) and bool(noted) == (n == 16)
