"""Right answers to the exercises of 12 beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
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
    },
    "step_s": {
        "the slower of network and rank": """
            def step_s(compute_s, tensor_s, hideable_s, exposed_s, late_s):
                for_messages_s = max(compute_s + tensor_s, hideable_s) + exposed_s
                return max(for_messages_s, compute_s + late_s)
            """
    },
}
WRONG = {
    "mesh_bytes": {"three allreduces": ([("4 * 2 *", "3 * 2 *")], "for the bytes over tensor")},
    "step_s": {
        "nobody is late": ([("max(waiting_s, late_s)", "waiting_s")], "late_s=0.5"),
        "the longest of everything": (
            [("compute_s + max(waiting_s, late_s)", "max(compute_s, tensor_s, hideable_s, exposed_s, late_s)")],
            "tensor_s=0.25",
        ),
    },
}
