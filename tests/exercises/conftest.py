"""The ranks on which the answers of a file run: RANKS of them, 2 unless the file says otherwise."""

import pytest

from workshop_lib import ranks

pytest.register_assert_rewrite("verdicts")


@pytest.fixture(scope="module", autouse=True)
def team(request):
    yield ranks.start(getattr(request.module, "RANKS", 2))
    ranks.stop()


@pytest.fixture(autouse=True)
def healthy(team):
    """A wrong answer that left the ranks stuck does not reach the next test."""
    if not team.healthy:
        team.restart()
