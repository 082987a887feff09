"""Fits recover the constants that made-up times were made from."""

import numpy as np
import pytest

from lessons.forecasting import fit

ALPHA_S, BETA_S_PER_BYTE = 2e-6, 1.5e-10
COMPUTE = {"s_per_step": 3e-4, "s_per_parameter": 1e-9, "s_per_sample": 2e-6, "s_per_product": 5e-11}
SIZES = [4**k for k in range(1, 14)]
EXACT = 1e-9


def message_row(nbytes, seconds, way="ping-pong", ranks=2):
    return {"way": way, "ranks": ranks, "message_bytes": nbytes, "median_s": seconds}


def messages(noise=lambda: 1.0, way="ping-pong"):
    return [message_row(n, (ALPHA_S + BETA_S_PER_BYTE * n) * noise(), way) for n in SIZES]


def computing_s(width, batch):
    parameters = 795 * width + 10
    return sum(COMPUTE[name] * term for name, term in fit.compute_terms(parameters, batch).items())


def step_row(width, batch, extra_s=0.0):
    parameters, compute_s = 795 * width + 10, computing_s(width, batch)
    return {
        "width": width,
        "batch": batch,
        "ranks": 2,
        "parameters": parameters,
        "message_bytes": 4 * parameters,
        "compute_s": [0.9 * compute_s, compute_s, 7 * compute_s],
        "step_s": [compute_s, compute_s + ALPHA_S + BETA_S_PER_BYTE * 4 * parameters + extra_s, 1.0],
    }


def test_latency_and_bandwidth_are_recovered():
    found = fit.message_time([*messages(), message_row(8, 1.0, "ring")])
    assert found == pytest.approx({"alpha_s": ALPHA_S, "beta_s_per_byte": BETA_S_PER_BYTE}, rel=EXACT)


def test_small_messages_count_as_much_as_large_ones():
    """By absolute errors, one large message that took 20 % longer would swallow the latency."""
    rows = messages()
    rows[-1]["median_s"] *= 1.2
    assert fit.message_time(rows)["alpha_s"] == pytest.approx(ALPHA_S, rel=0.03)


def test_a_constant_that_would_be_negative_is_zero_and_the_rest_fits_without_it():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    found = fit.relative_least_squares({"start_s": np.ones(4), "each_s": x}, 2 * x - 0.1)
    assert found["start_s"] == 0
    alone = fit.relative_least_squares({"each_s": x}, 2 * x - 0.1)
    assert found["each_s"] == alone["each_s"] < 2


def test_what_cannot_be_fitted_is_refused_with_what_to_do():
    one, two = [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="2 measurements for 2 constants .a, b.: measure at least 3"):
        fit.relative_least_squares({"a": one[:2], "b": two[:2]}, [1.0, 2.0])
    with pytest.raises(ValueError, match="cannot tell a, b apart"):
        fit.relative_least_squares({"a": one, "b": [2.0, 2.0, 2.0]}, [1.0, 2.0, 3.0])


def test_a_prediction_is_the_sum_and_its_error_is_signed():
    compute = fit.compute_time(step_row(*setting) for setting in fit.FITTED)
    message = fit.message_time(messages())
    row = step_row(128, 32)
    row["step_s"] = [1e-3, 2e-3, 4e-3]
    found = fit.predicted([row], compute, message).iloc[0]
    computing, allreduce = computing_s(128, 32), ALPHA_S + BETA_S_PER_BYTE * row["message_bytes"]
    assert found["predicted_s"] == pytest.approx(computing + allreduce, rel=1e-6)
    assert (found["measured_min_s"], found["measured_s"], found["measured_max_s"]) == (1e-3, 2e-3, 4e-3)
    assert found["error"] == pytest.approx((computing + allreduce) / 2e-3 - 1, rel=1e-6)


def test_what_is_fitted_shares_neither_width_nor_batch_with_what_is_held_out():
    for fitted, held_out in zip(zip(*fit.FITTED, strict=True), zip(*fit.HELD_OUT, strict=True), strict=True):
        assert not set(fitted) & set(held_out)
