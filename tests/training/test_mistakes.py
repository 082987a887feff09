"""Mistakes found in published tutorials, planted here: each must be caught."""

import pytest
from training.ladder import SAMPLES, TEST_SAMPLES, difference, ladder_run

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # the first test waits for all training runs

# What the training loop itself refuses, and the words that say so.
REFUSED = {
    "never_averaged": "the weights of rank 1 differ from those of rank 0",
    "never_shard": f"saw {2 * SAMPLES['even']} training samples instead of {SAMPLES['even']}",
    "pad_test_rows": f"saw {TEST_SAMPLES + 1} test samples instead of {TEST_SAMPLES}",
}
# What only the comparison with one process can show.
WRONG_WEIGHTS = ("never_averaged", "divide_again", "shard_by_local_rank")


def training_runs(folder):
    mistakes = dict.fromkeys([*REFUSED, *WRONG_WEIGHTS])
    runs = [ladder_run(folder, "smooth", "even", 2, "mpi", name, mistake=name) for name in mistakes]
    return {1: [ladder_run(folder, "smooth", "even", 1, "base")], 2: runs}


@pytest.mark.parametrize("mistake", REFUSED)
def test_refused_on_every_rank(trained, mistake):
    _, outcomes = trained
    for rank in outcomes[mistake]:
        assert REFUSED[mistake] in rank["error"]


@pytest.mark.parametrize("mistake", WRONG_WEIGHTS)
def test_ladder_shows_wrong_weights(trained, mistake):
    folder, _ = trained
    assert difference(folder, mistake, "smooth-even-base-1") > 1e-2  # a thousand times the tolerance
