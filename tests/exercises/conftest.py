"""The ranks on which the answers of a file run: RANKS of them, 2 unless the file says otherwise."""

import pytest

from workshop_lib import ranks
from workshop_lib.notebook import checks

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


@pytest.fixture(autouse=True)
def no_long_wait(request, monkeypatch):
    """An answer that is known never to end is ended sooner than a learner's, which may only be slow."""
    if "never_ends" in request.node.name or "endless_loop_is" in request.node.name:
        monkeypatch.setitem(checks.judged.__kwdefaults__, "timeout", 2.0)
