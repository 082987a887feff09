"""Right answers to the exercises of 07 beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
    "learning_rate": {
        "with an if": """
            def learning_rate(step, base_lr, workers, warmup_steps):
                if step >= warmup_steps:
                    return base_lr * workers
                return base_lr + (base_lr * workers - base_lr) * step / warmup_steps
            """
    },
    "highest_rate": {
        "with an if": """
            def highest_rate(curvature, momentum, nesterov=False):
                if nesterov:
                    return 2 * (1 + momentum) / ((1 + 2 * momentum) * curvature)
                return 2 * (1 + momentum) / curvature
            """,
        "a bool as a number": """
            def highest_rate(curvature, momentum, nesterov=False):
                return 2 / curvature * (1 + momentum) / (1 + 2 * momentum * nesterov)
            """,
        "an array of NumPy": """
            def highest_rate(curvature, momentum, nesterov=False):
                import numpy as np

                limits = np.array([1, 1 / (1 + 2 * momentum)]) * 2 * (1 + momentum) / curvature
                return limits[int(nesterov)]
            """,
        "where the steps stop shrinking": """
            def highest_rate(curvature, momentum, nesterov=False):
                import numpy as np

                low, high = 0.0, 100.0 / curvature
                for _ in range(60):
                    rate = (low + high) / 2
                    kept = 1 - rate * curvature
                    sums = kept * (1 + momentum) if nesterov else kept + momentum
                    product = kept * momentum if nesterov else momentum
                    roots = np.roots([1, -sums, product])
                    low, high = (rate, high) if max(abs(roots)) <= 1 + 1e-9 else (low, rate)
                return low
            """,
        "a tensor": """
            def highest_rate(curvature, momentum, nesterov=False):
                import torch

                limit = torch.tensor(2.0 * (1 + momentum), dtype=torch.float64).div(curvature)
                if nesterov:
                    limit = limit / (1 + 2 * momentum)
                return limit
            """,
    },
}
WRONG = {
    "highest_rate": {
        "the curvature above the line": (
            [("2 * (1 + momentum) / curvature", "2 * (1 + momentum) * curvature")],
            "it gives 8 where 0.5 is right",
        ),
        "Nesterov's momentum counted once": (
            [("(1 + 2 * momentum) if", "(1 + momentum) if")],
            "it gives 0.5 where 0.375 is right",
        ),
    }
}
