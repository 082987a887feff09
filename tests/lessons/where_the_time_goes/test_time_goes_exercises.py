"""The exercises of 08b accept right answers, and reject wrong ones with the hint that names the mistake."""

import pytest
from judge.verdicts import Verdicts

from workshop_lib.lessons.where_the_time_goes import judge as time_goes

pytestmark = pytest.mark.usefixtures("healthy")


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
