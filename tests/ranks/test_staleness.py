"""Synchronous, lagging, local and asynchronous SGD on real ranks: each update is what it should be."""

import json
from pathlib import Path

import pytest
from ranks.launching import run_script

SCRIPT = Path(__file__).with_name("staleness_runs.py")
STEPS = 12
ROUNDING = 1e-12


@pytest.fixture(scope="module", params=[2, 3])
def found(request, tmp_path_factory):
    """{case: [what each rank found]}, with the number of ranks under "ranks"."""
    file = tmp_path_factory.mktemp("staleness") / "found.json"
    run_script(request.param, SCRIPT, file, timeout_s=60)
    return json.loads(file.read_text()) | {"ranks": request.param}


def histogram(counts):
    return {int(staleness): count for staleness, count in counts.items()}


@pytest.mark.parametrize(
    ("case", "staleness"),
    [
        ("synchronous", {0: 12}),
        ("lag_sync", {0: 1, 1: 11}),  # the first gradient has nothing to be late against
        ("local_every_step", {0: 12}),
        ("local_every_five", {0: 3, 1: 3, 2: 2, 3: 2, 4: 2}),
    ],
)
def test_it_is_the_recurrence_that_it_says(found, case, staleness):
    for of_rank in found[case]:
        assert of_rank["difference"] < ROUNDING
        assert histogram(of_rank["staleness"]) == staleness
        assert sum(of_rank["staleness"].values()) == STEPS
    if "from synchronous" in found[case][0]:
        assert found[case][0]["from synchronous"] > 1e-3, "else the comparison could not fail"


def test_each_asynchronous_update_is_of_the_weights_that_the_server_had_sent(found):
    server, *workers = found["asynchronous"]
    updates = 3 * STEPS
    assert server["updates"] == sum(server["staleness"].values()) == updates
    assert [of_rank["difference"] < ROUNDING for of_rank in found["asynchronous"]] == [True] * found["ranks"]
    done = list(server["by worker"].values())
    assert [worker["computed"] for worker in workers] == [list(range(count)) for count in done]
    assert sum(done) == updates
    if found["ranks"] == 2:
        assert histogram(server["staleness"]) == {0: updates}
        assert server["from plain SGD"] < ROUNDING
    else:
        assert max(histogram(server["staleness"])) > 1, "the slow worker's gradients come late"
        assert done[0] > done[1] > 0, "and the quick one does more"
        assert server["from plain SGD"] > 1e-3


def test_hardly_any_updates(found):
    for of_rank in found["fewer_updates_than_workers"]:
        assert of_rank["difference"] < ROUNDING
    assert found["fewer_updates_than_workers"][0]["updates"] == 1
    assert found["none_at_all"] == [0] * found["ranks"]


def test_with_lag_sync_nobody_waits_for_a_rank_that_is_late_by_less_than_a_step(found):
    """While a rank is still at its gradient, all others have begun the next one: in each of its steps,
    whichever it is. Synchronous ranks have not in any."""
    late_first, late_last = 0, found["ranks"] - 1
    for place, rank in enumerate((late_first, late_last)):
        assert found["ahead"][rank]["lag_sync"][place] == STEPS - 1
        assert found["ahead"][rank]["synchronous"][place] == 0


def test_every_wait_ends_and_says_what_was_missing(found):
    told = found["a_rank_that_does_not_come"][0]
    assert len(told["errors"]) == 2
    for error in told["errors"]:
        assert error.startswith("rank 0 waited 0.3 s for all ranks to begin: ")
    silent = found["a_worker_that_never_answers"][0]
    assert silent["error"].startswith("rank 0 waited 0.3 s for a gradient from any worker: ")
    assert max([*told["seconds"], silent["seconds"]]) < 5
