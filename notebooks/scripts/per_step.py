"""MNIST whose survivors train on while a lost rank comes back. Start it with: python per_step.py 2 --steps 200

It needs torchft (pip install torchft), which has wheels for Linux on x86-64. There's no checkpoint on a disk: a rank
that comes back takes the weights from one that never stopped. While it's away, a step has fewer images, so the final
weights aren't those of a run without faults.
"""

import argparse
import functools
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from mnist_data import MNIST, MNIST_FOLDER, mnist_folder
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

os.environ.setdefault("RUST_LOG", "warn")  # torchft would print several lines per step

try:
    import torchft
except ModuleNotFoundError:
    torchft = None


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int, help="number of ranks")
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1024, help="images of all ranks per step")
    return parser.parse_args()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def start_lighthouse():
    """Start the server to which all ranks send heartbeats, and which tells them who takes the next step."""
    port = free_port()
    program = Path(sys.executable).with_name("torchft_lighthouse")
    options = ["--bind", f"127.0.0.1:{port}", "--min_replicas", "1", "--join_timeout_ms", "1000"]
    options += ["--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "50"]
    os.environ["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
    return subprocess.Popen([program, *options], stderr=subprocess.DEVNULL)


@functools.lru_cache(maxsize=1)
def order_of(epoch, images):
    """The order of the images in this epoch, the same on all ranks and after each restart."""
    return torch.randperm(images, generator=torch.Generator().manual_seed(epoch))


def images_of(step, images, batch):
    """The numbers of a step's images. No image comes twice in an epoch."""
    epoch, number = divmod(step, images // batch)
    return order_of(epoch, images)[number * batch : (number + 1) * batch]


def train(args, data, model, optimizer, rank):
    torch.set_num_threads(1)  # one core per process, however many processes there are
    store = dist.TCPStore("127.0.0.1", free_port(), is_master=True, wait_for_workers=False)

    def state():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(received):
        model.load_state_dict(received["model"])
        optimizer.load_state_dict(received["optimizer"])

    short = timedelta(seconds=2)  # a rank that waits for a lost one gives up after this time
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=short),
        min_replica_size=1,  # go on even alone
        state_dict=state,
        load_state_dict=load,
        timeout=short,
        rank=0,  # within its replica, which could be a whole FSDP group
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"replica_{rank}_",
    )
    ddp = torchft.DistributedDataParallel(manager, model)
    stepper = torchft.Optimizer(manager, optimizer)
    while manager.current_step() < args.steps:
        step = manager.current_step()
        stepper.zero_grad()  # asks for the quorum: who takes part in this step?
        batch = images_of(step, len(data), args.batch)
        images, labels = data[batch[rank :: args.ranks]]
        cross_entropy(ddp(images), labels).backward()  # an allreduce that fails raises no error, but is remembered
        stepper.step()  # all ranks vote: they take the step only if everything went well on each of them
        if manager.current_step() > step:
            print(f"step {manager.current_step()} was taken by {manager.num_participants()} ranks", flush=True)
    weights = parameters_to_vector(model.parameters()).detach().numpy()
    print(f"rank {rank} has weights {hashlib.sha256(weights.tobytes()).hexdigest()}", flush=True)
    time.sleep(1)  # for a rank that has asked for the last weights
    manager.shutdown(wait=False)


def fork(work, rank):
    """Fork a rank that calls work(rank), and return its process number."""
    if pid := os.fork():
        print(f"rank {rank} is process {pid}", flush=True)
        return pid
    status = 1
    try:
        work(rank)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def supervise(start, ranks, restarts):
    """Start all ranks, and each one that is lost again, until one of them has taken all steps."""
    rank_of = {start(rank): rank for rank in range(ranks)}
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGKILL)  # the next call returns its end
            continue
        if pid not in rank_of:
            raise SystemExit("the lighthouse ended")
        rank = rank_of.pop(pid)
        if status == 0:
            break
        if restarts == 0:
            raise SystemExit("given up: too many ranks were lost")
        restarts -= 1
        rank_of[start(rank)] = rank
    time.sleep(2)  # the others end now, too, except for those that have just come back
    for pid in rank_of:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def main():
    args = parse_arguments()
    if torchft is None:
        raise SystemExit("This script needs torchft: pip install torchft")
    data = MNIST(args.data, "train")
    if not 1 <= args.batch <= len(data):
        raise SystemExit(f"--batch {args.batch}: the data has {len(data)} images. Give a number from 1 to that.")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 32, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(4608, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    lighthouse = start_lighthouse()
    try:
        supervise(lambda rank: fork(lambda of: train(args, data, model, optimizer, of), rank), args.ranks, restarts=100)
    finally:
        lighthouse.kill()


if __name__ == "__main__":
    main()
