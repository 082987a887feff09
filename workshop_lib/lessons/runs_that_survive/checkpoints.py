"""How often to save a checkpoint: a rule, the exact expectation, and a simulation. All times are in seconds.

13b_runs_that_survive draws all of them in one figure.

The model: failures come at random, one every `mtbf_s` on average. A failure loses all work since the last checkpoint,
and it takes `restart_s` until the training computes again.
"""

import math
from random import Random


def young(save_s: float, mtbf_s: float) -> float:
    """The best time of computing between two checkpoints, to first order (Young, CACM 17(9), 1974)."""
    return math.sqrt(2 * save_s * mtbf_s)


def useful_share(interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """The expected share of the time that is useful computing, exactly (Daly, 2006)."""
    tries = math.expm1((interval_s + save_s) / mtbf_s)
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * tries)


MONTH_S = 30 * 24 * 3600.0


def simulated(
    work_s: float, interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0, seed: int = 1
) -> dict[str, float]:
    """Where the seconds of one simulated job went that needs `work_s` seconds of computing."""
    random = Random(seed)
    failure_s = random.expovariate(1 / mtbf_s)
    now_s = 0.0
    spent_s = {"useful computing": 0.0, "saving": 0.0, "computing that was lost": 0.0, "restarting": 0.0}
    while spent_s["useful computing"] < work_s:
        piece_s = min(interval_s, work_s - spent_s["useful computing"])
        if now_s + piece_s + save_s <= failure_s:
            now_s += piece_s + save_s
            spent_s["useful computing"] += piece_s
            spent_s["saving"] += save_s
            continue
        spent_s["computing that was lost"] += failure_s - now_s
        now_s = failure_s
        failure_s = now_s + random.expovariate(1 / mtbf_s)
        while failure_s < now_s + restart_s:  # a restart can fail, too
            spent_s["restarting"] += failure_s - now_s
            now_s = failure_s
            failure_s = now_s + random.expovariate(1 / mtbf_s)
        spent_s["restarting"] += restart_s
        now_s += restart_s
    return spent_s


def simulated_share(*job: float, seed: int = 1) -> float:
    """The useful share of the time in one simulated job; the arguments are those of `simulated`."""
    spent_s = simulated(*job, seed=seed)
    return spent_s["useful computing"] / sum(spent_s.values())


def month(interval_s: float, save_s: float, mtbf_s: float, restart_s: float) -> dict[str, float]:
    """Where the 30 days of a month went, from a simulated job of about that length."""
    spent_s = simulated(MONTH_S, interval_s, save_s, mtbf_s, restart_s)
    return {what: 30 * seconds / sum(spent_s.values()) for what, seconds in spent_s.items()}
