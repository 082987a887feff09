"""Right answers to the exercises of 07d beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
    "layer_rate": {
        "sums of squares": """
            def layer_rate(weights, gradient, trust, weight_decay):
                w, g = [float((t * t).sum()) ** 0.5 for t in (weights, gradient)]
                return trust * w / (g + weight_decay * w) if w and g else 1.0
            """,
        "a tensor": """
            def layer_rate(weights, gradient, trust, weight_decay):
                if not weights.any() or not gradient.any():
                    return torch.tensor(1.0)
                w, g = torch.linalg.vector_norm(weights), torch.linalg.vector_norm(gradient)
                return trust / (g / w + weight_decay)
            """,
    }
}
WRONG = {
    "layer_rate": {
        "zero forgotten": ([("if weights_norm == 0 or gradient_norm == 0:", "if gradient_norm == 0:")], "return 1")
    }
}
