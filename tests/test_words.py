"""Words that depend on a number, and lists in words."""

from workshop_lib.words import duration, listed, plural


def test_only_one_is_singular():
    assert [plural(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]


def test_from_90_seconds_on_a_duration_is_in_minutes():
    assert [duration(seconds) for seconds in (12.3, 89.4, 89.6, 90, 180)] == ["12 s", "89 s", "2 min", "2 min", "3 min"]


def test_the_last_name_of_a_list_has_a_word_before_it():
    assert [listed("abc"[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert listed([1, 2], "or") == "1 or 2"
