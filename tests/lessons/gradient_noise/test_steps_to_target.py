"""Steps to a target accuracy, on a small data set: the search, its records and what is chosen from them."""

import numpy as np
import pytest
from drawn import words

from workshop_lib.notebook.results import records

from lessons.gradient_noise import figures, steps_to_target

HOW = {"target": 0.6, "test_samples": 200}


def test_it_stops_at_the_first_look_that_reaches_the_target():
    steps = steps_to_target.measure(50, 0.1, **HOW)
    assert 3 < steps < 100
    assert steps_to_target.measure(50, 0.1, max_steps=steps, **HOW) == steps, "the same again"
    assert steps_to_target.measure(50, 0.1, max_steps=2, **HOW) is None


def test_a_rate_that_is_far_too_high_does_not_reach_it_and_ends():
    assert steps_to_target.measure(50, 1e6, max_steps=30, **HOW) is None


def test_whole_batches_only():
    sizes = [len(rows) for rows, _ in zip(steps_to_target.batches(1000, 300, seed=1), range(7), strict=False)]
    assert sizes == [300] * 7


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"batch": 60_001}, "batch 60001: use 1 to 60000"),
        ({"batch": 10, "target": 97}, "target 97: use an accuracy between 0 and 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(asked, complaint):
    with pytest.raises(ValueError, match=complaint):
        steps_to_target.measure(lr=0.1, **asked)


def test_the_command_writes_a_record_for_each_batch_rate_and_seed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(steps_to_target, "BATCHES", (25, 100))
    monkeypatch.setattr(steps_to_target, "LRS", (0.01, 0.1))
    monkeypatch.setattr(steps_to_target, "measure", lambda batch, lr, *_: 7 if lr == 0.1 else None)
    out = tmp_path / "found.jsonl"
    assert steps_to_target.main(["--out", str(out)]) == 0
    found = records.read(out)
    assert [(r["what"]["batch"], r["what"]["lr"], r["what"]["seed"]) for r in found] == [
        (batch, lr, seed) for batch in (25, 100) for lr in (0.1, 0.01) for seed in (1, 2, 3)
    ]
    assert capsys.readouterr().out.count("\n") == len(found)
    assert steps_to_target.pairs(found) == ([25] * 3 + [100] * 3, [7] * 6)


def test_a_rate_is_given_up_by_the_slowest_seed_of_the_best_one(monkeypatch):
    needs = {(0.2, 1): 10, (0.2, 2): 40, (0.1, 1): 60, (0.1, 2): 9, (0.4, 1): 61, (0.4, 2): 8}

    def measure(batch, lr, seed, target, test_samples, max_steps, stop):
        return needs[lr, seed] if max_steps is None or needs[lr, seed] <= max_steps else None

    monkeypatch.setattr(steps_to_target, "measure", measure)
    found = list(steps_to_target.tune([64], [0.1, 0.2, 0.4], [1, 2]))
    taken = {(record["what"]["lr"], record["what"]["seed"]): record["steps"] for record in found}
    assert taken == needs | {(0.4, 1): None}, "the limit is 1.5 times 40, whatever a lucky seed took"


def test_the_best_rate_is_that_of_the_median_seed_and_reached_by_all():
    def made(batch, lr, *of_seeds):
        what = {"batch": batch, "lrs": [0.1, 0.2, 0.4], "lr": lr}
        return [{"kind": steps_to_target.KIND, "what": what, "steps": steps} for steps in of_seeds]

    found = [
        {"kind": "train"},
        *made(64, 0.1, 50, 51, 52),
        *made(64, 0.2, 10, 60, 60),  # quick once
        *made(64, 0.4, 5, None, 5),  # quick where it does not diverge
        *made(8, 0.4, 80, 95, 130),  # ties with 0.2, and is slower on average
        *made(8, 0.2, 90, 95, 100),
        *made(8, 0.1, 120, 120, 120),
        *made(512, 0.1, None, None, None),
    ]
    assert steps_to_target.best_rates(found) == {
        8: steps_to_target.BestRate(0.2, [90, 95, 100], at_edge=False),
        64: steps_to_target.BestRate(0.1, [50, 51, 52], at_edge=True),
    }
    batches, steps = steps_to_target.pairs(found)
    assert np.array_equal(batches, [8, 8, 8, 64, 64, 64])
    assert steps == [90, 95, 100, 50, 51, 52]


def test_when_asked_to_stop_it_keeps_what_is_done(monkeypatch):
    asked = iter([False, True])  # after the first run, and after the second
    monkeypatch.setattr(steps_to_target, "measure", lambda *_: 7)
    kept = list(steps_to_target.tune([8], [0.1], [1, 2], stop=lambda: next(asked)))
    assert [record["what"]["seed"] for record in kept] == [1]


def reached(batch, steps, target=0.97):
    what = {"batch": batch, "lr": 0.1, "seed": 1, "target": target, "lrs": [0.1]}
    return {"kind": "steps_to_target", "what": what, "steps": steps}


def test_records_are_drawn_with_their_fit_if_the_law_holds_and_different_targets_are_not_mixed():
    by_the_law = [reached(batch, 100 + 20_000 / batch) for batch in (16, 64, 256, 1024)]
    assert "critical batch 200 (95 %" in words(figures.target_curve([{"kind": "bench"}, *by_the_law]))
    assert "no fit" in words(figures.target_curve([reached(batch, batch) for batch in (16, 64, 256, 1024)]))
    with pytest.raises(records.RecordError, match="target = 0.9 and 0.97"):
        figures.target_curve([*by_the_law, reached(16, 50, target=0.9)])
    with pytest.raises(records.RecordError, match="no batch size got to 97% test accuracy"):
        figures.target_curve([reached(16, None)])
