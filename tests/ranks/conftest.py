"""The trainings that several modules of tests look at."""

import pytest
from ranks.trainings import train_all


@pytest.fixture(scope="session")
def trained(request, tmp_path_factory):
    """What came of all trainings that the chosen tests ask for (see trainings.py)."""
    items = request.session.items
    modules = dict.fromkeys(item.module for item in items if hasattr(item.module, "trainings"))
    thorough = any(item.get_closest_marker("exhaustive") for item in items)
    return train_all(modules, tmp_path_factory.mktemp("trained"), thorough)
