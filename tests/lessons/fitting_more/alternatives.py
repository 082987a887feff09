"""Right answers to the exercises of 06c beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
    "backward_again": {
        "all gradients at once": [
            (
                "y.backward(gradient)\n    return x.grad",
                "parameters = list(block.parameters())\n"
                "    own, *others = torch.autograd.grad(y, [x, *parameters], gradient)\n"
                "    for p, other in zip(parameters, others):\n"
                "        p.grad = other if p.grad is None else p.grad + other\n"
                "    return own",
            )
        ],
        "as a sum of products": [
            ("y.backward(gradient)", "with torch.enable_grad(): loss = (y * gradient).sum()\n    loss.backward()")
        ],
    }
}
WRONG = {
    "backward_again": {
        "computes it twice": (
            [("    y.backward(gradient)", "    with torch.enable_grad(): block(x)\n    y.backward(gradient)")],
            "One forward pass of the block is enough",
        ),
        "returns nothing": ([("return x.grad", "return None")], "it returned nothing"),
    }
}
