"""What memory training takes is counted."""

import torch

from workshop_lib.training import memory


def test_memory_that_tensors_share_counts_once():
    model = torch.nn.Linear(99, 10)  # 1,000 parameters
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(1, 99)).sum().backward()
        optimizer.step()
    steps = 2 * 4  # Adam's count, once for the weight and once for the bias
    assert memory.live_bytes(model, optimizer) == {"parameters": 4000, "gradients": 4000, "optimizer": 8000 + steps}
    flat = torch.zeros(1000)
    model.weight.grad, model.bias.grad = flat[:990].view(10, 99), flat[990:]
    assert memory.live_bytes(model, optimizer)["gradients"] == 4000
