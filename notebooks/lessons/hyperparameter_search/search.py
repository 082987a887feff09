"""Run the jobs of a search on the ranks: independent jobs on one rank each, or one job at a time on all ranks.

The searches of 14_hyperparameter_search run through this file. The notebook's process hands out the jobs, so no rank is
lost to a scheduler. Every wait has a time limit, as in any call on the ranks: the running jobs form one `Call`, and a
new job joins it whenever a rank is free.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import cloudpickle

from workshop_lib.errors import InputError
from workshop_lib.ranks.call.call import Call
from workshop_lib.ranks.faults import failures
from workshop_lib.ranks.faults.rank_errors import RankError

from lessons.hyperparameter_search import train_trial
from lessons.hyperparameter_search.train_trial import Job, TrialResult

VIEW_EVERY_S = 0.25
READY_LIMIT_S = 120.0  # time limit for loading the images on every rank


class Scheduler(Protocol):
    """The interface of a scheduler, which decides what to train next.

    `ask` returns (trial, setting, images) for a free rank, or None when there is nothing to do for now. `tell` reports
    the accuracy of a trial that has seen this many images.
    """

    def ask(self) -> tuple[int, Any, int] | None: ...
    def tell(self, trial: int, images: int, accuracy: float) -> None: ...


@dataclass
class DoneJob:
    """A finished job: its result, its ranks, and when it started and ended, in seconds since the search began."""

    result: TrialResult
    ranks: list[int]
    start_s: float
    end_s: float


@dataclass
class Search:
    """What a search has done so far. running: each running job, and its start in seconds, by its first rank."""

    n: int  # number of ranks
    folder: Path  # holds the trials' weights
    budget: int | None = None  # images over all trials; None is no limit
    done: list[DoneJob] = field(default_factory=list)
    running: dict[int, tuple[Job, float]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def images(self) -> int:
        """How many images the finished jobs trained on."""
        return sum(done.result["new_images"] for done in self.done)

    @property
    def spent(self) -> int:
        """Images over all trials: those that they have seen, and those that the running jobs will add."""
        return self.images + sum(job.images - self.seen(job.trial) for job, _ in self.running.values())

    def seen(self, number: int) -> int:
        """Return how many images this trial had seen at the end of its last job."""
        return max((done.result["images"] for done in self.done if done.result["trial"] == number), default=0)

    def longest(self) -> list[TrialResult]:
        """Return the results of the trials that have seen the most images."""
        results = [done.result for done in self.done]
        most = max((result["images"] for result in results), default=0)
        return [result for result in results if result["images"] == most]

    def held_out(self, images: int) -> dict[int, float]:
        """Return the held-out accuracy of each trial that was evaluated after this many images, by its number."""
        results = [done.result for done in self.done]
        return {result["trial"]: result["held_out"] for result in results if result["images"] == images}

    @property
    def best(self) -> float:
        """The highest held-out accuracy of any trial, at the end of any of its jobs."""
        return max((done.result["held_out"] for done in self.done), default=0.0)


class Jobs(Call):
    """The running jobs, as one call. A rank without a job isn't running."""

    def __init__(self, team):
        super().__init__(team)
        self.since: dict[int, float] = {}  # when each rank's job started, in seconds since the search began

    def start(self, ranks: list[int], payload: bytes) -> None:
        self.send(payload, ranks)
        self.since |= dict.fromkeys(ranks, self.elapsed_s)


