"""What training takes is counted, and it keeps what a step frees: else every step would map it again."""

import subprocess
import sys

import numpy as np
import torch
import torch.distributed as dist
from needs import needs

from workshop_lib.lessons.thousand_ranks import pretend
from workshop_lib.lessons.zero_and_fsdp import traffic
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


@needs("linux")
def test_the_peak_is_that_since_it_was_reset():
    cpu, size = torch.device("cpu"), 256 * 2**20
    memory.reset_peak(cpu)  # an earlier test may have taken more
    before = memory.peak_bytes(cpu)
    np.ones(size, np.uint8)
    assert memory.peak_bytes(cpu) > before + size / 2
    memory.reset_peak(cpu)
    assert memory.peak_bytes(cpu) < before + size / 2


def test_traffic_is_what_the_collectives_are_handed():
    pretend.join_fake_group(1, 4)
    try:
        with traffic.Traffic() as counted:
            dist.all_reduce(torch.ones(5))
            dist.reduce_scatter_single(torch.ones(2), torch.ones(8))
            dist.all_gather_single(torch.ones(8), torch.ones(2), async_op=True)
            dist.broadcast(torch.ones(3), src=0)
            dist.barrier()
        dist.all_reduce(torch.ones(5))
    finally:
        dist.destroy_process_group()
    assert counted.calls == dict.fromkeys(("allreduce", "reduce-scatter", "allgather", "broadcast"), 1)
    assert counted.handed_bytes == {"allreduce": 20, "reduce-scatter": 32, "allgather": 32, "broadcast": 12}
