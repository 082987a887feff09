"""Right answers to the exercises of 06c beside the solutions, and wrong ones beside the known mistakes."""

from lessons.fitting_more.judge import COPY

CLEAR = "master.grad = None"
FLOAT = "weight.grad.float()"
STEP = "self.optimizer.step()"

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
    },
    "MasterWeights": {
        "the optimizer drops the gradients": [(CLEAR, "pass"), (STEP, f"{STEP}; self.optimizer.zero_grad()")],
        "without data": [(COPY, "with torch.no_grad(): weight.copy_(master)")],
        "a new tensor": [(COPY, "weight.data = master.detach().bfloat16()")],
        "another word for fp32": [(FLOAT, "weight.grad.to(master.dtype)")],
        "all gradients at the end": [("weight.grad = None", "pass"), (CLEAR, "master.grad = weight.grad = None")],
    },
}
WRONG = {
    "backward_again": {
        "computes it twice": (
            [("    y.backward(gradient)", "    with torch.enable_grad(): block(x)\n    y.backward(gradient)")],
            "One forward pass of the block is enough",
        ),
        "returns nothing": ([("return x.grad", "return None")], "it returned nothing"),
    },
    "MasterWeights": {
        "no step": ([(STEP, "pass")], "take the optimizer's step, and round"),
        "gradients in bf16": ([(FLOAT, "weight.grad")], "takes a gradient in fp32"),
        "rounds down": ([(COPY, "weight.data.copy_(0.999 * master.detach())")], "where"),
        "gradients at the wrong place": ([("master.grad = weight.grad.float()", "pass")], "give each master"),
    },
}
