"""MNIST with DeepSpeed's ZeRO. Start it with: torchrun --standalone --nproc-per-node 2 zero_deepspeed.py"""

import argparse
import math
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from mnist_data import MNIST, MNIST_FOLDER, cnn, mnist_folder
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

BATCH = 64  # images per rank and step


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--images", type=int, default=60_000, help="training images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stage", type=int, default=2, choices=range(4), help="of ZeRO: 3 shards the weights, too")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16, with float32 master weights")
    parser.add_argument("--out", type=Path, default=Path("cnn"), help="folder for the checkpoint")
    return parser.parse_args()


@torch.no_grad()
def count_right(model, loader, device, dtype):
    """Return how many images the model recognizes."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in loader:
        guesses = model(images.to(device, dtype)).argmax(1)
        right += (guesses == labels.to(device)).sum()
    return right


@record  # torchrun's report then has the traceback of the rank that failed first
def main():
    args = parse_arguments()
    if not torch.accelerator.is_available():
        # On CPUs, DeepSpeed would compile an allreduce of its own for two minutes, and nothing public prevents it.
        deepspeed.ops.__compatible_ops__ = {}
    deepspeed.init_distributed(verbose=False)
    rank = dist.get_rank()
    size = dist.get_world_size()
    torch.set_num_threads(1)  # one core per process, however many processes there are

    train = MNIST(args.data, "train", args.images)
    test = MNIST(args.data, "test")
    sampler = DistributedSampler(train, seed=1)  # shuffles, and gives each rank images of its own
    loader = DataLoader(train, BATCH, sampler=sampler, drop_last=True)
    # Each test image is tested once. With stage 3, all ranks gather weights in each forward pass, so all need as many
    # batches.
    own_images = range(rank, len(test), size)
    batches = math.ceil(len(test) / (500 * size))
    test_loader = DataLoader(test, batch_sampler=[own_images[first::batches] for first in range(batches)])
    steps = len(loader)
    if steps < 2:
        raise SystemExit(f"--images {args.images} is too few for two steps of {BATCH} per process: give more.")

    torch.manual_seed(1)
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    # The learning rate rises for half an epoch, then falls to zero.
    warmup = steps // 2
    total = args.epochs * steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (total - step) / (total - warmup))
    )
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # none; without this line, DeepSpeed clips at a norm of 1, from version 0.19.3 on
        "bf16": {"enabled": args.bf16},
        "zero_optimization": {"stage": args.stage},
        "zero_allow_untested_optimizer": True,
    }
    # The engine moves the model to this rank's device. It also steps the schedule, once per step of the optimizer.
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)
    device = engine.device
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    torch.manual_seed(1000 + rank)  # from here on, each rank draws noise of its own, such as dropout's

    for epoch in range(1, args.epochs + 1):
        model.train()
        sampler.set_epoch(epoch)  # without it, each epoch has the order of the first
        start = time.perf_counter()
        for images, labels in loader:
            logits = engine(images.to(device, dtype))
            loss = cross_entropy(logits.float(), labels.to(device))
            engine.backward(loss)
            engine.step()
        loss.item()  # waits until a GPU has finished its work
        speed = steps * size * BATCH / (time.perf_counter() - start)
        for buffer in model.buffers():  # such as the statistics of batch normalization: rank 0's on all ranks
            dist.broadcast(buffer, 0)
        right = count_right(model, test_loader, device, dtype)
        dist.all_reduce(right)
        if rank == 0:
            print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right.item() / len(test):.2%}")
        # Each rank writes its share of the optimizer's state. Only engine.load_checkpoint puts them together.
        engine.save_checkpoint(args.out, tag=f"epoch{epoch}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
