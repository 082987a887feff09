"""Searches on real ranks: their budget, what a trial's weights depend on, and what happens when a rank is lost."""

import contextlib
import itertools
import os
import signal

import numpy as np
import pytest
from mpi4py import MPI
from our_ranks import stop_pressed_after

from workshop_lib import ranks
from workshop_lib.errors import InputError
from workshop_lib.ranks import RankError

from lessons.hyperparameter_search import schedulers, train_trial
from lessons.hyperparameter_search.search import search
from lessons.hyperparameter_search.train_trial import Job

pytestmark = pytest.mark.full

GOOD = {"lr": 0.05, "momentum": 0.5, "batch": 64, "seed": 1}
RUNGS = [128, 384]


@pytest.fixture(scope="module")
def team():
    yield ranks.start(2)
    ranks.stop()


@pytest.fixture(autouse=True)
def healthy(request):
    if "team" in request.fixturenames and not (team := request.getfixturevalue("team")).healthy:
        team.restart()


def settings():
    return ({"lr": 0.01 * 2 ** (at % 4), "momentum": 0.5, "batch": 32} for at in itertools.count())


@pytest.fixture
def few_held_out(monkeypatch):
    """Only here, in this process: to look at 5,000 images takes longer than these training runs."""
    monkeypatch.setattr(train_trial, "HELD_OUT", 100)


def test_a_trial_that_goes_on_takes_the_same_steps_as_one_that_was_never_stopped(tmp_path, few_held_out):
    train_trial.run(MPI.COMM_SELF, tmp_path, Job(0, GOOD, 256))
    train_trial.run(MPI.COMM_SELF, tmp_path, Job(0, GOOD, 640))
    whole = train_trial.run(MPI.COMM_SELF, tmp_path, Job(1, GOOD, 640))
    first, second = train_trial.load(tmp_path, 0), train_trial.load(tmp_path, 1)
    assert first.images == second.images == whole["new_images"] == 640
    assert np.array_equal(first.weights, second.weights) and np.array_equal(first.velocity, second.velocity)


def test_an_epoch_shows_every_image_once_whatever_the_batch():
    for batch in (64, 1000):
        rows = [
            train_trial.order(1, at, min(batch, train_trial.IMAGES - at % train_trial.IMAGES))
            for at in range(0, train_trial.IMAGES, batch)
        ]
        assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(train_trial.IMAGES))
    across = train_trial.order(1, train_trial.IMAGES - 2, 4)
    assert np.array_equal(across[:2], train_trial.order(1, 0, train_trial.IMAGES)[-2:])
    train, held_out = train_trial.data()
    assert train.start + train.total <= held_out.start == 55_000


def test_asha_spends_its_budget_on_busy_ranks_and_promotes_as_it_should(team, tmp_path):
    draws = settings()
    scheduler = schedulers.Asha(lambda: next(draws), RUNGS)
    state = search(team, scheduler, tmp_path, budget=1100, timeout_s=60)
    spent = sum(done.result["new_images"] for done in state.done)
    assert 1100 <= spent < 1100 + 2 * (RUNGS[1] - RUNGS[0]), "the last job of each rank may exceed it"
    assert {tuple(done.ranks) for done in state.done} == {(0,), (1,)}
    counts = [len(scores) for scores in scheduler.scores]
    assert counts[1] >= 1
    finished = [(done.result["trial"], done.result["images"]) for done in state.done]
    assert len(finished) == len(set(finished)), "no trial does a rung twice"
    for rank in (0, 1):
        jobs = sorted((d.start_s, d.end_s) for d in state.done if d.ranks == [rank])
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(jobs)), "one job at a time"


def test_all_ranks_together_train_as_one_does(team, tmp_path):
    together = search(team, schedulers.Listed([GOOD], 256), tmp_path / "a", together=True).done[0]
    assert together.ranks == [0, 1]
    search(team, schedulers.Listed([GOOD], 256), tmp_path / "b")
    a, b = train_trial.load(tmp_path / "a", 0), train_trial.load(tmp_path / "b", 0)
    assert np.abs(a.weights - b.weights).max() < 1e-4 * np.abs(b.weights).max()


class Wrong(schedulers.Asha):
    """Gives out a job that nobody can run."""

    def __init__(self, *jobs):
        self.jobs = iter(jobs)

    def ask(self):
        return next(self.jobs, None)

    def tell(self, trial, images, accuracy):
        pass


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([(0, GOOD, 128), (0, GOOD, 256)], "trial 0 to two ranks at once"),
        ([(0, {"lr": -1}, 128)], "learning rate -1"),
        ([(0, {"lr": 1, "layers": 3}, 128)], "layers"),
    ],
)
def test_a_scheduler_that_gives_out_nonsense_is_told_so(jobs, words, team, tmp_path):
    with pytest.raises(InputError, match=words):
        search(team, Wrong(*jobs), tmp_path)


def test_a_rank_that_is_killed_is_told_in_one_message_and_the_search_goes_on_with_fresh_ranks(team, tmp_path):
    draws = settings()
    scheduler = schedulers.Asha(lambda: next(draws), RUNGS)
    victim = team.about()[1]["pid"]

    def kill(state):
        if len(state.done) >= 2:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)

    with pytest.raises(RankError, match=r"rank 1 on .* was killed by SIGKILL"):
        search(team, scheduler, tmp_path, budget=100_000, timeout_s=60, show=kill)
    assert not team.healthy
    told = len(scheduler.scores[0])
    assert told >= 2
    team.restart()
    search(team, scheduler, tmp_path / "fresh", budget=256, timeout_s=60)
    assert len(scheduler.scores[0]) > told, "what was told before the kill still counts"


@pytest.mark.exhaustive
def test_an_interrupt_ends_a_search_and_leaves_usable_ranks(team, tmp_path):
    with pytest.raises(RankError, match="interrupted"), stop_pressed_after(1):
        search(team, schedulers.Listed([GOOD], 10**7), tmp_path, timeout_s=60)
    assert ranks.current().healthy
