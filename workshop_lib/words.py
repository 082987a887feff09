"""Numbers in words."""

from collections.abc import Iterable


def plural(number: int, noun: str) -> str:
    """The number and the noun: "1 rank", "2 ranks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """A time in whole minutes or seconds, such as "about 12 s left" needs it: "3 min", "12 s"."""
    whole_s = round(seconds)  # first, so that 89.6 s and 90 s are shown alike
    return f"{whole_s / 60:.0f} min" if whole_s >= 90 else f"{whole_s} s"


def ranges(numbers: Iterable[int]) -> list[str]:
    """Numbers as texts, three or more in a row as one range: ["0–126", "128"]."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts: list[str] = []
    for run in runs:
        if len(run) > 2:
            parts.append(f"{run[0]}–{run[-1]}")
        else:
            parts += map(str, run)
    return parts
