"""Right answers to the exercises of 07c beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
    "compress": {
        "with argpartition": """
            def compress(gradient, residual, k):
                total = gradient + residual
                places = np.argpartition(np.abs(total), -k)[-k:]
                kept = total.copy()
                kept[places] = 0
                return [total[places], places, kept]
            """
    },
    "outer_step": {
        "the differences are averaged, in place": """
            def outer_step(comm, start, mine, velocity, lr=0.7, momentum=0.9):
                gradient = np.empty_like(start)
                comm.Allreduce(start - mine, gradient)
                gradient /= comm.size
                velocity *= momentum
                velocity += gradient
                start -= lr * (gradient + momentum * velocity)
                return start, velocity
            """,
        "each rank steps with its own, and then they average": """
            def outer_step(comm, start, mine, velocity, lr=0.7, momentum=0.9):
                velocity = momentum * velocity + start - mine
                weights = start - lr * (start - mine + momentum * velocity)
                return comm.allreduce(weights) / comm.size, velocity
            """,
        "the rate is inside the velocity": """
            def outer_step(comm, start, mine, velocity, lr=0.7, momentum=0.9):
                gradient = start - comm.allreduce(mine) / comm.size
                velocity = momentum * velocity - lr * gradient
                return start - lr * gradient + momentum * velocity, velocity
            """,
    },
}
WRONG = {
    "outer_step": {
        "velocities too": (
            [("    weights = ", "    velocity = comm.allreduce(velocity) / comm.size\n    weights = ")],
            "send them once",
        )
    }
}
