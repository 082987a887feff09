"""MNIST that goes on from its last step, on any number of ranks: python survive.py 2 elastic.py"""

import argparse
import gzip
import hashlib
import os
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn

mnist = Path(__file__).resolve().parent / "../../assets/mnist"  # its place in the workshop; --data names another
parser = argparse.ArgumentParser(description=__doc__)
for name, default in {"data": mnist, "out": Path("elastic.pt"), "steps": 200, "batch": 1024, "every": 1}.items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
args = parser.parse_args()
if not (args.data / "train-images-idx3-ubyte.gz").exists():
    raise SystemExit(f"train-images-idx3-ubyte.gz isn't in {args.data.resolve()}: give MNIST's folder with --data.")
raw = [gzip.decompress((args.data / f"train-{kind}-ubyte.gz").read_bytes()) for kind in ("images-idx3", "labels-idx1")]
images, labels = [torch.tensor(np.frombuffer(file, np.uint8, offset=4 + 4 * file[3])) for file in raw]
images, labels = (images.view(-1, 1, 28, 28) - 33.3184) / 78.5675, labels.long()
torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(1, 32, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(4608, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def save(state, path):
    with open(f"{path}.part", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())  # or a power cut may leave an empty file with the right name
    os.replace(f"{path}.part", path)  # a crash leaves the old checkpoint or the new one, never half of one


def train():
    distributed.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank, size, done = distributed.get_rank(), distributed.get_world_size(), 0
    saved = [None]
    if rank == 0 and args.out.exists():
        saved = [torch.load(args.out, weights_only=True)]
    distributed.broadcast_object_list(saved)  # only rank 0 looks for the file, so all ranks continue or none does
    if saved[0]:
        weights, momentum, done = saved[0]
        model.load_state_dict(weights)
        optimizer.load_state_dict(momentum)
    for step in range(done, args.steps):  # what a step does depends on its number alone
        batch = np.random.default_rng([1, step]).integers(len(images), size=args.batch)[rank::size]
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(images[batch]), labels[batch], reduction="sum") / args.batch).backward()
        for p in model.parameters():
            distributed.all_reduce(p.grad)  # the sum of all ranks' shares, whatever their sizes
        optimizer.step()
        if rank == 0 and (step + 1) % args.every == 0:
            save([model.state_dict(), optimizer.state_dict(), step + 1], args.out)
        if rank == 0:
            print(f"step {step + 1}", flush=True)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    print(f"rank {rank} has weights {hashlib.sha256(weights.tobytes()).hexdigest()}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    train()
