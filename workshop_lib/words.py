"""Words that depend on a number, and lists in words."""

from collections.abc import Iterable


def plural(number: int, noun: str) -> str:
    """The number and the noun: "1 rank", "2 ranks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """A time in whole minutes or seconds, such as "about 12 s left" needs it: "3 min", "12 s"."""
    whole_s = round(seconds)  # first, so that 89.6 s and 90 s are shown alike
    return f"{whole_s / 60:.0f} min" if whole_s >= 90 else f"{whole_s} s"


def listed(names: Iterable, word: str = "and") -> str:
    """The names in words: "a", "a and b", "a, b and c"."""
    *first, last = map(str, names)
    return f"{', '.join(first)} {word} {last}" if first else last
