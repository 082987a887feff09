"""MNIST in a pipeline of two stages. Start it with: torchrun --standalone --nproc-per-node 2 pipeline.py"""

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

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
if size != 2:
    raise SystemExit(f"This pipeline has two stages, not {size}: start it with --nproc-per-node 2.")
device = torch.device("cuda", distributed.get_node_local_rank()) if torch.cuda.is_available() else torch.device("cpu")
torch.set_num_threads(1)  # one core per process, however many processes there are
names = "train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"
files = [gzip.decompress((args.data / f"{name}-ubyte.gz").read_bytes()) for name in names]
values = [torch.tensor(np.frombuffer(file, np.uint8, offset=4 + 4 * file[3])).to(device) for file in files]
images, test_images = [(v.view(-1, 1, 28, 28) - 33.3184) / 78.5675 for v in values[::2]]  # channels first
labels, test_labels = [v.long() for v in values[1::2]]

torch.manual_seed(1)
layers = nn.Conv2d(1, 8, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(8, 56, 5), nn.MaxPool2d(2), nn.ReLU()
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(896, 10)).to(device)
part = (model[:3], model[3:])[rank]  # their times are as equal as they get; the names of the weights stay the same
schedule = Schedule1F1B(PipelineStage(part, rank, size, device), n_microbatches=8, loss_fn=nn.functional.cross_entropy)
optimizer = torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9, nesterov=True)
steps = args.images // 64
if steps < 2:
    raise SystemExit(f"--images {args.images} is too few for two steps of 64: give more.")
if args.images > len(labels):
    raise SystemExit(f"--images {args.images} is too many: {args.data.resolve()} has {len(labels)}.")
total, warmup = args.epochs * steps, steps // 2
rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min((t + 1) / warmup, (total - t) / (total - warmup)))

for epoch in range(1, args.epochs + 1):
    order = np.random.default_rng([1, epoch]).permutation(args.images)
    start = time.perf_counter()
    for batch in order[: steps * 64].reshape(steps, 64):
        optimizer.zero_grad()
        inputs = [images[batch]] if rank == 0 else []  # the first stage needs the images, and the last one the labels
        schedule.step(*inputs, target=labels[batch])
        optimizer.step()
        rate.step()
    parts = [None] * size
    distributed.all_gather_object(parts, part.state_dict())
    speed = steps * 64 / (time.perf_counter() - start)
    if rank == 0:  # this network fits, so one rank can test all of it
        model.load_state_dict(parts[0] | parts[1])
        with torch.no_grad():
            guesses = torch.cat([model(part).argmax(1) for part in test_images.tensor_split(20)])
        right = (guesses == test_labels).sum().cpu()
        print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right / len(test_labels):.2%}")
        torch.save({"model": model.state_dict()}, args.out.with_suffix(".tmp"))
        args.out.with_suffix(".tmp").replace(args.out)  # a crash leaves the old file or the new, never half of one
distributed.destroy_process_group()
