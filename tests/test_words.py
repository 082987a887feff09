"""Words that depend on a number."""

from workshop_lib.words import plural


def test_only_one_is_singular():
    assert [plural(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
