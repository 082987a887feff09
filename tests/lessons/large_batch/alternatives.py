"""Right answers to the exercises of 07 beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
    "learning_rate": {
        "with an if": """
            def learning_rate(step, base_lr, workers, warmup_steps):
                if step >= warmup_steps:
                    return base_lr * workers
                return base_lr + (base_lr * workers - base_lr) * step / warmup_steps
            """
    }
}
