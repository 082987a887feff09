"""Steps to a target accuracy, on a small data set: the search, its records and what is chosen from them."""

import json

import numpy as np
import pytest
from drawn import words

from workshop_lib.lessons.gradient_noise import figures, steps_to_target
from workshop_lib.results import records

HOW = {"target": 0.6, "test_samples": 200}


def test_it_stops_at_the_first_look_that_reaches_the_target(small_mnist):
    steps = steps_to_target.measure(50, 0.1, data_dir=small_mnist, **HOW)
    assert 3 < steps < 100
    assert steps_to_target.measure(50, 0.1, data_dir=small_mnist, **HOW) == steps, "the same again"
    assert steps_to_target.measure(50, 0.1, data_dir=small_mnist, max_steps=steps, **HOW) == steps
    assert steps_to_target.measure(50, 0.1, data_dir=small_mnist, max_steps=steps - 1, **HOW) is None
    harder = HOW | {"target": 0.7}
    assert steps_to_target.measure(50, 0.1, data_dir=small_mnist, **harder) >= steps


def test_a_rate_that_is_far_too_high_does_not_reach_it_and_ends(small_mnist):
    assert steps_to_target.measure(50, 1e6, data_dir=small_mnist, max_steps=30, **HOW) is None


def test_whole_batches_only(small_mnist):
    sizes = [len(rows) for rows, _ in zip(steps_to_target.batches(1000, 300, seed=1), range(7), strict=False)]
    assert sizes == [300] * 7


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"batch": 1601}, "batch 1601: use 1 to 1600"),
        ({"batch": 0}, "batch 0: use 1 to 1600"),
        ({"batch": 10, "target": 97}, "target 97: use an accuracy between 0 and 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(small_mnist, asked, complaint):
    with pytest.raises(ValueError, match=complaint):
        steps_to_target.measure(lr=0.1, data_dir=small_mnist, **asked)


def test_the_command_writes_records_and_the_best_rates_follow(small_mnist, tmp_path, capsys):
    out = tmp_path / "found.jsonl"
    command = f"--out {out} --batches 25 100 --lrs 0.01 0.1 --seeds 1 2 --target 0.2 --max-steps 20"
    assert steps_to_target.main([*command.split(), "--data-dir", small_mnist]) == 0
    found = records.read(out)
    assert [(r["what"]["batch"], r["what"]["lr"], r["what"]["seed"]) for r in found] == [
        (batch, lr, seed) for batch in (25, 100) for lr in (0.1, 0.01) for seed in (1, 2)
    ]
    assert capsys.readouterr().out.count("\n") == len(found)
    best = steps_to_target.best_rates(found)
    assert list(best) == [25, 100]
    for batch, chosen in best.items():
        assert chosen.at_edge is True, "two rates have nothing but edges"
        at_it = [r["steps"] for r in found if r["what"]["batch"] == batch and r["what"]["lr"] == chosen.lr]
        assert chosen.steps == at_it
    assert steps_to_target.pairs(found)[0] == [25, 25, 100, 100]
    assert json.loads(out.read_text().splitlines()[0])["what"]["lrs"] == [0.01, 0.1]


def test_a_rate_is_given_up_by_the_slowest_seed_of_the_best_one(monkeypatch):
    needs = {(0.2, 1): 10, (0.2, 2): 40, (0.1, 1): 60, (0.1, 2): 9, (0.4, 1): 61, (0.4, 2): 8}

    def measure(batch, lr, seed, target, max_steps, stop):
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


def test_a_bad_request_ends_with_one_sentence(small_mnist, tmp_path, capsys):
    command = ["--out", str(tmp_path / "x.jsonl"), "--batches", "5000", "--data-dir", small_mnist]
    assert steps_to_target.main(command) == 1
    assert capsys.readouterr().err == "batch 5000: use 1 to 1600, the number of training images\n"


def test_when_asked_to_stop_it_keeps_what_is_done():
    looked = iter([False, False, True])  # in the only step of the first training, after it, and in the second
    kept = list(steps_to_target.tune([8], [0.1], [1, 2], max_steps=1, stop=lambda: next(looked, True)))
    assert [record["what"]["seed"] for record in kept] == [1]


def reached(batch, steps, target=0.97):
    what = {"batch": batch, "lr": 0.1, "seed": 1, "target": target, "lrs": [0.1], "data_dir": None}
    return {"kind": "steps_to_target", "what": what, "steps": steps}


def test_records_are_drawn_with_their_fit_if_the_law_holds_and_different_targets_are_not_mixed():
    by_the_law = [reached(batch, 100 + 20_000 / batch) for batch in (16, 64, 256, 1024)]
    assert "critical batch 200 (95 %" in words(figures.target_curve([{"kind": "bench"}, *by_the_law]))
    assert "no fit" in words(figures.target_curve([reached(batch, batch) for batch in (16, 64, 256, 1024)]))
    with pytest.raises(records.RecordError, match="target = 0.9 and 0.97"):
        figures.target_curve([*by_the_law, reached(16, 50, target=0.9)])
    with pytest.raises(records.RecordError, match="no batch size got to 97% test accuracy"):
        figures.target_curve([reached(16, None)])
