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
    "clock_offsets": {
        "with numpy": """
            def clock_offsets(left_s):
                import numpy as np
                left = np.array(left_s)
                return list(np.median(left - left[:, :1], axis=0))
            """,
        "a row for each rank": """
            def clock_offsets(left_s):
                first, *_ = rows = list(zip(*left_s))
                return [statistics.median(a - b for a, b in zip(row, first)) for row in rows]
            """,
        "the middle of the sorted differences": """
            def clock_offsets(left_s):
                offsets = []
                for rank in range(len(left_s[0])):
                    ahead = sorted(step[rank] - step[0] for step in left_s)
                    offsets.append(ahead[len(ahead) // 2])
                return offsets
            """,
        "rank 0 apart": """
            def clock_offsets(left_s):
                others = range(1, len(left_s[0]))
                return [0.0] + [statistics.median([step[n] - step[0] for step in left_s]) for n in others]
            """,
        "a dictionary of lists": """
            def clock_offsets(left_s):
                ahead = {}
                for step in left_s:
                    for rank, moment in enumerate(step):
                        ahead.setdefault(rank, []).append(moment - step[0])
                return [statistics.median(ahead[rank]) for rank in sorted(ahead)]
            """,
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
WRONG = {
    "clock_offsets": {
        "the largest difference": ([("statistics.median(", "max(")], "`left_s` was"),
        "beside the step before": ([("step[rank] - step[0]", "step[rank] - step[rank - 1]")], "`left_s` was"),
    }
}
