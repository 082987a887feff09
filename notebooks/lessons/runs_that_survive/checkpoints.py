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


def simulated(
    work_s: float, interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0, seed: int = 1
) -> dict[str, float]:
    """Where the time of one simulated job went that needs `work_s` seconds of computing, in shares of all of it."""
    random = Random(seed)
    failure_s = random.expovariate(1 / mtbf_s)
    now_s = useful_s = saving_s = lost_s = restarting_s = 0.0
    while useful_s < work_s:
        piece_s = min(interval_s, work_s - useful_s)
        if now_s + piece_s + save_s <= failure_s:
            now_s += piece_s + save_s
            useful_s += piece_s
            saving_s += save_s
            continue
        lost_s += failure_s - now_s
        now_s = failure_s
        failure_s += random.expovariate(1 / mtbf_s)
        while failure_s < now_s + restart_s:  # a restart can fail, too
            restarting_s += failure_s - now_s
            now_s = failure_s
            failure_s += random.expovariate(1 / mtbf_s)
        restarting_s += restart_s
        now_s += restart_s
    spent_s = {"useful computing": useful_s, "saving": saving_s, "computing that was lost": lost_s}
    return {what: seconds / now_s for what, seconds in (spent_s | {"restarting": restarting_s}).items()}
