"""Words that depend on a number."""


def plural(number: int, noun: str) -> str:
    """The number and the noun: "1 rank", "2 ranks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
