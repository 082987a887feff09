"""MNIST with tensor parallelism. Start it with: torchrun --standalone --nproc-per-node 2 tensor_parallel.py"""

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mnist = Path(__file__).resolve().parent / "../../assets/mnist"  # its place in the workshop; --data names another
options = {"data": mnist, "images": 60_000, "epochs": 2, "out": Path("mlp.pt")}
parser = argparse.ArgumentParser(description=__doc__)
for name, default in options.items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
args = parser.parse_args()
if not (args.data / "train-images-idx3-ubyte.gz").exists():
    raise SystemExit(f"train-images-idx3-ubyte.gz isn't in {args.data.resolve()}: give MNIST's folder with --data.")
distributed.init_process_group()
rank, size = distributed.get_rank(), distributed.get_world_size()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.cuda.set_device(distributed.get_node_local_rank() if device == "cuda" else -1)  # -1: none
torch.set_num_threads(1)  # one core per process, however many processes there are
names = "train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"
files = [gzip.decompress((args.data / f"{name}-ubyte.gz").read_bytes()) for name in names]
values = [torch.tensor(np.frombuffer(file, np.uint8, offset=4 + 4 * file[3])).to(device) for file in files]
images, test_images = [((v.view(-1, 28, 28, 1) - 33.3184) / 78.5675).movedim(3, 1) for v in values[::2]]
labels, test_labels = [v.long() for v in values[1::2]]

torch.manual_seed(1)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
mesh = distributed.init_device_mesh(device, (size,))
parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
steps = args.images // 128  # each with 128 images, the same on all ranks: together they are one network
if steps < 2:
    raise SystemExit(f"--images {args.images} is too few for two steps of 128: give more.")
if args.images > len(labels):
    raise SystemExit(f"--images {args.images} is too many: {args.data.resolve()} has {len(labels)}.")
total, warmup = args.epochs * steps, steps // 2
rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min((t + 1) / warmup, (total - t) / (total - warmup)))

for epoch in range(1, args.epochs + 1):
    order = np.random.default_rng([1, epoch]).permutation(args.images)
    start = time.perf_counter()
    for batch in order[: steps * 128].reshape(steps, 128):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        rate.step()
    loss.item()  # a GPU has done its work only now
    speed = steps * 128 / (time.perf_counter() - start)
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(1) for part in test_images.tensor_split(20)])
    right = (guesses == test_labels).sum().item()
    whole = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right / len(test_labels):.2%}")
        torch.save({"model": whole[0], "optimizer": whole[1]}, args.out.with_suffix(".tmp"))
        args.out.with_suffix(".tmp").replace(args.out)  # a crash leaves the old file or the new, never half of one
distributed.destroy_process_group()
