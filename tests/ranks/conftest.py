"""What several modules of tests share: an end without ranks, hosts, and the trainings that they look at."""

import os

import pytest
import tiers
from hosts import CannotCreate, Hosts
from our_ranks import our_ranks
from ranks.trainings import train_all

from workshop_lib import ranks


@pytest.fixture(scope="module")
def no_ranks_afterwards():
    """The module's tests may hand their ranks on to the next; after the last one, none are left."""
    yield
    ranks.stop()
    assert not our_ranks(), "processes were left behind"


@pytest.fixture(scope="module")
def hosts(request):
    """Hosts with the module's NAMES; skips where there can be none, unless WORKSHOP_REQUIRE_CLUSTER=1."""
    try:
        made = Hosts(*request.module.NAMES)
    except CannotCreate as error:
        if os.environ.get("WORKSHOP_REQUIRE_CLUSTER") == "1":
            raise
        pytest.skip(str(error))
    yield made
    made.close()


@pytest.fixture(scope="module")
def only_small_mnist(small_mnist):
    """The commands that the module's tests run find nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKSHOP_MNIST", small_mnist)
        yield


@pytest.fixture(scope="session")
def trained(request, tmp_path_factory):
    """What came of all trainings that the chosen tests ask for (see trainings.py)."""
    items = request.session.items
    modules = dict.fromkeys(item.module for item in items if hasattr(item.module, "trainings"))
    chosen = {tiers.tier_of(item) for item in items if item.module in modules}
    return train_all(modules, tmp_path_factory.mktemp("trained"), chosen)
