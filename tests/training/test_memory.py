"""What memory training takes is counted, and it keeps what a step frees: else every step would map it again."""

import subprocess
import sys

import pytest
import torch

from workshop_lib.training import memory

STEPS, FAULTS_A_STEP = 25, 100  # without keeping: some 1,500 a step
PROGRAM = f"""
import resource, sys
from workshop_lib.training.trainer import train
from workshop_lib.training.options import TrainOptions

class Faults:
    counts = []
    def on_step(self, event):
        self.counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

train(TrainOptions(epochs=1, train_samples=64 * {STEPS}, data_dir=sys.argv[1]), [Faults()])
print((Faults.counts[-1] - Faults.counts[9]) / {STEPS - 10})
"""


@pytest.mark.full
def test_the_first_epoch_does_not_map_its_memory_again_in_each_step(small_mnist):
    # A process of its own: the allocator remembers what it learned from the tests before.
    ran = subprocess.run([sys.executable, "-c", PROGRAM, small_mnist], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < FAULTS_A_STEP


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
