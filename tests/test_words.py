"""Numbers in words."""

from workshop_lib.words import duration, plural, ranges


def test_only_one_is_singular():
    assert [plural(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]


def test_from_90_seconds_on_a_duration_is_in_minutes():
    assert [duration(seconds) for seconds in (12.3, 89.4, 89.6, 90, 180)] == ["12 s", "89 s", "2 min", "2 min", "3 min"]


def test_three_in_a_row_are_a_range():
    assert ranges([]) == [] and ranges([5, 1, 0]) == ["0", "1", "5"] and ranges([7, 0, 1, 2]) == ["0–2", "7"]
