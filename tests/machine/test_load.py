"""Other programs on this machine are noticed, our own are not, and a few of many cores don't matter."""

import math
import os
import subprocess
import sys
import time

import psutil
import pytest
from needs import needs

from workshop_lib.machine import load
from workshop_lib.machine.load import Sample

OWN_ID = "import sys; from workshop_lib.machine import load; print(load.this_process().cmdline() == sys.orig_argv)"


@pytest.mark.parametrize(
    ("used_s", "own_s", "others"),
    [(0.5, 0.5, 0.0), (4.0, 0.8, 1.6), (1.0, 0.0, 0.5), (0.5, 0.52, 0.0)],
    ids=["ours alone", "others too", "others alone", "rounding"],
)
def test_what_we_used_is_not_what_others_used(used_s, own_s, others):
    before = Sample(10.0, 300.0, 20.0)
    after = Sample(12.0, 300.0 + used_s, 20.0 + own_s)
    assert load.cores_of_others(before, after) == pytest.approx(others)


@pytest.mark.parametrize(
    ("others", "wanted", "usable", "total", "enough"),
    [
        (0.1, 2, 2, 2, True),
        (1.6, 2, 2, 2, False),
        (1.6, 2, 8, 8, True),
        (1.0, 1, 2, 2, True),
        (1.9, 1, 2, 2, False),
        (10.0, 2, 2, 64, True),  # a quota of 2 on a large machine
        (0.1, 4, 2, 2, True),  # oversubscribed by ourselves
    ],
)
def test_what_others_take_matters_only_where_we_want_it(others, wanted, usable, total, enough):
    assert load.are_left(others, wanted, usable, total) == enough


def test_a_moment_is_too_short_to_tell():
    assert load.cores_of_others(Sample(10.0, 300.0, 20.0), Sample(10.01, 300.05, 20.0)) == 0


def meter_of(monkeypatch, *samples):
    each = iter(samples)
    monkeypatch.setattr(load, "sample", lambda: next(each))
    monkeypatch.setattr(load, "usable_threads", lambda: 2)
    monkeypatch.setattr(load, "affinity", lambda: {0, 1})
    monkeypatch.setattr(load, "core_ids", set)
    return load.Meter()


def test_the_sentence_beside_a_result(monkeypatch, capsys):
    meter_of(monkeypatch, Sample(0, 0, 0), Sample(2, 4, 0.8)).report(2)
    assert capsys.readouterr().out == ("Other programs were using 1.6 of 2 cores, so don't trust these times.\n")
    meter_of(monkeypatch, Sample(0, 0, 0), Sample(2, 4, 4)).report(2)
    assert not capsys.readouterr().out


@needs("root")
def test_this_process_is_found_where_proc_shows_another_pid_namespace():
    inside = f"echo 3000000 > /proc/sys/kernel/ns_last_pid; {sys.executable} -c '{OWN_ID}'"
    assert subprocess.check_output(["unshare", "--pid", "--fork", "sh", "-c", inside], text=True) == "True\n"


@pytest.mark.parametrize(
    ("speedup", "ranks", "oversubscribed", "slow"),
    [
        (2.2, 2, False, "what ran on one rank."),
        (2.05, 2, False, ""),
        (0.54, 2, False, "what ran on 2 ranks."),
        (0.79, 2, False, ""),
        (0.3, 4, True, ""),
        (math.nan, 2, False, ""),
    ],
)
def test_a_speedup_that_no_quiet_machine_shows_is_doubted(speedup, ranks, oversubscribed, slow):
    said = load.doubt(speedup, ranks, "ddp", oversubscribed)
    if slow:
        assert said.startswith(
            f"2 ranks with ddp seem {speedup:.2f} times as fast as one. That's almost certainly wrong"
        )
    assert bool(said) == bool(slow) and slow in said


def test_our_own_processes_are_known_also_when_they_have_ended():
    before, began_s = load.sample(), time.monotonic()
    code = "import os\nwhile sum(os.times()[:2]) < 0.3: pass"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
    running = subprocess.Popen([sys.executable, "-S", "-c", code + "\nimport time; time.sleep(60)"])
    try:
        while sum(psutil.Process(running.pid).cpu_times()[:2]) < 0.2 and time.monotonic() < began_s + 30:
            time.sleep(0.02)
        after = load.sample()
    finally:
        running.kill()
        running.wait(10)
    assert 0.45 < after.own_s - before.own_s < 1.5
    assert after.own_s - before.own_s <= after.used_s - before.used_s + 0.1 * (os.cpu_count() or 1)
