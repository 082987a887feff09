"""Right answers to the exercises of 08 beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
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
