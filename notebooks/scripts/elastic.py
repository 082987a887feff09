"""MNIST that goes on from its last step, on any number of ranks. Start it with: python survive.py 2 elastic.py

Or with: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 --max-restarts 9 elastic.py
"""

import argparse
import functools
import hashlib
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from mnist_data import MNIST, MNIST_FOLDER, mnist_folder
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

# After its first step, a rank waits this long for the others. So a save has to be quicker.
SHORT = timedelta(seconds=10)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--out", type=Path, default=Path("elastic.pt"), help="checkpoint to write and to go on from")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1024, help="images of all ranks per step")
    parser.add_argument("--every", type=int, default=1, help="steps between two checkpoints")
    return parser.parse_args()


def join():
    """Join the other ranks, and return this rank's own device: a GPU of its node, or the CPU."""
    patient = timedelta(minutes=5)  # for the first step, in which NCCL connects and a compiler may run
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":  # Apple's GPUs have no collectives
        dist.init_process_group("gloo", timeout=patient)
        return torch.device("cpu")
    # torchrun sets LOCAL_RANK. survive.py doesn't, but all its ranks are on one node.
    local_rank = dist.get_node_local_rank(fallback_rank=int(os.environ["RANK"]))
    device = torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    # The device comes first: NCCL takes the current one, and would start all ranks on GPU 0.
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group(device_id=device, timeout=patient)
    return device


@functools.lru_cache(maxsize=1)
def order_of(epoch, images):
    """The order of the images in this epoch, the same on all ranks and after each restart."""
    return torch.randperm(images, generator=torch.Generator().manual_seed(epoch))


def images_of(step, images, batch):
    """The numbers of a step's images. No image comes twice in an epoch."""
    epoch, number = divmod(step, images // batch)
    return order_of(epoch, images)[number * batch : (number + 1) * batch]


def load(path, device):
    """Return the checkpoint, or None. Rank 0 alone decides if there is one, so all ranks go on from it or none does."""
    found = torch.tensor(int(path.exists()), device=device)
    dist.broadcast(found, 0)
    if not found:
        return None
    try:
        # Each rank maps the file and reads what it needs: nothing is sent, and the ranks of a node share the memory.
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        sentence = f"{path} can be read on rank 0, but not on rank {dist.get_rank()}: put it where all nodes can."
        raise SystemExit(sentence) from None
    return checkpoint


def save(state, path):
    """Write a checkpoint, and wait until it is on the disk."""
    with open(f"{path}.part", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())  # or a power cut may leave an empty file with the right name
    os.replace(f"{path}.part", path)  # a crash leaves the old checkpoint or the new one, never half of one


def prepare():
    """Do what takes long and is the same on all ranks. survive.py does it once, before it forks the ranks."""
    args = parse_arguments()
    data = MNIST(args.data, "train")
    if not 1 <= args.batch <= len(data):
        raise SystemExit(f"--batch {args.batch}: the data has {len(data)} images. Give a number from 1 to that.")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 32, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(4608, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)  # the first one imports a lot of PyTorch
    return args, data, model, optimizer


def train(args, data, model, optimizer):
    device = join()
    rank = dist.get_rank()
    size = dist.get_world_size()
    torch.set_num_threads(1)  # one core per process, however many processes there are

    model.to(device)
    done = 0  # steps
    if checkpoint := load(args.out, device):
        weights, momentum, done = checkpoint
        model.load_state_dict(weights)
        optimizer.load_state_dict(momentum)

    for step in range(done, args.steps):
        # What a step does depends on its number alone, not on the ranks or on the steps before a restart.
        torch.manual_seed(step * size + rank)  # noise of this step and rank, such as dropout's
        batch = images_of(step, len(data), args.batch)
        images, labels = data[batch[rank::size]]
        optimizer.zero_grad()
        loss = cross_entropy(model(images.to(device)), labels.to(device), reduction="sum") / args.batch
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # the sum of all ranks' shares, whatever their sizes
        optimizer.step()
        if step == done:
            dist.barrier()  # all ranks have taken their first step
            dist.group.WORLD.set_timeout(SHORT)
        if rank == 0 and (step + 1) % args.every == 0:
            save([model.state_dict(), optimizer.state_dict(), step + 1], args.out)
        if rank == 0:
            print(f"step {step + 1}", flush=True)
    weights = parameters_to_vector(model.parameters()).detach().cpu().numpy()
    print(f"rank {rank} has weights {hashlib.sha256(weights.tobytes()).hexdigest()}", flush=True)
    dist.destroy_process_group()


@record  # torchrun's report then has the traceback of the rank that failed first
def main():
    train(*prepare())


if __name__ == "__main__":
    main()
