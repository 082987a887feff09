"""The learner's fit of 08c_forecasting beside the library's: each leaves out one message size, and predicts it."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from workshop_lib.lessons.forecasting import fit

if TYPE_CHECKING:  # importing it at run time would start MPI in the notebook's process
    from workshop_lib.lessons.forecasting.benchmark import MessageRow

# Takes message sizes in bytes, seconds, and the index of the size to hold out. Returns alpha_s, beta_s_per_byte, and
# the relative error of the prediction for that size.
FitAndTest = Callable[[np.ndarray, np.ndarray, int], tuple[float, float, float]]


def fit_and_test(message_bytes: np.ndarray, seconds: np.ndarray, held_out: int) -> tuple[float, float, float]:
    """What the exercise of this name asks for, by `fit.relative_least_squares`: no constant comes out negative.

    Raises InputError for the same reasons as `fit.relative_least_squares`.
    """
    nbytes = np.delete(message_bytes, held_out)
    terms = {"alpha_s": np.ones(len(nbytes)), "beta_s_per_byte": nbytes}
    found = fit.relative_least_squares(terms, np.delete(seconds, held_out).tolist())
    predicted_s = found["alpha_s"] + found["beta_s_per_byte"] * message_bytes[held_out]
    return found["alpha_s"], found["beta_s_per_byte"], predicted_s / seconds[held_out] - 1


def beside_library(own: FitAndTest, messages: Iterable["MessageRow"], held_out_bytes: int) -> pd.DataFrame:
    """A table of the learner's `own` fit and the library's, both to `messages` of all sizes but `held_out_bytes`.

    The columns are alpha, beta, and the relative error of the prediction for `held_out_bytes`. While the exercise is
    open, the table has only the library's row.
    """
    rows = sorted(messages, key=lambda row: row["message_bytes"])
    message_bytes = np.array([row["message_bytes"] for row in rows])
    seconds = np.array([row["median_s"] for row in rows])
    held_out = message_bytes.tolist().index(held_out_bytes)
    lines = {}
    for whose, function in (("yours", own), ("the library's", fit_and_test)):
        try:
            lines[whose] = function(message_bytes, seconds, held_out)
        except NotImplementedError:
            continue
    return pd.DataFrame.from_dict(lines, orient="index", columns=["alpha_s", "beta_s_per_byte", "error"])
