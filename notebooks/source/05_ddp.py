# %% [markdown]
# # DDP: gradients averaged during backward
#
# **You will** turn a training script for one process into one for many, see what PyTorch's `DistributedDataParallel` (DDP)
# does inside `backward()`, accumulate gradients without wasted messages, write the function with which DDP averages, and
# know what DDP leaves to you.
#
# **Time** about 45 minutes. **Needs** two cores; no GPU, no network. Notebook `02` first, where you average gradients
# by hand.

# %%
import contextlib
import difflib
import statistics

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from IPython.display import Markdown

from workshop_lib import ranks
from workshop_lib.exercises import ddp as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.figures import pictures
from workshop_lib.notebook.figures.steps import overlap
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD
from workshop_lib.ranks import scripts

sizes = profile.current()
samples, epochs = sizes.sweep_samples or 60_000, sizes.sweep_epochs
folder = BUILD / "05_ddp"
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## A script for one process
#
# A plain PyTorch script: MNIST, the workshop's small network, a loop over epochs, a test, and the weights saved at the end.
# `%%writefile` only writes the cell into a file, so that it can be started as a program.

# %%
# %%writefile {folder}/one_process.py
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from workshop_lib.data import mnist
from workshop_lib.models import torch_cnn


def dataset(name, samples):
    split = mnist.load(name)
    images = torch_cnn.normalise(torch.tensor(split.images[:samples]))
    return TensorDataset(images, torch.tensor(split.labels[:samples]).long())


