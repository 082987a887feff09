"""The exercises about scaling, of 08, 08b, 08c and 12: right answers pass, and wrong ones get the hint that names the
mistake."""

import pytest
from judge.answers import solution
from judge.verdicts import Verdicts

from workshop_lib.lessons.forecasting import judge as forecasting
from workshop_lib.lessons.scaling_curves import judge as scaling
from workshop_lib.lessons.thousand_ranks import judge as thousand_ranks
from workshop_lib.lessons.where_the_time_goes import judge as time_goes

pytestmark = pytest.mark.usefixtures("healthy")


class TestScalingCurves(Verdicts):
    check, notebook, names = scaling, scaling.NOTEBOOK, ["scaling_table", "serial_fraction"]
    right = {
        "scaling_table": {
            "with numpy": """
                def scaling_table(seconds):
                    import numpy as np
                    time = {n: np.median(np.array(runs)[:, 1:].sum(axis=1)) for n, runs in seconds.items()}
                    return {n: [time[1] / time[n], time[1] / (n * time[n])] for n in sorted(time)}
                """,
            "one median of all epochs but the first": """
                def scaling_table(seconds):
                    time = {n: median(s for run in runs for s in run[1:]) for n, runs in seconds.items()}
                    return {n: (time[1] / time[n], time[1] / time[n] / n) for n in time}
                """,
        },
        "serial_fraction": {
            "another form": """
                def serial_fraction(speedup, n):
                    return (n / speedup - 1) / (n - 1)
                """
        },
    }
    wrong = {
        "scaling_table": {
            "not sorted": ([(scaling.TYPICAL, "mean(runs[len(runs) // 2][1:])")], "without sorting"),
            "speed-up alone": (
                [(scaling.SPEEDUP, "typical_s[1] / s")],
                "the keys 1, 2, 4 (each a number). It should `return`",
            ),
            "prints": ([("return {", "print({"), ("typical_s.items()}", "typical_s.items()})")], "returned nothing"),
        },
        "serial_fraction": {
            "something unknown": ([(scaling.FRACTION, f"2 * {scaling.FRACTION}")], "none of the known mistakes"),
            "nothing returned": ([("return ", "")], "It should `return` a number: the fraction"),
            "a text": ([(scaling.FRACTION, f"f'{{{scaling.FRACTION}:.0%}}'")], "it returned '10%'"),
        },
    }
    # Every function that needs no ranks is stopped like this one.
    never_ends = {"serial_fraction": {"a loop": ([("return ", "while n: ")], "doesn't end")}}


def test_the_solutions_of_08_are_right():
    table = solution(scaling.NOTEBOOK, "scaling_table")
    assert table(scaling.SECONDS) == {1: (1, 1), 2: (1.6, 0.8), 4: (2.5, 0.625)}
    assert table(scaling.LONGER)[4] == (3.2, 0.8)
    fraction = solution(scaling.NOTEBOOK, "serial_fraction")
    found = [fraction(speedup, n) for speedup, n, _ in scaling.MEASURED]
    assert found == pytest.approx([0.1, 0, 1, -0.05], abs=1e-12)


class TestTimeGoes(Verdicts):
    check, notebook, names = time_goes, time_goes.NOTEBOOK, ["straggler", "fair_speedups"]
    right = {
        "straggler": {
            "with numpy": """
                def straggler(arrived_s, seconds):
                    import numpy as np
                    arrived = np.array(arrived_s)
                    waiting = (arrived.max(axis=1, keepdims=True) - arrived).sum(axis=0) / seconds
                    return waiting.tolist(), waiting.argmin()
                """
        },
        "fair_speedups": {
            "with a loop": """
                def fair_speedups(runs):
                    found = {}
                    for run in [run for run in runs if not run["threads"] > run["cores"]]:
                        found[run["ranks"], run["threads"]] = run["samples_per_s"]
                    return {key: found[key] / found[(1, key[1])] for key in found}
                """
        },
    }
    wrong = {
        "straggler": {
            "the rank alone": ([("return waiting, waiting", "return waiting")], "the share of its time"),
            "nothing returned": ([("return waiting, waiting", "waiting, waiting")], "it returned nothing"),
        },
        "fair_speedups": {
            "one thread alone": (
                [(f" if {time_goes.USED}", ' if run["threads"] == 1')],
                "the keys (4, 1), (1, 1), (2, 1) (each a number)",
            ),
            "nothing returned": ([("return {", "found = {")], "it returned nothing"),
        },
    }


class TestForecasting(Verdicts):
    check, notebook, names = forecasting, forecasting.NOTEBOOK, ["fit_and_test", "overlapped_step"]
    right = {
        "fit_and_test": {
            "with weights": """
                def fit_and_test(message_bytes, seconds, held_out):
                    used = np.arange(len(seconds)) != held_out
                    line = np.polyfit(message_bytes[used], seconds[used], 1, w=1 / seconds[used])
                    error = np.polyval(line, message_bytes[held_out]) / seconds[held_out] - 1
                    return [line[1], line[0], error]
                """,
            "by hand": """
                def fit_and_test(message_bytes, seconds, held_out):
                    a = b = c = d = e = 0
                    for i, (n, t) in enumerate(zip(message_bytes, seconds)):
                        if i != held_out:
                            a, b, c = a + 1 / t**2, b + n / t**2, c + n**2 / t**2
                            d, e = d + 1 / t, e + n / t
                    alpha, beta = (d * c - e * b) / (a * c - b * b), (a * e - b * d) / (a * c - b * b)
                    return alpha, beta, (alpha + beta * message_bytes[held_out]) / seconds[held_out] - 1
                """,
        },
        "overlapped_step": {
            "message after message": """
                def overlapped_step(forward_s, backward_s, message_s, messages):
                    end = forward_s
                    for j in range(1, messages + 1):
                        end = max(end, forward_s + backward_s * j / messages) + message_s
                    return end
                """
        },
    }
    wrong = {
        "fit_and_test": {
            "logarithms": (
                [
                    (forecasting.ROWS, "np.column_stack([np.ones(len(t)), np.log(n)])"),
                    (forecasting.SOLVED, "np.exp(np.linalg.lstsq(rows, np.log(t))[0])"),
                ],
                "none of the known mistakes",
            ),
            "nothing returned": ([("return ", "")], "alpha_s, beta_s_per_byte and the error"),
            "in microseconds": ([("return alpha_s", "return 1e6 * alpha_s")], "none of the known mistakes"),
        },
        "overlapped_step": {
            "the sum of both": ([(forecasting.LATER, "keeps_up_s + busy_s")], "none of the known mistakes"),
            "nothing returned": ([("return ", "")], "the seconds"),
        },
    }


class TestThousandRanks(Verdicts):
    check, notebook, names = thousand_ranks, thousand_ranks.NOTEBOOK, ["mesh_bytes"]
    right = {
        "mesh_bytes": {
            "collective by collective": """
                def mesh_bytes(data, tensor, layers, cut, whole, activations):
                    def ring(p, n):
                        return (p - 1) / p * n
                    sent = {"data": 0, "tensor": 0.0}
                    for _ in range(layers):
                        sent["data"] += sum(ring(data, whole + cut / tensor) for _ in range(3))
                        sent["tensor"] += sum(2 * ring(tensor, activations) for _ in range(4))
                    return sent
                """
        }
    }
    wrong = {
        "mesh_bytes": {
            "nothing returned": ([("return {", "found = {")], "a dictionary with the keys 'data', 'tensor'"),
            "three allreduces": ([("4 * 2 *", "3 * 2 *")], "none of the known mistakes"),
        }
    }
