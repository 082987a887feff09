"""Training keeps the memory that a step frees; else every step maps it again, page by page."""

import subprocess
import sys

STEPS, FAULTS_A_STEP = 50, 100  # without keeping: some 1,500 a step
PROGRAM = f"""
import resource
from workshop_lib.training.loop import train
from workshop_lib.training.options import TrainOptions

class Faults:
    counts = []
    def on_step(self, event):
        self.counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

train(TrainOptions(epochs=1, train_samples=64 * {STEPS}), [Faults()])
print((Faults.counts[-1] - Faults.counts[9]) / {STEPS - 10})
"""


def test_the_first_epoch_does_not_map_its_memory_again_in_each_step():
    # A process of its own: the allocator remembers what it learned from the tests before.
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < FAULTS_A_STEP