def main(samples, epochs, device, batch_size=128):
    torch.manual_seed(1)
    train, test = dataset("train", samples), dataset("test", 10_000)
    loader = DataLoader(train, batch_size, shuffle=True)
    model = torch_cnn.build(seed=1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(epochs):
        start = time.perf_counter()
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()
        seconds = time.perf_counter() - start

        correct = seen = 0
        with torch.no_grad():
            for images, labels in DataLoader(test, 500):
                logits = model(images.to(device))
                correct += (logits.argmax(dim=1).cpu() == labels).sum().item()
                seen += len(labels)
        print(f"epoch {epoch + 1}: {seconds:.2f} s, {correct} of {seen} test images right")
    torch.save(model.state_dict(), Path(__file__).with_suffix(".pt"))


if __name__ == "__main__":
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    main(int(sys.argv[1]), int(sys.argv[2]), device)

# %%
scripts.run("python", folder / "one_process.py", samples, epochs, timeout_s=sizes.timeout_s)

# %% [markdown]
# ## The same for many processes
#
# Now the DDP version. Every process runs all of this script; each is a *rank*, and the ranks form a *process group*,
# PyTorch's counterpart of an MPI communicator. Messages go through a *backend*: *gloo* between CPUs, *NCCL* between
# NVIDIA GPUs. A *collective* is a call that every rank of the group makes, and that ends when all have made it. The one that
# matters here is *allreduce*: every rank gives a tensor, and every rank gets the sum.
#
# Read the script, but do not look for the differences: the cell after it finds them.

# %%
# %%writefile {folder}/ddp.py
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from workshop_lib.data import mnist
from workshop_lib.models import torch_cnn


def dataset(name, samples):
    split = mnist.load(name)
    images = torch_cnn.normalise(torch.tensor(split.images[:samples]))
    return TensorDataset(images, torch.tensor(split.labels[:samples]).long())


def main(samples, epochs, device, batch_size=128):
    torch.manual_seed(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    train, test = dataset("train", samples), dataset("test", 10_000)
    sampler = DistributedSampler(train, seed=1)
    loader = DataLoader(train, batch_size // size, sampler=sampler)
    my_test = Subset(test, range(rank, len(test), size))
    model = torch_cnn.build(seed=1).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()
        seconds = time.perf_counter() - start

        correct = seen = 0
        with torch.no_grad():
            for images, labels in DataLoader(my_test, 500):
                logits = model.module(images.to(device))
                correct += (logits.argmax(dim=1).cpu() == labels).sum().item()
                seen += len(labels)
        counts = torch.tensor([correct, seen], device=device)
        dist.all_reduce(counts)
        correct, seen = counts.tolist()
        if rank == 0:
            print(f"epoch {epoch + 1}: {seconds:.2f} s, {correct} of {seen} test images right")
    if rank == 0:
        torch.save(model.module.state_dict(), Path(__file__).with_suffix(".pt"))
    dist.barrier()


if __name__ == "__main__":
    device = torch.device("cpu")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    main(int(sys.argv[1]), int(sys.argv[2]), device)
    dist.destroy_process_group()

# %%
texts = [(folder / name).read_text().splitlines() for name in ("one_process.py", "ddp.py")]
lines = list(difflib.unified_diff(*texts, "one_process.py", "ddp.py", lineterm="", n=0))
Markdown("\n".join(["```diff", *(line for line in lines if not line.startswith("@@")), "```"]))

# %% [markdown]
# | change | why |
# |---|---|
# | `init_process_group` … `destroy_process_group` | the ranks find each other. Always give a `timeout`: a collective whose partner is missing then raises an error, instead of waiting up to half an hour |
# | `LOCAL_RANK` | where there are enough GPUs, each rank of a host takes its own; without this line all compute on GPU 0 |
# | `DistributedSampler` | each rank draws other samples. DDP does not share out data: without the sampler all ranks would compute the same gradient |
# | `batch_size // size` | the batch is now that of one rank; so the global batch stays what it was |
# | `DistributedDataParallel(model)` | gradients are averaged, in every `backward()` |
# | `set_epoch` | without it, every epoch has the same order |
# | `my_test`, `all_reduce(counts)` | every test image is counted once, on one rank; counts are added, and only then divided |
# | `model.module` | the network inside the wrapper: it tests without messages, and its weights are saved under their own names |
# | `if rank == 0` … `barrier` | one rank prints, one rank writes the file; the others wait until it is there |
#
# `torchrun` starts a script on several processes and tells each its rank through environment variables (`RANK`,
# `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`). `--standalone` means this machine alone. `scripts.run` ends all
# its processes when the time is up.

# %%
launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", sizes.ranks]
scripts.run(*launch, folder / "ddp.py", samples, epochs, timeout_s=sizes.timeout_s)
by_torchrun = torch.load(folder / "ddp.pt", map_location="cpu")

# %% [markdown]
# Before you compare the seconds: each process computes with one thread.
#
# *Try it:* leave `sampler=sampler` out of the script, run its cell to write it, and start it again. It trains, and nothing
# looks wrong but the time: every rank goes through all the data. (Then put it back.)
#
# ## The same on this notebook's ranks
#
# `main` does not care who started its processes. Here MPI did, and the library's `join_process_group` does what the
# last lines of the script do; we stay on the CPU, where everything can be watched. The group is kept for the ranks' life.

# %%
team = ranks.start(sizes.ranks)
team.push(path=str(folder / "ddp.py"), samples=samples, epochs=epochs)


def join():
    from workshop_lib.training import rendezvous, world

    rendezvous.join_process_group(world.detect(), torch.device("cpu"))
    torch.set_num_threads(1)
    return f"rank {dist.get_rank()} of {dist.get_world_size()}, over {dist.get_backend()}"


team.run(join)

# %%
# %%ranks --timeout 120
import runpy

import torch

runpy.run_path(path)["main"](samples, epochs, torch.device("cpu"))

# %%
by_engines = torch.load(folder / "ddp.pt")
same = all(torch.equal(by_torchrun[name], by_engines[name]) for name in by_torchrun)
print(f"The weights are{'' if same else ' not'} those of the run under torchrun, to the last bit.")

# %% [markdown]
# ## What DDP does when it wraps a model
#
# Here each rank builds its network from a seed of its own. DDP's constructor sends the weights of rank 0 to all others, a
# *broadcast*. Only thus do averaged gradients keep the ranks equal; nothing later compares the weights again.

# %%
# %%ranks
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.data import mnist, shard
from workshop_lib.models import torch_cnn

rank, size = dist.get_rank(), dist.get_world_size()
network = torch_cnn.build(seed=rank)
first_weight = network[0].weight.flatten()[0]
before = round(first_weight.item(), 3)
model = DistributedDataParallel(network)
after = round(first_weight.item(), 3)

train = mnist.load("train")
images = torch_cnn.normalise(torch.tensor(train.images[: 256 * size]))[rank::size]
labels = torch.tensor(train.labels[: 256 * size]).long()[rank::size]
loss = cross_entropy(model(images), labels)
loss.backward()
norm = model.module[0].weight.grad.norm()
print(f"loss on my images {loss.item():.4f}, norm of the first layer's gradient {norm:.6f}")

# %%
pictures.collective("broadcast\nby DDP(...)", team.pull("before"), team.pull("after"))

# %% [markdown]
# After `backward()` the gradients agree, the losses do not: DDP averages gradients and nothing else.
#
# *Try it:* `DistributedDataParallel(network, init_sync=False)` leaves the broadcast out. Which numbers still agree, and do the
# ranks train one network?
#
# ## Buckets
#
# A message per gradient would pay the cost of starting a message (the *latency*) many times; one message for all could
# only leave when the last gradient is there. DDP takes the middle: it collects gradients in *buckets*, in the order in
# which backward produces them, last layer first. A bucket is full when it holds at least `bucket_cap_mb` MiB, and is
# sent off (an allreduce) as soon as all its gradients are ready.
#
# The workshop's network fits into one bucket, so here is a larger one, of four linear layers. By default `bucket_cap_mb`
# is 25.


# %%
def perceptron(width=1024):
    """784 inputs, three hidden layers, 10 outputs; the same weights wherever it is built."""
    torch.manual_seed(1)
    widths = [784, width, width, width]
    layers = [torch.nn.Flatten()]
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


team.push(perceptron=perceptron)
parameters = [p.numel() for p in perceptron().parameters()]
print(
    f"{sum(parameters):,} parameters in {len(parameters)} tensors, {sum(parameters) * 4 / 2**20:.1f} MiB of gradients"
)

# %%
guess = predict("In how many buckets does DDP send these gradients, by default?", low=1, high=10)
guess

# %% [markdown]
# A *communication hook* is a function that DDP calls for each full bucket, instead of its own allreduce. It returns a
# *future*: an object that stands for a result that is not there yet. This hook writes down what it gets, and leaves the
# averaging to PyTorch's ready-made `allreduce_hook`.

# %%
# %%ranks
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def layout(cap):
    """(size in MiB, names of its parameters) of each bucket, in the order in which they are sent."""
    network, seen = perceptron(), []
    names = {p: name for name, p in network.named_parameters()}

    def hook(group, bucket):
        seen.append((bucket.buffer().nbytes / 2**20, [names[p] for p in bucket.parameters()]))
        return default_hooks.allreduce_hook(group, bucket)

    model = DistributedDataParallel(network, bucket_cap_mb=cap)
    model.register_comm_hook(None, hook)
    for _ in range(2):  # in its first step DDP has one bucket, and learns in which order gradients come
        seen.clear()
        cross_entropy(model(images), labels).backward()
    return seen


layouts = {str(cap): layout(cap) for cap in (None, 25, 4, 0.01)}

# %%
by_cap = team.pull("layouts")[0]
guess.compare(len(by_cap["None"]))

# %%
rows = [
    (cap, number, f"{mebibytes:.2f}", ", ".join(names))
    for cap, buckets in by_cap.items()
    for number, (mebibytes, names) in enumerate(buckets)
]
pd.DataFrame(rows, columns=["bucket_cap_mb", "bucket", "MiB", "parameters"]).style.hide(axis="index")

# %% [markdown]
# - Left to itself, DDP makes an exception for the first bucket: it closes at 1 MiB, so that sending starts early. With
#   `bucket_cap_mb=25` written out, that exception is gone.
# - A tensor is never cut. A bucket may therefore be larger than its cap.
# - Small caps give many messages, and each one pays its latency.
#
# *Try it:* other caps, or another `width`.
#
# ## Overlap
#
# How does DDP know when a gradient is ready? *Autograd*, PyTorch's machinery for derivatives, can call a function, a
# *hook*, whenever it has finished the gradient of a parameter. DDP hooks every parameter. When the last gradient of a
# bucket comes in, its allreduce starts, and backward goes on with the layers before: communication *overlaps* with
# computing. `backward()` returns when all buckets have arrived.
#
# Below we measure it on the ranks: when each gradient is ready (a hook of our own), when each bucket is sent (our
# communication hook) and when it has arrived (a function that the future calls). Against it stands what `02` does:
# backward to its end, then one allreduce of everything, over the same gloo.

# %%
guess = predict(
    "How much shorter do overlapping buckets make backward and averaging?", low=-50, high=75, unit="%"
)
guess

# %%
# %%ranks
from time import perf_counter


def measure(overlapped, cap=4):
    """A function that takes one step and returns its times in ms (see workshop_lib/notebook/figures/steps.py)."""
    network, times = perceptron(), {}

    def milliseconds():
        return 1000 * (perf_counter() - times["start"])

    def hook(group, bucket):
        message = [milliseconds(), None]
        times["messages"].append(message)

        def arrived(future):
            message[1] = milliseconds()
            return future.value()

        return default_hooks.allreduce_hook(group, bucket).then(arrived)

    def step():
        model.zero_grad()
        loss = cross_entropy(model(images), labels)
        dist.barrier()
        times.update(start=perf_counter(), ready=[], messages=[])
        loss.backward()
        if not overlapped:
            sent = milliseconds()
            together = torch.cat([p.grad.flatten() for p in network.parameters()]) / size
            dist.all_reduce(together)
            parts = together.split([p.numel() for p in network.parameters()])
            for p, part in zip(network.parameters(), parts, strict=True):
                p.grad.copy_(part.view_as(p))
            times["messages"].append([sent, milliseconds()])
        return times | {"end": milliseconds(), "backward": times["ready"][-1]}

    for p in network.parameters():
        p.register_post_accumulate_grad_hook(lambda _: times["ready"].append(milliseconds()))
    model = network
    if overlapped:
        model = DistributedDataParallel(network, bucket_cap_mb=cap)
        model.register_comm_hook(None, hook)
    return step


steps = [measure(overlapped=False), measure(overlapped=True)]
for _ in range(3):  # warm up: first steps allocate memory, and DDP makes its buckets
    [step() for step in steps]
traces = [[step() for step in steps] for _ in range(15)]  # in turn, so that both meet the same machine

# %%
by_rank = team.pull("traces")
# A step is over when the slowest rank is done.
ends = np.array([[max(trace[turn][way]["end"] for trace in by_rank) for way in (0, 1)] for turn in range(15)])
typical = [int(np.argsort(ends[:, way])[len(ends) // 2]) for way in (0, 1)]
titles = ["averaging after backward", "DDP: averaging during backward"]
overlap(
    {title: [trace[typical[way]][way] for trace in by_rank[:2]] for way, title in enumerate(titles)}
)

# %%
saved = 100 * (1 - ends[:, 1] / ends[:, 0])
for way, title in enumerate(titles):
    print(
        f"{title:>30}: {np.median(ends[:, way]):.0f} ms (median; {ends[:, way].min():.0f} to {ends[:, way].max():.0f})"
    )
guess.compare(statistics.median(saved), spread=(saved.min(), saved.max()))

# %% [markdown]
# Each picture is one step, the middle one of all that were measured, on the first two ranks. An orange bar begins when *this* rank sends, so it
# holds the time in which it waits for the others. In the upper picture the message leaves after the last gradient. In the
# lower one the first buckets travel while backward computes the rest; only the last bucket, with the gradients of the
# *first* layer, has nothing left to hide behind.
#
# On CPUs overlap has a price: gloo's threads, which add and send, take turns with backward on the same cores, so backward
# itself becomes longer. GPUs move data beside the computing, and gain more.
#
# For the workshop's small network none of this pays: it has one bucket, which is full only when backward is over.
# Nothing overlaps, and what remains is the cost of DDP's bookkeeping and of gloo's sockets. That is why the averaging
# written by hand in `02`, over MPI's shared memory, is the faster one there.
#
# *Try it:* `measure(True, cap=25)` and `cap=0.1` in the list of steps, or fewer images in the batch.
#
# ## Accumulating gradients
#
# When a batch does not fit into memory, one splits it into *micro-batches*: forward and backward for each in turn,
# while the gradients add up in `p.grad`, and one step of the optimizer at the end. With DDP each of these backwards
# averages over the ranks, though only the sum at the end matters. Inside `with model.no_sync():` it does not; gradients
# only add up on each rank. The next backward outside averages all that was accumulated.

# %%
# %%ranks
calls = []


def counting_hook(group, bucket):
    calls.append(bucket.index())
    return default_hooks.allreduce_hook(group, bucket)


model = DistributedDataParallel(perceptron(), bucket_cap_mb=4)
model.register_comm_hook(None, counting_hook)
cross_entropy(model(images), labels).backward()  # the first step, after which there are several buckets
model.zero_grad()

calls.clear()
for images_of_4, labels_of_4 in zip(images.chunk(4), labels.chunk(4), strict=True):
    cross_entropy(model(images_of_4), labels_of_4).backward()
if rank == 0:
    print(f"4 micro-batches: {len(calls)} allreduces, of buckets {calls}")

calls.clear()
with model.no_sync():
    cross_entropy(model(images), labels).backward()
if rank == 0:
    print(f"one backward inside no_sync: {len(calls)} allreduces")

# %% [markdown]
# ### Exercise 1: accumulate
#
# `model` is wrapped in DDP, its gradients are empty. `micro_batches` is a list of pairs `(inputs, targets)`, all of the same
# size, others on each rank. `loss_function(outputs, targets)` gives the mean loss of what it gets. Afterwards the gradients
# must be those of the mean loss over *all* micro-batches of *all* ranks, with a single round of allreduces, and
# never more than one micro-batch in memory. (`contextlib.nullcontext()` is a context that does nothing.)


# %%
def accumulate(model, micro_batches, loss_function):
    # <solution>
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        last = number == len(micro_batches)
        with contextlib.nullcontext() if last else model.no_sync():
            loss = loss_function(model(inputs), targets)
            (loss / len(micro_batches)).backward()
    # <stub>
    # # for each micro-batch: forward, loss, backward. Which of them run inside `model.no_sync()`?
    # # `backward()` adds to the gradients: what makes a mean out of the sum?
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.accumulate(accumulate)

# %% [markdown]
# ## Fewer bytes: communication hooks
#
# A communication hook decides what travels. Gradients are 32-bit numbers; sent as 16-bit ones (*fp16*) they take half the
# bytes, and lose digits: fp16 keeps about three, and what is smaller than about $6 \cdot 10^{-8}$ becomes 0.


# %%
# %%ranks
def averaged(hook):
    """The gradients, in one vector, that DDP makes with this hook."""
    model = DistributedDataParallel(perceptron())
    model.register_comm_hook(None, hook)
    cross_entropy(model(images), labels).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


sent_bytes = {"fp32": 0, "fp16": 0}


def full_hook(_, bucket):
    tensor = bucket.buffer()
    sent_bytes["fp32"] += tensor.nbytes
    return default_hooks.allreduce_hook(None, bucket)


def half_hook(_, bucket):
    half = (bucket.buffer() / size).half()
    sent_bytes["fp16"] += half.nbytes
    future = dist.all_reduce(half, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].float())


exact, rounded = averaged(full_hook), averaged(half_hook)
if rank == 0:
    print(f"bytes given to allreduce: {sent_bytes['fp32']:,} and {sent_bytes['fp16']:,}")
    print(f"relative error of the gradient: {(rounded - exact).norm() / exact.norm():.1e}")
    lost = ((rounded == 0) & (exact != 0)).sum() / (exact != 0).sum()
    print(f"gradients not zero that became zero: {lost:.2%}")

# %% [markdown]
# `default_hooks.fp16_compress_hook` does the same. PyTorch also has *PowerSGD*, which sends two thin matrices instead of each
# large one, and hooks that average weights now and then instead of gradients always. Not every hook runs everywhere: bf16, the
# 16-bit format with fp32's range, is refused on a CPU, as the message says. (This cell fails on purpose.)

# %%
# %%ranks --catch
DistributedDataParallel(perceptron()).register_comm_hook(None, default_hooks.bf16_compress_hook)

# %% [markdown]
# *Try it:* multiply the loss in `averaged` by 0.001. What becomes zero now? Training in fp16 therefore multiplies the loss by a
# large number first, and divides the gradients by it afterwards (*loss scaling*).
#
# ### Exercise 2: the averaging hook
#
# Write the hook that DDP uses when it is given none. `bucket.buffer()` is a flat tensor with all gradients of the bucket.
# Return a future of the tensor that holds their mean over the ranks of `process_group`. The hook must return at once, or
# nothing overlaps. Three parts:
#
# - `dist.all_reduce(tensor, group=..., async_op=True)` starts summing `tensor` over the group, in place, and returns a handle;
# - the handle's `get_future()` returns a future, whose `value()` will be a list with that tensor in it;
# - `future.then(function)` is a new future, for what `function(future)` returns once the first is complete.


# %%
def average_hook(process_group, bucket):
    # <solution>
    tensor = bucket.buffer() / process_group.size()
    future = dist.all_reduce(tensor, group=process_group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])
    # <stub>
    # # 1. start the allreduce of the bucket's buffer   2. turn it into a future of the mean
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.average_hook(average_hook)

# %% [markdown]
# Dividing before the sum, rather than after it, keeps fp16 sums of many ranks in range.
#
# ## Who sees which sample
#
# `DistributedSampler` deals out a shuffled order like cards: rank 0 gets the first sample, rank 1 the second, and so on. All ranks
# must get equally many, or the one with more would wait in its last allreduce for ever. When the number does not divide,
# it fills up with samples from the beginning.

# %%
from torch.utils.data import DistributedSampler


def dealt(n, size, **how):
    """The samples of each rank, by rank. Needs no ranks: the sampler only has to be told who asks."""
    return [list(DistributedSampler(range(n), size, rank, **how)) for rank in range(size)]


for rank, indices in enumerate(dealt(10, 4, shuffle=False)):
    print(f"rank {rank} of 4 takes {indices} of 10 samples")

# %%
guess = predict("10,000 test images on 96 ranks: how many of them are tested twice?", low=0, high=200)
guess

# %%
tested = sum(map(len, dealt(10_000, 96, shuffle=False)))
guess.compare(tested - 10_000)

# %% [markdown]
# *Try it:* with `drop_last=True` the sampler leaves samples out instead. How many?
#
# In training, a few samples that count twice do little harm. In a test they make the number wrong: too high or too low, depending
# on what the first images are. Suppose that of 10 images a network gets all right but the first two:

# %%
right = np.array([0, 0, 1, 1, 1, 1, 1, 1, 1, 1])
parts = dealt(10, 4, shuffle=False)
print(f"rank 0's own accuracy:                  {right[parts[0]].mean():.1%}")
print(f"mean of the ranks' accuracies:          {np.mean([right[part].mean() for part in parts]):.1%}")
print(f"accuracy, each image once:              {right.mean():.1%}")

# %% [markdown]
# Both wrong numbers are in published tutorials. The script above is safe: each rank tests `range(rank, n, size)`, parts that
# differ in length but repeat nothing, without a collective in the loop, and the counts are added at the end.
#
# For training, this workshop cuts each *global batch* into parts instead of the whole epoch. All ranks take the same number of
# steps, and the last batch is simply smaller:

# %%
from workshop_lib.data import shard

steps_of_ranks = [list(shard.epoch_batches(10, 1, rank, 4, seed=1, epoch=1)) for rank in range(4)]
for rank, steps in enumerate(steps_of_ranks):
    print(f"rank {rank} of 4, batch 1 a rank: {[indices.tolist() for indices, _ in steps]}")

# %% [markdown]
# A rank may have fewer samples than the others in the last step, even none. Its mean loss must then count for less: the
# library weights it by its share of the global batch, and the gradients stay exactly those of one process.
#
# And `set_epoch`: the sampler shuffles with its seed plus the epoch it was told. If nobody tells it, it stays at 0.

# %%
sampler = DistributedSampler(range(8), 2, 0, seed=1)
print("without set_epoch:", [list(sampler) for epoch in range(3)])
told = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    told.append(list(sampler))
print("with set_epoch:   ", told)

# %% [markdown]
# ### Exercise 3: a sampler without padding
#
# Return the list of samples, of those numbered `0` to `n - 1`, that `rank` (of `size`) takes in this epoch. Each sample is taken
# once an epoch, by one rank; no rank takes two more than another; the order is shuffled, another one in every epoch. All
# ranks must agree without talking to each other.


# %%
def shard_of(n, epoch, rank, size):
    # <solution>
    order = np.random.default_rng(epoch).permutation(n)
    return order[rank::size].tolist()
    # <stub>
    # # np.random.default_rng(seed).permutation(n) is a shuffled array of 0 to n - 1: which seed?
    # # a[start::step] takes every step-th element, beginning at start
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.shard_of(shard_of)

# %% [markdown]
# ## When ranks take different branches
#
# DDP waits for *every* gradient of a bucket. Here the network has a part that only rank 0 uses in this step. On the
# other ranks its gradient never comes, their bucket is never sent, and rank 0 waits for them in `backward()`. The others
# have long gone on. (This cell fails on purpose, after some seconds.)


# %%
class TwoPaths(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.always, self.sometimes = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, inputs, both):
        outputs = self.always(inputs)
        return self.sometimes(outputs) if both else outputs


team.push(TwoPaths=TwoPaths)

# %%
# %%ranks --catch --timeout 4
model = DistributedDataParallel(TwoPaths())
outputs = model(torch.ones(2, 4), both=rank == 0)
outputs.sum().backward()
print(f"rank {rank} is through backward")

# %% [markdown]
# Had the other ranks begun a second step, PyTorch would have told *them* that the first one was not finished
# ("Expected to have finished reduction in the prior iteration"), a message that names the rank that did nothing wrong.
#
# `find_unused_parameters=True` lets DDP look, after every forward, which parameters the outputs depend on, and count the others
# as ready. The search costs time in each step, so it is off by default.

# %%
team.restart()
team.push(TwoPaths=TwoPaths)
team.run(join)

# %%
# %%ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, size = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(TwoPaths(), find_unused_parameters=True)
model(torch.ones(2, 4), both=rank == 0).sum().backward()
averaged = model.module.sometimes.bias.grad
if rank == 0:
    alone = TwoPaths()
    alone(torch.ones(2, 4), both=True).sum().backward()
    print(f"gradient of the bias that only rank 0 used: {averaged.tolist()}")
    print(f"what rank 0 alone has for it:               {alone.sometimes.bias.grad.tolist()}")

# %% [markdown]
# Ranks that did not use a parameter give zeros, and the mean is over all ranks: rank 0's gradient, divided by their number.
# (The warning comes from rank 0, which uses everything: there the search was in vain.)
#
# *Try it:* let every rank use both paths, or none of them the second: what is its gradient then?
#
# ## What DDP does not do
#
# - It does not share out the data: that is the sampler.
# - It does not change the learning rate. With the batch per rank kept, the global batch grows with the ranks; what to do
#   about it is a topic of its own.
# - It does not average the loss, nor any metric: each rank has its own, until you add up sums and counts.
# - It does not average what is not a gradient. *Buffers*, such as the running means of batch normalisation, are sent from
#   rank 0 to all in each forward.
# - It does not notice ranks that take different numbers of steps, nor repair weights that have come apart.
# - It does not save memory: every rank holds all weights, gradients and the optimizer's state.
#
# ## Remember
#
# - From one process to many: group, device, sampler, wrap, `set_epoch`; one rank prints and saves; counts are added, then divided.
# - DDP broadcasts the weights once and averages gradients in buckets during backward. Overlap needs several buckets and
#   enough computing to hide behind.
# - Accumulate inside `no_sync`, forward and backward together; communicate with the last micro-batch.
# - A communication hook decides what travels; it returns a future.
# - Every rank must use the same parameters in each step, or DDP must be told to look.
#
# **Sources.** S. Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training* (arXiv:2006.15704):
# buckets, overlap, `no_sync`, unused parameters. PyTorch's documentation of `DistributedDataParallel`, of DDP communication
# hooks, of `DistributedSampler` and of torchrun, and the source of version 2 for the first bucket. T. Vogels, S. P. Karimireddy
# and M. Jaggi, *PowerSGD* (arXiv:1905.13727).

# %%
ranks.stop()
