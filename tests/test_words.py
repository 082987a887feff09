"""Words that depend on a number."""

from workshop_lib.words import duration, plural


def test_only_one_is_singular():
    assert [plural(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]


def test_from_90_seconds_on_a_duration_is_in_minutes():
    assert [duration(seconds) for seconds in (12.3, 89.4, 89.6, 90, 180)] == ["12 s", "89 s", "2 min", "2 min", "3 min"]