def search(
    team,
    scheduler: Scheduler,
    folder: Path,
    budget: int | None = None,
    together: bool = False,
    timeout_s: float = 60.0,
    show: Callable[[Search], object] = bool,
) -> Search:
    """Hand the scheduler's jobs to free ranks until the trials have seen `budget` images; return what was done.

    A search also ends when the scheduler has no job and none is running. Without a budget, nothing else ends it, and
    some schedulers never run out of jobs. A job runs on one rank, or on all ranks `together`. The last jobs may exceed
    the budget, because a job's size is known only once the scheduler has given it out. `show` is called with the search
    four times a second.

    Raises one RankError when a rank ends, a trial raises, or a job takes longer than timeout_s seconds. The jobs that
    had finished by then are in the trials' files, and the scheduler knows their accuracies. Raises InputError for a job
    that nobody can train.
    """
    if not team.healthy:
        raise RankError(f"These ranks cannot run anything: {team.trouble}. {team.remedy}")
    if (budget is not None and not budget > 0) or not timeout_s > 0:
        raise InputError(f"budget {budget!r}, timeout_s {timeout_s!r}: both must be above 0.")
    Path(folder).mkdir(parents=True, exist_ok=True)
    team.run(train_trial.ready, timeout=READY_LIMIT_S, show=False)
    jobs = Jobs(team)
    state = Search(team.n, Path(folder).absolute(), budget)
    groups = [list(range(team.n))] if together else [[rank] for rank in range(team.n)]
    team.busy = True
    try:
        _follow(jobs, state, scheduler, groups, timeout_s, show)
    except KeyboardInterrupt:
        failures.raise_interrupted(jobs)
    except InputError:  # for example, a job that nobody can train
        jobs.signal(signal.SIGINT)
        if not jobs.wait(failures.STILL_LIMIT_S):
            team.give_up("a search on them was cut off")  # a job still running would block the next call
        raise
    except BaseException:
        if jobs.running and team.trouble is None:
            team.give_up("a search on them was cut off")
        raise
    finally:
        team.busy = False
        state.seconds = jobs.elapsed_s
        show(state)
    return state


def _follow(jobs: Jobs, state: Search, scheduler, groups, timeout_s: float, show: Callable) -> None:
    next_view = 0.0
    while True:
        for ranks in groups:
            if ranks[0] not in state.running and (state.budget is None or state.spent < state.budget):
                _start(jobs, state, scheduler, ranks, together=len(groups) == 1 and jobs.team.n > 1)
        if not state.running:
            return
        jobs.collect()
        if jobs.failed:
            _raise_failed(jobs)
        for ranks in groups:
            if ranks[0] in state.running and not set(ranks) & set(jobs.running):
                _end(jobs, state, scheduler, ranks)
        state.seconds = jobs.elapsed_s
        if any(state.seconds - jobs.since[rank] > timeout_s for rank in jobs.running):
            failures.raise_timeout(jobs, timeout_s)
        if state.seconds >= next_view:
            next_view = state.seconds + VIEW_EVERY_S
            show(state)
        time.sleep(0.01)


def _start(jobs: Jobs, state: Search, scheduler, ranks: list[int], together: bool) -> None:
    asked = scheduler.ask()
    if asked is None:
        return
    job = train_trial.checked(Job(*asked))
    if any(job.trial == other.trial for other, _ in state.running.values()):
        raise InputError(f"the scheduler gives trial {job.trial} to two ranks at once: each job needs its own trial.")
    if job.images <= state.seen(job.trial):
        raise InputError(
            f"the scheduler sends trial {job.trial} to {job.images} images, but it has seen {state.seen(job.trial)}: "
            "count the images of a trial from its first job on."
        )
    jobs.start(ranks, cloudpickle.dumps((train_trial.trial_here, (state.folder, *job, together), {})))
    state.running[ranks[0]] = job, jobs.elapsed_s


def _end(jobs: Jobs, state: Search, scheduler, ranks: list[int]) -> None:
    _, since = state.running.pop(ranks[0])
    result: TrialResult = jobs.outcomes[ranks[0]]["value"]
    state.done.append(DoneJob(result, ranks, since, jobs.elapsed_s))
    scheduler.tell(result["trial"], result["images"], result["held_out"])


def _raise_failed(jobs: Jobs) -> None:
    """Interrupt the other jobs, which are of no use once a trial has raised, and raise its error."""
    jobs.signal(signal.SIGINT)
    if not jobs.wait(failures.INTERRUPT_LIMIT_S):
        failures.raise_stuck(jobs, jobs.stacks())
    interrupted = [rank for rank in jobs.failed if "KeyboardInterrupt" in jobs.outcomes[rank]["error"]["what"]]
    for rank in interrupted:
        jobs.forget(rank)
    failures.raise_failed(jobs)
