"""A program that has PyTorch loaded when it starts ranks, as a notebook's kernel has. Trains, and prints the outcome.

python harmed.py DATA BACKEND ...
"""

import json
import os
import sys
import tempfile

import torch

from workshop_lib import ranks
from workshop_lib.training.options import TrainOptions


def segments() -> list[str]:
    """The files of shared memory that this rank has mapped."""
    with open("/proc/self/maps") as file:
        return [row.split()[-1] for row in file if "/dev/shm/" in row]


def places() -> list:
    return [tempfile.gettempdir(), segments()]


if __name__ == "__main__":
    torch.set_num_threads(1)
    data, *backends = sys.argv[1:]
    before = sorted(os.sched_getaffinity(0))
    team = ranks.start(2)
    cores = [about["cores"] for about in team.about()]
    found = {"before": before, "cores": cores, "places": team.run(places), "records": []}
    for name in backends:
        options = TrainOptions(backend=name, max_steps=2, train_samples=640, data_dir=data)
        found["records"].append(team.train(options, show=False))
    ranks.stop()
    print(json.dumps(found))
