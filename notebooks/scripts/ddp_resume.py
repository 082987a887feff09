"""MNIST with DDP, in a job that may be ended and started again: job.sh runs torchrun … ddp_resume.py on its nodes."""

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn

mnist = Path(__file__).resolve().parent / "../../assets/mnist"  # its place in the workshop; --data names another
options = {"data": mnist, "images": 60_000, "epochs": 2, "out": Path("cnn.pt")}
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
layers = nn.Conv2d(1, 8, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(8, 56, 5), nn.MaxPool2d(2), nn.ReLU()
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(896, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
first_epoch = 1
saved = [None]
if rank == 0 and args.out.exists():
    saved = [torch.load(args.out, map_location="cpu", weights_only=True)]
distributed.broadcast_object_list(saved)  # only rank 0 looks for the file, so all ranks continue or none does
if saved[0]:
    if "epoch" not in saved[0]:
        raise SystemExit(f"{args.out} says no epoch to continue from: delete it, or give another file with --out.")
    model.load_state_dict(saved[0]["model"])
    optimizer.load_state_dict(saved[0]["optimizer"])
    first_epoch = saved[0]["epoch"] + 1
if first_epoch > args.epochs and rank == 0:
    print(f"{args.out} has trained {first_epoch - 1} epochs already: give more with --epochs to go on.")
ddp = nn.parallel.DistributedDataParallel(model.to(memory_format=torch.channels_last))
steps = args.images // (64 * size)
if steps < 2:
    raise SystemExit(f"--images {args.images} is too few for two steps of 64 per rank: give more or start fewer ranks.")
if args.images > len(labels):
    raise SystemExit(f"--images {args.images} is too many: {args.data.resolve()} has {len(labels)}.")
total, warmup = args.epochs * steps, steps // 2
taken = (first_epoch - 1) * steps  # counted in steps of this many ranks and images, whatever they were before
rate = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda t: min((t + 1) / warmup, (total - t) / (total - warmup)), last_epoch=taken - 1
)

for epoch in range(first_epoch, args.epochs + 1):
    order = np.random.default_rng([1, epoch]).permutation(args.images)
    start = time.perf_counter()
    for batch in order[: steps * size * 64].reshape(steps, size, 64)[:, rank]:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        rate.step()
    loss.item()  # a GPU has done its work only now
    speed = steps * size * 64 / (time.perf_counter() - start)
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(1) for part in test_images[rank::size].tensor_split(20)])
    right = (guesses == test_labels[rank::size]).sum().cpu()
    distributed.all_reduce(right)
    if rank == 0:
        print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right / len(test_labels):.2%}")
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, args.out.with_suffix(".tmp"))
        args.out.with_suffix(".tmp").replace(args.out)  # a crash leaves the old file or the new, never half of one
distributed.destroy_process_group()
