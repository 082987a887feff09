"""Right answers to the exercises of 08b beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
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
