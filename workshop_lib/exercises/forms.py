"""The form of what a function returned: whether it is that of the right result, and the form in words."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from workshop_lib.exercises.judge import is_number, shown


def plain(value: Any) -> Any:
    """A value as data that stays as it is: copies of arrays, tensors as arrays, and these in lists and dictionaries."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value


def fits(got: Any, right: Any) -> bool:
    """Whether a result has the form of the right one. Any result has the form of None."""
    if right is None:
        return True
    if isinstance(right, bool | str):
        return isinstance(got, type(right))
    if is_number(right):
        return is_number(got)
    if isinstance(right, np.ndarray):
        return _shape(got) == right.shape
    if isinstance(right, dict):
        return isinstance(got, dict) and got.keys() == right.keys() and all(fits(got[key], right[key]) for key in right)
    if isinstance(right, tuple | list):
        if not isinstance(got, tuple | list) and not (isinstance(got, np.ndarray) and got.ndim):
            return False
        same_length = len(got) == len(right) or isinstance(right, list)
        return same_length and all(fits(a, b) for a, b in zip(got, right, strict=False))
    if callable(right):
        return callable(got) and not hasattr(got, "parameters")  # a network can be called, but it's no function
    return type(got).__name__ == type(right).__name__ or isinstance(got, type(right))


def _shape(value: Any) -> tuple | None:
    """The shape of an array or of nested lists of numbers; None of anything else."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    return None if array.dtype == object else array.shape


def described(value: Any) -> str:
    """A value's form in words, such as "an array of 4". Text and other objects are shown as they are."""
    if value is None:
        return "nothing"
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of {len(value)}" if value.ndim == 1 else f"an array of shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}{_parts(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)}{_parts(value)}"
    if isinstance(value, dict):
        return f"a dictionary with the keys {', '.join(map(repr, value))}{_parts(value.values())}"
    if is_number(value):
        return "a number"
    if callable(value) and getattr(value, "__self__", None) is not None:
        return f"`{value.__name__}` without `()`"
    return shown(value) if isinstance(value, str | bool) else f"a {type(value).__name__}"


def _parts(values: Iterable) -> str:
    """The forms of these values in parentheses, if there are not too many different ones."""
    parts = [described(value) for value in values]
    if len(set(parts)) == 1:
        return f" (each {parts[0]})"
    return f" ({', '.join(parts)})" if 1 < len(parts) <= 4 else ""
