"""Schedulers without ranks, what a search has found, and a study in Optuna's journal that outlives a kill -9."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from drawn import check_layout
from exercises import answers

from lessons.hyperparameter_search import figures, live, schedulers, seeds
from lessons.hyperparameter_search.search import DoneJob, Search
from lessons.hyperparameter_search.train_trial import Job

NOTEBOOK = "14_hyperparameter_search"
RUNGS = [10, 30, 90]


def played(scheduler, budget, ranks=3):
    """Jobs in the order in which they end, of ranks that take turns; trial 7 is best. (trial, images, new images)"""
    running, seen, jobs, spent = [], {}, [], 0
    while True:
        while len(running) < ranks and spent < budget and (job := scheduler.ask()) is not None:
            spent += job[2] - seen.get(job[0], 0)
            running.append(job)
        if not running:
            return jobs
        trial, _, images = running.pop(0)
        jobs.append((trial, images, images - seen.get(trial, 0)))
        seen[trial] = images
        scheduler.tell(trial, images, 1 / (1 + abs(trial - 7)))


def test_halving_costs_what_the_formula_says_and_the_best_reaches_the_top():
    jobs = played(schedulers.Halving(dict, 9, RUNGS), 10**9)
    assert sum(new for *_, new in jobs) == 9 * 10 + 3 * 20 + 1 * 60
    assert [trial for trial, images, _ in jobs if images == 90] == [7]


def test_asha_stops_at_its_budget_and_sends_a_third_on():
    jobs = played(schedulers.Asha(dict, RUNGS), 2000)
    assert 2000 <= sum(new for *_, new in jobs) < 2000 + 3 * 60
    counts = [sum(images == rung for _, images, _ in jobs) for rung in RUNGS]
    assert counts[1] == counts[0] // 3 and counts[2] == counts[1] // 3
    assert len({job[:2] for job in jobs}) == len(jobs)


def test_a_grid_has_every_combination_and_ends():
    settings = schedulers.grid(lr=[1, 2], batch=[3, 4, 5])
    assert len(settings) == 6 and {"lr": 2, "batch": 4} in settings
    assert [job[:2] for job in played(schedulers.Listed(settings, 8), 10**9)] == [(at, 8) for at in range(6)]
    assert schedulers.OneJob({"lr": 1}, 8).ask() == (0, {"lr": 1}, 8)


def test_more_seeds_choose_better_and_fewer_are_needed_for_larger_differences():
    random = np.random.default_rng(1)
    a, b, c = (random.normal(mean, 0.01, 20) for mean in (0.96, 0.955, 0.93))
    shares = [seeds.wrong_winner(a, b, n) for n in (1, 5, 50)]
    assert shares == sorted(shares, reverse=True) and 0.1 < shares[0] < 0.5 and shares[-1] < 0.05
    assert seeds.wrong_winner(a, a, 3) == pytest.approx(0.5, abs=0.05)
    assert seeds.seeds_needed(a, c) <= 2 < seeds.seeds_needed(a, b)


def done(trial, images, held_out, ranks, start_s, end_s):
    result = {"trial": trial, "setting": {"lr": 0.1, "momentum": 0.0, "batch": 32}, "images": images, "train_loss": 0.5}
    return DoneJob(result | {"new_images": images, "held_out": held_out, "diverged": False}, ranks, start_s, end_s)


def test_the_figures_are_drawn_and_idle_time_is_counted(tmp_path):
    state = Search(2, tmp_path, done=[done(0, 10, 0.6, [0], 0, 2), done(1, 20, 0.5, [1], 0, 1)])
    assert figures.idle_share(state) == pytest.approx(0.25)
    assert state.held_out(10) == {0: 0.6} and state.best == 0.6
    check_layout(figures.ranks_over_time({"two": state}))
    figure = figures.best_so_far({"two": state})
    check_layout(figure)
    (line,) = figure.axes[0].lines
    assert line.get_xdata().tolist() == [10, 30] and line.get_ydata().tolist() == pytest.approx([40, 40])


def test_the_records_say_what_the_notebook_says_about_them():
    first, second, third = repeated = list(seeds.recorded().values())
    assert sorted(repeated, key=np.mean, reverse=True) == repeated
    assert np.median(third) == pytest.approx(np.median(first), abs=0.001), "its median is as high"
    assert sorted(third)[1] < min(first + second) < sorted(third)[2], "two of its ten seeds end badly"
    assert min(seeds.seeds_needed(first, other) for other in (second, third)) > len(first), "more than were recorded"
    assert seeds.spread() == pytest.approx(np.std(first, ddof=1)), "the middle one of their standard deviations"


def test_a_difference_counts_from_twice_its_own_spread_on():
    limit = 2 * 2**0.5 * seeds.spread()
    assert "Another seed could reverse it" in seeds.verdict({"a": 0.95, "b": 0.95 + 0.9 * limit})
    clear = seeds.verdict({"a": 0.95, "b": 0.95 + 1.1 * limit})
    assert clear.startswith("b 9") and "3.1 times" in clear and clear.endswith("That counts.")


def test_the_finalists_are_the_trials_with_the_most_images(tmp_path):
    team = SimpleNamespace(run=lambda function, folder, trial, show: [trial / 5])
    state = Search(2, tmp_path, done=[done(n, images, n / 10, [0], 0, 1) for n, images in ((1, 10), (2, 30), (3, 30))])
    rows = [tuple(row.values()) for row in live.finalists(team, state)]
    assert rows == [(2, 0.5, 0.2, 0.4), (3, 0.5, 0.3, 0.6)]


def test_the_live_table_lists_running_trials_and_the_best_of_the_others(tmp_path):
    state = Search(2, tmp_path, 100, done=[done(0, 10, 0.5, [0], 0, 2)])
    state.running[1] = Job(1, {"lr": 0.1, "momentum": 0.0, "batch": 32}, 30), 0.0
    assert "10% of the budget" in live.bar(state) and "on rank 1" in live.table(state)


KILLED = """
rungs = [10, 30, 90]
study = Study(open_study(sys.argv[1]), rungs)
for at in range(4):
    trial, _, images = study.ask()
    study.tell(trial, images, at / 10)
study.ask(), study.ask()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_study_goes_on_after_its_process_was_killed(tmp_path):
    parts = [answers.source(NOTEBOOK, name) for name in ("Study", "open_study")]
    program = "\n".join(["import os, signal, sys", *parts, KILLED])
    journal = tmp_path / "study.log"
    ended = subprocess.run([sys.executable, "-c", program, str(journal)], capture_output=True, timeout=100, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    open_study, scheduler = answers.solution(NOTEBOOK, "open_study"), answers.solution(NOTEBOOK, "Study")
    open_study.__globals__.update(rungs=RUNGS)
    open_study.__globals__.setdefault("optuna", sys.modules["optuna"])
    study = open_study(journal)
    told = [value for trial in study.trials for value in trial.intermediate_values.values()]
    assert sorted(told) == [0, 0.1, 0.2, 0.3], "what it was told before the kill"
    known = {trial.number for trial in study.trials}
    assert scheduler(study, RUNGS).ask()[0] not in known, "its next trial is a new one"
