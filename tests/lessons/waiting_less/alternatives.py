"""Right answers to the exercises of 07e beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
    "one_step_late": {
        "a pipeline that is filled before the loop": """
            def one_step_late(start_average, gradient, weights, lr, steps):
                traveling = start_average(gradient(weights, 0))
                for step in range(1, steps):
                    new = gradient(weights, step)
                    weights -= lr * traveling.wait()
                    traveling = start_average(new)
                return weights - lr * traveling.wait()
            """,
        "the next average starts before the wait": """
            def one_step_late(start_average, gradient, weights, lr, steps):
                before = None
                for step in range(steps):
                    now = start_average(gradient(weights, step))
                    if before is not None:
                        weights = weights - lr * before.wait()
                    before = now
                return weights - lr * before.wait()
            """,
    }
}
WRONG = {
    "one_step_late": {
        "waits before it computes": (
            [
                ("        new = gradient(weights, step)\n", ""),
                ("        traveling = start", "        new = gradient(weights, step)\n        traveling = start"),
            ],
            "compute first, then wait",
        )
    }
}
