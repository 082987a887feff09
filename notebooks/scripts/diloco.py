"""MNIST with DiLoCo. Start it with: torchrun --standalone --nproc-per-node 2 diloco.py --alone 64"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from mnist_data import MNIST, MNIST_FOLDER, cnn, mnist_folder
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler, Subset

BATCH = 64  # images per rank and step


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--images", type=int, default=60_000, help="training images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--alone", type=int, default=64, help="steps between two messages")
    parser.add_argument("--out", type=Path, default=Path("diloco.pt"), help="checkpoint to write and to go on from")
    return parser.parse_args()


def join():
    """Join the other ranks, and return this rank's own device: a GPU of its node, or the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":  # Apple's GPUs have no collectives
        dist.init_process_group("gloo")
        return torch.device("cpu")
    # torchrun sets LOCAL_RANK. mpiexec and srun don't, but they usually number the ranks of a node consecutively.
    local_rank = dist.get_node_local_rank(fallback_rank=int(os.environ["RANK"]))
    # Some launchers show each rank one GPU only, which is number 0 on all ranks.
    device = torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    # The device comes first: NCCL takes the current one, and would start all ranks on GPU 0.
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group(device_id=device)
    return device


def own_momenta(model, optimizer):
    """Return this rank's momentum of each parameter, on the CPU: a GPU's tensor would arrive on the same GPU."""
    return [optimizer.state[parameter]["momentum_buffer"].cpu() for parameter in model.parameters()]


def set_momenta(model, optimizer, momenta):
    """Give the optimizer what own_momenta has returned."""
    for parameter, momentum in zip(model.parameters(), momenta, strict=True):
        optimizer.state[parameter]["momentum_buffer"] = momentum.to(parameter.device)


@torch.no_grad()
def count_right(model, loader, device):
    """Return how many images the model recognizes."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in loader:
        guesses = model(images.to(device)).argmax(1)
        right += (guesses == labels.to(device)).sum()
    return right


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
    if "outer" not in checkpoint:
        raise SystemExit(f"{path} is no checkpoint of this script: delete it, or give another file with --out.")
    return checkpoint


def save(state, path):
    """Write a checkpoint. A crash leaves the old file or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


@record  # torchrun's report then has the traceback of the rank that failed first
def main():
    args = parse_arguments()
    device = join()
    rank = dist.get_rank()
    size = dist.get_world_size()
    torch.set_num_threads(1)  # one core per process, however many processes there are

    train = MNIST(args.data, "train", args.images)
    test = MNIST(args.data, "test")
    sampler = DistributedSampler(train, seed=1)  # shuffles, and gives each rank images of its own
    loader = DataLoader(train, BATCH, sampler=sampler, drop_last=True)
    # Each test image is tested once. A DistributedSampler would repeat some, so that all ranks have as many.
    test_loader = DataLoader(Subset(test, range(rank, len(test), size)), batch_size=500)
    steps = len(loader)
    if steps < 2:
        raise SystemExit(f"--images {args.images} is too few for two steps of {BATCH} per process: give more.")

    torch.manual_seed(1)
    model = cnn().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    checkpoint = load(args.out, device)
    if checkpoint:
        model.load_state_dict(checkpoint["model"])
    # All ranks have the same weights here, from one seed or one file: where the first round starts.
    common = torch.nn.Parameter(parameters_to_vector(model.parameters()).detach())
    outer = torch.optim.SGD([common], lr=0.7, momentum=0.9, nesterov=True)
    done = 0  # epochs
    if checkpoint:
        outer.load_state_dict(checkpoint["outer"])
        set_momenta(model, optimizer, checkpoint["momenta"][rank % len(checkpoint["momenta"])])
        done = checkpoint["epoch"]
    if rank == 0 and done >= args.epochs:
        print(f"{args.out} has trained {done} epochs already: give more with --epochs to go on.")

    for epoch in range(done + 1, args.epochs + 1):
        model.train()
        sampler.set_epoch(epoch)  # without it, each epoch has the order of the first
        torch.manual_seed(1000 * epoch + rank)  # noise of this epoch and rank, such as dropout's
        start = time.perf_counter()
        for step, (images, labels) in enumerate(loader, 1):
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % args.alone == 0 or step == steps:
                mean = parameters_to_vector(model.parameters()).detach() / size
                dist.all_reduce(mean)
                common.grad = common.detach() - mean  # as if it were a gradient: this round's way, backwards
                outer.step()
                vector_to_parameters(common.detach().clone(), model.parameters())
        loss.item()  # waits until a GPU has finished its work
        speed = steps * size * BATCH / (time.perf_counter() - start)
        for buffer in model.buffers():  # such as the statistics of batch normalization: rank 0's on all ranks
            dist.broadcast(buffer, 0)
        right = count_right(model, test_loader, device)
        dist.all_reduce(right)
        momenta = [None] * size
        dist.all_gather_object(momenta, own_momenta(model, optimizer))
        if rank == 0:
            print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right.item() / len(test):.2%}")
            state = {"epoch": epoch, "model": model.state_dict(), "outer": outer.state_dict(), "momenta": momenta}
            save(state, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
