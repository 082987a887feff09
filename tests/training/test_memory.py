"""What memory training takes is counted."""

import numpy as np
import torch
from needs import needs

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


@needs("linux")
def test_the_peak_is_that_since_it_was_reset():
    cpu, size = torch.device("cpu"), 256 * 2**20
    memory.reset_peak(cpu)  # an earlier test may have taken more
    before = memory.peak_bytes(cpu)
    np.ones(size, np.uint8)
    assert memory.peak_bytes(cpu) > before + size / 2
    memory.reset_peak(cpu)
    assert memory.peak_bytes(cpu) < before + size / 2
