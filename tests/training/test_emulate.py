"""Emulated workers: the arithmetic of N ranks on fewer or more, equal to N real ranks up to rounding."""

import pytest
from training.ladder import SAMPLES, agreed_record, cases, difference, ladder_run

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # the first test waits for all training runs

WORKERS = (2, 4, 8)
EMULATED = [(2, 1), (4, 1), (8, 1), (1, 2), (4, 2), (8, 2), (2, 4)]  # workers, ranks
LINEAR = {"lr": 0.02, "lr_scaling": "linear"}
# In double precision near-ties of max-pooling do not matter; dropout is drawn by each worker.
CLASSIC = {"network": "classic", "nesterov": False, "momentum": 0.5}
KINDS = {"smooth": ("smooth", {}, 1e-5), "classic": ("double", CLASSIC, 1e-11)}


def is_quick(workers, ranks):
    """In `make test-full`: more workers than ranks, on one rank and on two, and fewer."""
    return (workers, ranks) in ((2, 1), (4, 2), (1, 2))


def needed(workers, ranks):
    """The emulated runs of `make test-full`, and the real ones they're compared with."""
    return is_quick(workers, ranks) or (workers == ranks and ranks < 8)


def run_of(folder, kind, workers, ranks):
    variant, options, _ = KINDS[kind]
    emulated = {} if workers == ranks else {"emulate_workers": workers}
    name, options = f"{kind}-{workers}-on-{ranks}", LINEAR | options | emulated
    return ladder_run(folder, variant, "ragged", workers, "mpi", name, options)


def training_runs(folder):
    """The ragged run on N real ranks, and on others that emulate them."""
    pairs = [*((n, n) for n in (1, *WORKERS)), *EMULATED]
    return {
        ranks: [
            run_of(folder, kind, *pair) | {"exhaustive": not needed(*pair)}
            for kind in KINDS
            for pair in pairs
            if pair[1] == ranks
        ]
        for ranks in (1, *WORKERS)
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("workers", "ranks"), cases(EMULATED, is_quick))
def test_equal_to_as_many_real_ranks(trained, workers, ranks, kind):
    folder, found = trained
    emulated, real = f"{kind}-{workers}-on-{ranks}", f"{kind}-{workers}-on-{workers}"
    records = [agreed_record(found, name) for name in (emulated, real)]
    assert difference(folder, emulated, real) < KINDS[kind][2]
    assert records[0]["what"]["global_batch"] == records[1]["what"]["global_batch"]
    assert SAMPLES["ragged"] % records[0]["what"]["global_batch"], "the last step is ragged"
    for emulated_row, row in zip(*(record["epochs"] for record in records), strict=True):
        assert emulated_row["lr"] == row["lr"]
        assert emulated_row["train_loss"] == pytest.approx(row["train_loss"], rel=1e-4)
