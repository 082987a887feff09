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
    }
}
WRONG = {"mesh_bytes": {"three allreduces": ([("4 * 2 *", "3 * 2 *")], "for the bytes over tensor")}}
