"""Checks of numbers that a user gives."""

import math
import reprlib

from workshop_lib.errors import InputError

MOST = 10**15  # the largest count that a user may give


def whole(name: str, value) -> int:
    """`value` as an int; raises InputError naming it unless it is a whole number from 1 to 10^15."""
    if not (1 <= value <= MOST and value % 1 == 0):
        raise InputError(f"{name} is {reprlib.repr(value)}: give a whole number from 1 to 10^15")
    return int(value)


def not_negative(**values: float) -> None:
    """Raise InputError naming the first of these values that is not a finite number of at least 0."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise InputError(f"{name} is {value!r}: give a number from 0 on")


def positive(**values: float) -> None:
    """Raise InputError naming the first of these values that is not a finite number above 0."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} is {value!r}: give a number above 0")
