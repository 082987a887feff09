"""What a learner's function returned on each rank, next to the right value."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workshop_lib.judge import Property, close, shown

RETURN_IT = "give the result a name and `return` it."
Cases = dict[str, "JudgedCall"]  # one rank's calls by the name of the case


@dataclass
class JudgedCall:
    """What one call returned on one rank, what it should have returned, whether the function left its argument
    unchanged, and what it sent."""

    returned: Any
    right: Any
    unchanged: bool = True
    messages: int = 0
    bytes: int = 0
    rounds: int = 0


def while_right(comm, cases: dict[str, Any], call: Callable[[Any], JudgedCall]) -> Cases:
    """Call the function for one case after another, up to the first case whose value is wrong on some rank.

    Every rank calls this. Each case costs one blocking allgather. Put easy cases first: after a wrong value, a later
    case might fail in a way that says less.
    """
    calls = {}
    for name, case in cases.items():
        calls[name] = call(case)
        if not all(comm.allgather(close(calls[name].returned, calls[name].right))):
            break
    return calls


def of_case(observations: list[Cases], case: str) -> list[JudgedCall]:
    """Every rank's call of one case. The case exists only if all cases before it were right."""
    return [cases[case] for cases in observations]


def all_right(text: str, calls: Sequence[JudgedCall], hint: str = "", same: Callable = close) -> Property:
    """The property that every rank returned the right value. Without `hint`, the known mistakes may provide one."""
    returned = [call.returned for call in calls]
    observed = next(
        (
            f"rank {rank} returned {shown(call.returned)} where {shown(call.right)} is right."
            for rank, call in enumerate(calls)
            if not same(call.returned, call.right)
        ),
        "",
    )
    return Property(text, not observed, hint and f"{observed} {hint}", returned, observed)


def all_arrays(calls: list[JudgedCall]) -> Property:
    other = [(rank, call.returned) for rank, call in enumerate(calls) if not isinstance(call.returned, np.ndarray)]
    hint = f"rank {other[0][0]} returned {shown(other[0][1])}: {RETURN_IT}" if other else ""
    return Property("every rank returns an array", not other, hint)
