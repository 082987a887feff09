"""The ranks on which the answers of a file run: RANKS of them, 2 unless the file says otherwise."""

import pytest

pytest.register_assert_rewrite("exercises.verdicts")

from exercises.verdicts import verdicts_of  # noqa: E402

from workshop_lib import ranks  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def team(request):
    """Healthy ranks of the same number are kept from file to file."""
    return ranks.start(getattr(request.module, "RANKS", 2))


@pytest.fixture(scope="package", autouse=True)
def no_ranks_afterwards():
    yield
    ranks.stop()


@pytest.fixture(autouse=True)
def healthy(team):
    """A wrong answer that left the ranks stuck does not reach the next test."""
    if not team.healthy:
        team.restart()


@pytest.fixture(scope="class")
def verdicts(request, team):
    return verdicts_of(request.cls, team)
