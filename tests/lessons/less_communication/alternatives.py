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
    "pays": {
        "factored out": """
            def pays(gradient_bytes, bytes_per_s, ranks, compress_s, share=0.01):
                return 2 * (ranks - 1) * (1 / ranks - share) * gradient_bytes / bytes_per_s - compress_s
            """,
        "seconds of each": """
            def pays(gradient_bytes, bytes_per_s, ranks, compress_s, share=0.01):
                seconds = gradient_bytes / bytes_per_s
                allreduce_s = seconds * (2 - 2 / ranks)
                return allreduce_s - (compress_s + 2 * share * seconds * (ranks - 1))
            """,
        "round after round": """
            def pays(gradient_bytes, bytes_per_s, ranks, compress_s, share=0.01):
                saved = -compress_s
                for _ in range(ranks - 1):
                    saved += 2 * gradient_bytes / ranks / bytes_per_s
                    saved -= 2 * share * gradient_bytes / bytes_per_s
                return saved
            """,
        "entries of 4 bytes": """
            def pays(gradient_bytes, bytes_per_s, ranks, compress_s, share=0.01):
                entries = gradient_bytes / 4
                received = (ranks - 1) * entries * np.array([8 / ranks, 8 * share])
                return -np.diff(received / bytes_per_s)[0] - compress_s
            """,
        "two functions": """
            def pays(gradient_bytes, bytes_per_s, ranks, compress_s, share=0.01):
                def wait_s(nbytes, messages):
                    return nbytes * messages / bytes_per_s
                ring_s = wait_s(gradient_bytes / ranks, 2 * ranks - 2)
                return ring_s - wait_s(2 * share * gradient_bytes, ranks - 1) - compress_s
            """,
    },
}
WRONG = {
    "pays": {
        "whether it pays": ([("return ", "return 0 < ")], "it should `return` a number"),
        "its own message, too": ([("(ranks - 1) * 2", "ranks * 2")], "with 6 GB at 1 GB/s on 4 ranks"),
    },
    "outer_step": {
        "velocities too": (
            [("    weights = ", "    velocity = comm.allreduce(velocity) / comm.size\n    weights = ")],
            "send them once",
        )
    },
}
