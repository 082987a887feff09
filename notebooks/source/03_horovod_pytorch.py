# %% [markdown]
# # Horovod: PyTorch
#
# **You will** turn a training script for one process into a Horovod script step by step, run it on several ranks, record what
# Horovod's background thread does and see it drawn, measure what tensor fusion and the cycle time change, and compare three
# ways to send or combine gradients differently: fp16, Adasum and accumulating.
#
# **Time** about 50 minutes. **Needs** two cores and Horovod, which `make setup` builds; no GPU, no network. Notebook
# [02](02_synchronous_sgd.ipynb) first, where you average gradients by hand.

# %%
import difflib
import json
import statistics
import sys

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown

from workshop_lib import ranks
from workshop_lib.exercises import horovod_torch as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.figures import horovod as horovod_timeline
from workshop_lib.notebook.figures import pictures
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD
from workshop_lib.ranks import scripts
from workshop_lib.training import backends

backends.require("horovod")
sizes = profile.current()
samples, epochs = sizes.sweep_samples or 60_000, sizes.sweep_epochs
folder = BUILD / "03_horovod_pytorch"
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## A script for one process
#
# MNIST, the workshop's small network, a loop over epochs, a test, and after each epoch a *checkpoint*: what is needed to
# go on later, here the weights and the optimizer's state. It is written to another name first and then renamed, so that a
# crash leaves the old checkpoint whole.

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


def save(model, optimizer, path):
    temporary = path.with_suffix(".tmp")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, temporary)
    temporary.replace(path)


def main(samples, epochs, device, batch_size=64, lr=0.02):
    torch.manual_seed(1)
    train, test = dataset("train", samples), dataset("test", 10_000)
    loader = DataLoader(train, batch_size, shuffle=True)
    model = torch_cnn.build(seed=1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

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
        save(model, optimizer, Path(__file__).with_suffix(".pt"))


if __name__ == "__main__":
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    main(int(sys.argv[1]), int(sys.argv[2]), device)

# %%
scripts.run("python", folder / "one_process.py", samples, epochs, timeout_s=sizes.timeout_s)

# %% [markdown]
# ## Step by step
#
# Horovod adds itself to a script in a few places. Each is tried here first, on this notebook's ranks.
#
# **Initialise.** `hvd.init()` starts a thread in every rank, Horovod's *background thread*, and from then on each rank can ask
# who it is. `rank` counts over all hosts, `local_rank` within one host. The local rank has one use: it says which of the host's
# GPUs this process takes.

# %%
team = ranks.start(sizes.ranks)

# %%
# %%ranks
import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist
from workshop_lib.models import torch_cnn

torch.set_num_threads(1)
hvd.init()
print(f"rank {hvd.rank()} of {hvd.size()}, local rank {hvd.local_rank()} of {hvd.local_size()}")

# %% [markdown]
# **Shard by the global rank.** Horovod does not share out the data. Here is what four ranks on two hosts would take of eight
# samples, by each of the two numbers:

# %%
for name, number_of in (
    ("rank", lambda host, local: 2 * host + local),
    ("local_rank", lambda host, local: local),
):
    size = 4 if name == "rank" else 2
    taken = [list(range(8))[number_of(host, local) :: size] for host in range(2) for local in range(2)]
    print(f"by {name:>10}: {taken}")

# %% [markdown]
# By the local rank, both hosts train on the same samples. On one host the two are the same number, so the mistake shows only
# on the cluster, and there only as time: the epoch does not get shorter with more hosts.
#
# **Broadcast.** All ranks must start from the same weights. `broadcast_parameters` sends those of one rank, the root, to all.

# %%
# %%ranks

model = torch_cnn.build(seed=hvd.rank())
first_weight = model[0].weight.flatten()[0]
before = round(first_weight.item(), 3)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
after = round(first_weight.item(), 3)

# %%
pictures.collective("broadcast_\nparameters", team.pull("before"), team.pull("after"))

# %% [markdown]
# **Wrap the optimizer.** `hvd.DistributedOptimizer` registers a function with each parameter. When backward has finished a
# gradient, the function hands it to the background thread; `step()` waits until all of them are averaged, and then calls the
# step of your optimizer.

# %%
# %%ranks
train = mnist.load("train")
images = torch_cnn.normalise(torch.tensor(train.images[: 64 * hvd.size()]))[hvd.rank() :: hvd.size()]
labels = torch.tensor(train.labels[: 64 * hvd.size()]).long()[hvd.rank() :: hvd.size()]

optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
cross_entropy(model(images), labels).backward()
own = model[0].weight.grad.norm().item()  # perhaps too early: the thread may be averaging already
optimizer.step()
print(f"norm of the first gradient: {own:.6f} after backward, {model[0].weight.grad.norm():.6f} after step")

# %% [markdown]
# After `backward()` the gradients may be those of the rank, or already the average: the thread works in the meantime. What reads
# gradients before the step, such as clipping them, has to wait first: `optimizer.synchronize()`, and then the step inside
# `with optimizer.skip_synchronize():`.
#
# The learning rate was multiplied by the number of ranks, the usual rule where each rank keeps its batch: the global batch is
# that many times larger, so there are that many fewer steps.
#
# **The optimizer's state** is not carried over by the wrapper. Momentum is part of it: for each parameter, a tensor that mixes in
# the gradients of earlier steps.

# %%
# %%ranks
other = torch_cnn.build(seed=1)
resumed = torch.optim.SGD(other.parameters(), lr=0.02, momentum=0.9)
other(images).sum().backward()
resumed.step()
wrapped = hvd.DistributedOptimizer(resumed, named_parameters=other.named_parameters())
if hvd.rank() == 0:
    print(f"tensors with momentum: {len(resumed.state)} before wrapping, {len(wrapped.state)} after")
wrapped.load_state_dict(resumed.state_dict())
if hvd.rank() == 0:
    print(f"                       {len(wrapped.state)} after load_state_dict")
hvd.shutdown()

# %% [markdown]
# So a script that loads a checkpoint, and only then wraps, begins again without momentum and says nothing. The usual order is
# therefore: wrap, load on rank 0, broadcast. `broadcast_optimizer_state` sends rank 0's learning rate, momentum and
# all other state to the rest.
#
# **The test.** Each rank tests its part of the images. The parts may differ in length by one, so the mean of the ranks'
# accuracies is not the accuracy; counts are added over the ranks first, and divided then.
#
# **Print and save on rank 0 alone.** Where all ranks write one file, each may overwrite what another has half written.
#
# ### The whole script

# %%
# %%writefile {folder}/horovod_script.py
import sys
import time
from pathlib import Path

from mpi4py import MPI  # isort: skip  (initialises MPI before Horovod)
import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from workshop_lib.data import mnist
from workshop_lib.models import torch_cnn


def dataset(name, samples):
    split = mnist.load(name)
    images = torch_cnn.normalise(torch.tensor(split.images[:samples]))
    return TensorDataset(images, torch.tensor(split.labels[:samples]).long())


def save(model, optimizer, path):
    temporary = path.with_suffix(".tmp")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, temporary)
    temporary.replace(path)


def main(samples, epochs, device, batch_size=64, lr=0.02):
    torch.manual_seed(1)
    rank, size = hvd.rank(), hvd.size()
    train, test = dataset("train", samples), dataset("test", 10_000)
    sampler = DistributedSampler(train, size, rank, seed=1)
    loader = DataLoader(train, batch_size, sampler=sampler)
    my_test = Subset(test, range(rank, len(test), size))
    model = torch_cnn.build(seed=1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr * size, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

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
                logits = model(images.to(device))
                correct += (logits.argmax(dim=1).cpu() == labels).sum().item()
                seen += len(labels)
        counts = hvd.allreduce(torch.tensor([correct, seen]), op=hvd.Sum, name="counts")
        correct, seen = counts.tolist()
        if rank == 0:
            print(f"epoch {epoch + 1}: {seconds:.2f} s, {correct} of {seen} test images right")
            save(model, optimizer, Path(__file__).with_suffix(".pt"))


if __name__ == "__main__":
    hvd.init()
    device = torch.device("cpu")
    if torch.cuda.device_count() >= hvd.local_size():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)
    main(int(sys.argv[1]), int(sys.argv[2]), device)
    hvd.shutdown()

# %%
texts = [(folder / name).read_text().splitlines() for name in ("one_process.py", "horovod_script.py")]
lines = list(difflib.unified_diff(*texts, "one_process.py", "horovod_script.py", lineterm="", n=0))
Markdown("\n".join(["```diff", *(line for line in lines if not line.startswith("@@")), "```"]))

# %% [markdown]
# `hvd.allreduce` averages unless told otherwise, hence `op=hvd.Sum`. Horovod matches tensors of different ranks by their
# *names*; the names of gradients come from `named_parameters`. `set_epoch` makes the sampler shuffle anew in each epoch.
# With mpi4py imported first, MPI outlives `hvd.shutdown()`, and Horovod can be initialised again in the same process.
#
# Any launcher of MPI starts it. (`horovodrun`, Horovod's own launcher, does not know Open MPI 5.)

# %%
launch = ["mpiexec", "-n", sizes.ranks, sys.executable]
scripts.run(*launch, folder / "horovod_script.py", samples, epochs, timeout_s=sizes.timeout_s)
by_mpiexec = torch.load(folder / "horovod_script.pt", map_location="cpu")["model"]

# %% [markdown]
# The same `main` on the notebook's ranks. Horovod is shut down at the end, because its thread takes processor time even when
# nobody asks anything of it; why is below.

# %%
team.push(path=str(folder / "horovod_script.py"), samples=samples, epochs=epochs)

# %%
# %%ranks --timeout 120
import runpy

hvd.init()
runpy.run_path(path)["main"](samples, epochs, torch.device("cpu"))
hvd.shutdown()

# %%
by_engines = torch.load(folder / "horovod_script.pt", map_location="cpu")["model"]
apart = max((by_mpiexec[name] - by_engines[name]).abs().max().item() for name in by_mpiexec)
print(f"largest difference between the weights of the two runs: {apart:.1g}")

# %% [markdown]
# ### Exercise 1: make it distributed
#
# Every rank calls `make_distributed` with a model, its optimizer, and Horovod as `hvd`. The learning rate of the optimizer is
# for one process. On rank 0 model and optimizer have been loaded from a checkpoint, on the other ranks they are new.
# Return a wrapped optimizer, with which all ranks go on together from rank 0's checkpoint: the same weights, the same momentum,
# the learning rate for all ranks, and averaged gradients.
#
# `optimizer.param_groups` is a list of dictionaries, each with its `"lr"`.


# %%
def make_distributed(model, optimizer, hvd):
    # <solution>
    for group in optimizer.param_groups:
        group["lr"] *= hvd.size()
    state = optimizer.state_dict()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    optimizer.load_state_dict(state)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return optimizer
    # <stub>
    # # scale the learning rate, wrap without losing the state, broadcast twice
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.make_distributed(make_distributed)

# %% [markdown]
# ### Exercise 2: the end of an epoch
#
# Every rank has the whole test set, `images` and `labels`, and calls `finish_epoch`. Each rank tests its own part, every image
# is tested once, and the accuracy of all images together, a number from 0 to 1, is returned on every rank. Exactly one
# rank calls `save()`. The number of images need not divide by the number of ranks, and the ranks may be on several hosts.


# %%
def finish_epoch(model, images, labels, save, hvd):
    # <solution>
    part = slice(hvd.rank(), None, hvd.size())
    with torch.no_grad():
        correct = (model(images[part]).argmax(dim=1) == labels[part]).sum()
    correct = hvd.allreduce(correct, op=hvd.Sum, name="correct")
    if hvd.rank() == 0:
        save()
    return correct.item() / len(labels)
    # <stub>
    # # a[start::step] takes every step-th element, beginning at start
    # # (model(x).argmax(dim=1) == y).sum() counts right answers, in a tensor
    # # hvd.allreduce(tensor, op=..., name="correct") returns the same tensor on every rank
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.finish_epoch(finish_epoch)

# %% [markdown]
# ## What the background thread does
#
# Ranks finish their gradients at different moments, perhaps in different orders; an allreduce works only when all ranks start the
# same one. So the background threads *negotiate*. Each works in *cycles*, one every `HOROVOD_CYCLE_TIME` milliseconds (1 by
# default). In a cycle all ranks first exchange a few bytes: which of the tensors do I have? Those that every rank has are
# sent. Several small ones go together: they are copied side by side into the *fusion buffer*, which takes up to
# `HOROVOD_FUSION_THRESHOLD` bytes (128 MiB by default), reduced in one allreduce, and copied out again.
#
# Horovod records all that in a *timeline*. The script below takes steps with a network of many small tensors, 16 of them, and
# writes down how long averaging takes after each backward; then it records five steps. The settings must be in the environment
# before `hvd.init()`. They count for the life of the process: with both of them set, a second `hvd.init()` crashes Horovod
# 0.28.1. So each setting gets processes of its own. `late_ms` lets the last rank come late to each recorded step.

# %%
# %%writefile {folder}/measure.py
import json
import os
import sys
import time

out, steps, late_ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
os.environ |= dict(setting.split("=") for setting in sys.argv[4:]) | {"HOROVOD_TIMELINE": "DYNAMIC"}

from mpi4py import MPI  # isort: skip
import horovod.torch as hvd
import torch

torch.set_num_threads(1)
torch.manual_seed(1)
layers = [torch.nn.Linear(64, 64) for _ in range(8)]
model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.Tanh())))
inputs = torch.randn(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
hvd.init()  # late, as its thread takes processor time from here on
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def step():
    """Milliseconds of backward and averaging."""
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    loss.backward()
    optimizer.synchronize()
    milliseconds = 1000 * (time.perf_counter() - start)
    with optimizer.skip_synchronize():
        optimizer.step()
    return milliseconds


for _ in range(5):
    step()
step_ms = [step() for _ in range(steps)]

hvd.start_timeline(out + ".timeline.json", mark_cycles=True)
time.sleep(0.05)
for _ in range(5):
    if hvd.rank() == hvd.size() - 1:
        time.sleep(late_ms / 1000)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)  # the ranks compute something else
hvd.stop_timeline()
time.sleep(0.05)  # the file is written by a thread of its own
hvd.shutdown()
if MPI.COMM_WORLD.rank == 0:
    with open(out + ".json", "w") as file:
        json.dump(step_ms, file)

# %%
MIB = 2**20


def measure(name, *settings, late_ms=0, steps=3 * sizes.steps):
    """Step times in ms, and the timeline of five more steps, of new processes with these settings."""
    out = folder / name
    scripts.run(*launch, folder / "measure.py", out, steps, late_ms, *settings, timeout_s=sizes.timeout_s)
    return json.loads(out.with_suffix(".json").read_text()), horovod_timeline.read(f"{out}.timeline.json")


measured = {"default": measure("default")}

# %%
guess = predict(
    "Of the time in which Horovod works on a step, which share is negotiation?", low=0, high=100, unit="%"
)
guess

# %%
recorded = measured["default"][1]
print({phase: f"{share:.0%}" for phase, share in recorded.shares().items()})
shares = [100 * recorded.of_step(step).shares()["negotiation"] for step in range(recorded.steps)]
guess.compare(statistics.median(shares), spread=(min(shares), max(shares)))

# %% [markdown]
# Each row below is a gradient, the last layer's on top, since backward finishes it first. A bar begins when rank 0 announces the tensor.
# The recording is made by rank 0 and shows its view.

# %%
horovod_timeline.draw({"default settings, the step of median length": recorded.typical()})

# %% [markdown]
# Tensors that end together travelled together. The first to be ready leave without waiting for the rest, so a step needs a few
# allreduces, not 16, and not always equally many. An allreduce is drawn from the moment when *this* rank enters it: like
# negotiation, it holds the time in which other ranks are not there yet.
#
# The ticks at the top are cycles. Most cycles of the recording have nothing to send:

# %%
cycles, messages = len(recorded.cycles_ms), len(recorded.allreduces())
print(
    f"{cycles} cycles began in five steps and the pauses after them; {messages} allreduces carried gradients"
)

# %% [markdown]
# Every one of those cycles exchanges its few bytes, also when there is nothing to do. That is why an idle Horovod uses the
# processor, and why small messages can cost more than large ones. Where the thread has no core of its own, it competes with
# the thread that computes, and two ranks do not halve the time of an epoch. The workshop's own backend
# (`training/backends/horovod_process.py`) therefore gives it the lowest priority, and sends all gradients in one group.
#
# On 32 ranks with Intel's KNL processors, an MPI trace of a training with Horovod found 47,108 allreduces in 250.5 of 317.9 seconds; 45,773 of them had 8 bytes, and took 214.9 s.
# Much of such time is waiting: whoever comes first to an exchange waits in it for the last one.
#
# Who is late? Horovod remembers the tensors of earlier steps, so that a single bit tells that a tensor is there. Without this
# *response cache* (`HOROVOD_CACHE_CAPACITY=0`) each rank sends names to rank 0, and the timeline tells when each rank's word came.
# In this run the last rank comes 20 ms late.

# %%
late = measure("late", "HOROVOD_CACHE_CAPACITY=0", late_ms=20)[1]
print({phase: f"{share:.0%}" for phase, share in late.shares().items()})
horovod_timeline.draw({f"rank {sizes.ranks - 1} comes 20 ms late": late.typical()})

# %% [markdown]
# The long negotiation is no fault of Horovod: the digits tell who was waited for. Before tuning any setting, look here.
#
# *Try it:* let all ranks be late in turn, or add `"HOROVOD_CACHE_CAPACITY=0"` without `late_ms`.
#
# ## Fusion and cycle time
#
# Fusion saves the cost of starting a message (the *latency*), and costs two copies. A longer cycle collects more tensors for one
# message, and lets all of them wait.

# %%
guess = predict("By which factor does a step with a cycle time of 20 ms take longer?", low=0, high=50)
guess

# %%
settings = {"no fusion": ["HOROVOD_FUSION_THRESHOLD=0"], "cycle 20 ms": ["HOROVOD_CYCLE_TIME=20"]}
if sizes.name != "quick":
    settings["fuse up to 64 KiB"] = ["HOROVOD_FUSION_THRESHOLD=65536"]
    settings["cycle 5 ms"] = ["HOROVOD_CYCLE_TIME=5"]
for name, values in settings.items():
    measured[name] = measure(name.replace(" ", "_"), *values)

# %%
base_ms = statistics.median(measured["default"][0])
ratios = np.array(measured["cycle 20 ms"][0]) / base_ms
guess.compare(np.median(ratios), spread=tuple(np.percentile(ratios, [10, 90])))

# %%
rows = []
for name, (step_ms, timeline) in measured.items():
    low, middle, high = np.percentile(step_ms, [10, 50, 90])
    rows.append(
        (
            name,
            f"{middle:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{len(timeline.allreduces()) / timeline.steps:.1f}",
        )
    )
columns = ["setting", "step in ms (median)", "80 % of the steps", "allreduces a step"]
pd.DataFrame(rows, columns=columns).style.hide(axis="index")

# %%
titles = {"no fusion": "no fusion", "cycle 20 ms": "a cycle every 20 ms"}
horovod_timeline.draw({title: measured[name][1].typical() for name, title in titles.items()})

# %% [markdown]
# Compare medians with the spread beside them; each row comes from processes of its own, and on a busy machine they meet different
# conditions. Without fusion, tensors take turns: 16 latencies, one after the other. Within a host a latency is
# microseconds, so this may cost nothing here; between hosts it is more. With a long cycle the processor has less to do and few
# messages leave, but gradients wait for the next cycle to begin: good where a step takes seconds, bad here. (The picture
# begins only with that cycle; the table holds the wait.)
#
# **Autotune.** Horovod can search for itself: `HOROVOD_AUTOTUNE=1` tries settings while it trains and keeps what moves most bytes
# in a microsecond. It is quick here because it is told to look at few steps for each; by default it takes many more.

# %%
log = folder / "autotune.csv"
tuning = {
    "AUTOTUNE": 1,
    "AUTOTUNE_LOG": log,
    "AUTOTUNE_WARMUP_SAMPLES": 1,
    "AUTOTUNE_STEPS_PER_SAMPLE": 1,
    "AUTOTUNE_BAYES_OPT_MAX_SAMPLES": 6,
}
values = [f"HOROVOD_{name}={value}" for name, value in tuning.items()]
measured["autotune"] = measure("autotune", *values, steps=4 * sizes.steps)

# %%
tried = pd.read_csv(log, skipinitialspace=True)
tried = tried.rename(columns={"cycle_time_ms": "cycle in ms", "tensor_fusion_threshold": "fuse up to MiB"})
tried = tried.rename(columns={"cache_enabled": "cache", "score": "bytes in 1 µs"})
tried[["cycle in ms", "fuse up to MiB", "cache", "bytes in 1 µs"]].sort_values("bytes in 1 µs").tail(6)

# %%
last_ms = measured["autotune"][0][-sizes.steps :]
print(
    f"default settings: {base_ms:.2f} ms a step; the last steps of autotune: {statistics.median(last_ms):.2f} ms"
)

# %% [markdown]
# The search begins at four fixed points, with cycles of 5, 10, 25 and 50 ms, and never tries less than 1 ms. It steers by few noisy
# samples, so its best row is not always the best setting: check it against the default, as here. (It also tries
# settings for several hosts, which are not shown.)
#
# ## Fewer bytes: fp16
#
# `compression=hvd.Compression.fp16` sends each gradient as 16-bit numbers: half the bytes, about three digits, and what is
# smaller than about $6 \cdot 10^{-8}$ becomes 0.

# %%
team.push(steps=sizes.steps)

# %%
# %%ranks
hvd.init()
from workshop_lib.data import shard


def batches(steps, batch_size=64):
    """This rank's part of each global batch."""
    size, rank = hvd.size(), hvd.rank()
    for indices, _ in shard.epoch_batches(batch_size * size * steps, batch_size, rank, size, seed=1, epoch=1):
        yield (
            torch_cnn.normalise(torch.tensor(train.images[indices])),
            torch.tensor(train.labels[indices]).long(),
        )


def trained(steps, lr=0.05, **how):
    """The first step's gradient, and the weights after some steps; `how` is for DistributedOptimizer."""
    model = torch_cnn.build(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **how)
    first = None
    for images, labels in batches(steps):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        if first is None:
            first = torch.cat([p.grad.flatten() for p in model.parameters()])
    return first, model


test = mnist.load("test")
test_images, test_labels = torch_cnn.normalise(torch.tensor(test.images)), torch.tensor(test.labels).long()


def accuracy(model):
    with torch.no_grad():
        return (model(test_images).argmax(dim=1) == test_labels).float().mean().item()


exact, model = trained(steps)
rounded, half_model = trained(steps, compression=hvd.Compression.fp16)
if hvd.rank() == 0:
    half, _ = hvd.Compression.fp16.compress(exact)
    print(f"bytes of the gradient: {exact.nbytes:,} and {half.nbytes:,}")
    print(f"relative error of the first gradient: {(rounded - exact).norm() / exact.norm():.1e}")
    lost = ((rounded == 0) & (exact != 0)).sum() / (exact != 0).sum()
    print(f"gradients not zero that became zero: {lost:.2%}")
    print(f"test accuracy after {steps} steps: {accuracy(model):.2%} and {accuracy(half_model):.2%}")

# %% [markdown]
# On one host the bytes are cheap and the conversion is not, so fp16 pays only where the network is slow.
#
# ## Accumulating: `backward_passes_per_step`
#
# A batch too large for the memory is split into *micro-batches*, whose gradients add up before one step.
# `backward_passes_per_step=k` tells Horovod to send only with the k-th backward.

# %%
# %%ranks
images, labels = next(batches(1))


def accumulated(parts, **how):
    model = torch_cnn.build(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **how)
    for some_images, some_labels in zip(images.chunk(parts), labels.chunk(parts), strict=True):
        cross_entropy(model(some_images), some_labels).backward()
    optimizer.step()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


whole, in_4 = accumulated(1), accumulated(4, backward_passes_per_step=4)
if hvd.rank() == 0:
    print(f"the whole batch at once: norm {whole.norm():.4f}; four micro-batches: norm {in_4.norm():.4f}")
    print(
        f"a quarter of the latter differs from the former by {(in_4 / 4 - whole).norm() / whole.norm():.1e}"
    )

# %% [markdown]
# Horovod averages over ranks, not over micro-batches: it leaves their sum, so divide each loss by their number. Without the
# setting, the second backward would change gradients that are on their way, and Horovod refuses. (This cell fails on purpose.)

# %%
# %%ranks --catch
accumulated(4)

# %%
# %%ranks
hvd.shutdown()

# %% [markdown]
# ## Adasum
#
# Averaging $N$ gradients keeps a step as long as one rank's, whatever $N$; hence the larger learning rate. Adding them would make
# it $N$ times longer, too far where the gradients point the same way. *Adasum* lets the gradients decide, two at a time:
#
# $$\mathrm{Adasum}(a, b) = \Big(1 - \frac{a \cdot b}{2\,\|a\|^2}\Big)\, a + \Big(1 - \frac{a \cdot b}{2\,\|b\|^2}\Big)\, b$$
#
# If $a$ and $b$ are orthogonal, that is their sum; if they are equal, their mean. More ranks are combined in pairs, then pairs of
# pairs, so their number must be a power of two.
#
# The script trains on 1, 2 and 4 ranks with the same batch a rank, hence fewer steps for the same samples: once averaging,
# once with Adasum, at the learning rate of one rank. It makes a smaller Horovod of some of its ranks with `hvd.init(comm=...)`.

# %%
guess = predict(
    "On the most ranks: by how many points is Adasum's test accuracy above that of averaging?",
    low=-20,
    high=50,
    unit="points",
)
guess

# %%
# %%writefile {folder}/adasum.py
import json
import sys
import time

from mpi4py import MPI  # isort: skip
import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist, shard
from workshop_lib.models import torch_cnn

torch.set_num_threads(1)
samples, out = int(sys.argv[1]), sys.argv[2]
world, results = MPI.COMM_WORLD, []
train, test = mnist.load("train"), mnist.load("test")


def batch(split, indices):
    return torch_cnn.normalise(torch.tensor(split.images[indices])), torch.tensor(
        split.labels[indices]
    ).long()


def trained(op, lr=0.02):
    """Test accuracy after one pass over the samples, on rank 0."""
    model = torch_cnn.build(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=op)
    for indices, _ in shard.epoch_batches(samples, 64, hvd.rank(), hvd.size(), seed=1, epoch=1):
        optimizer.zero_grad()
        images, labels = batch(train, indices)
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    if hvd.rank() != 0:
        return None
    with torch.no_grad():
        images, labels = batch(test, slice(None))
        return (model(images).argmax(dim=1) == labels).float().mean().item()


torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first one takes seconds, better before Horovod's thread runs
size = 1
while size <= world.size:
    part = world.Split(0 if world.rank < size else MPI.UNDEFINED, world.rank)
    if part != MPI.COMM_NULL:
        hvd.init(comm=part)
        results.append([size, trained(hvd.Average), trained(hvd.Adasum)])
        hvd.shutdown()
    request = world.Ibarrier()  # the ranks that are left out sleep meanwhile
    while not request.Test():
        time.sleep(0.05)
    size *= 2
if world.rank == 0:
    with open(out, "w") as file:
        json.dump(results, file)

# %%
most = max(n for n in sizes.sweep_ranks if n & (n - 1) == 0)
few = min(sizes.train_samples or 12_000, 12_000)
words = ["mpiexec", "-n", most, sys.executable, folder / "adasum.py", few, folder / "adasum.json"]
scripts.run(*words, timeout_s=sizes.timeout_s)
results = json.loads((folder / "adasum.json").read_text())

# %%
guess.compare(100 * (results[-1][2] - results[-1][1]))

# %%
rows = [(n, few // (64 * n), f"{average:.1%}", f"{adasum:.1%}") for n, average, adasum in results]
pd.DataFrame(rows, columns=["ranks", "steps", "averaging", "Adasum"]).style.hide(axis="index")

# %% [markdown]
# At one rank the two are the same. (One run each, from one seed: small differences may be chance.) With averaging, fewer steps
# of the same length lead less far once there are only few of them. Adasum's steps grow where the gradients of the ranks differ, so it needs less of
# the learning rate's scaling; the price is arithmetic and messages, pair by pair.
#
# *Try it:* give averaging the larger learning rate, `lr * hvd.size()`. Which of the two is ahead then?
#
# ## Remember
#
# - Initialise, pin the device by local rank, shard by global rank, scale the learning rate, wrap, broadcast weights *and* state,
#   test by counts, save on one rank.
# - Wrapping forgets the optimizer's state: load it after wrapping.
# - A background thread negotiates in cycles which gradients all ranks have, and sends small ones fused in one message.
# - Negotiation and allreduce both hold waiting for the slowest rank. The timeline tells which rank that is.
# - Settings count from `hvd.init()`; measure them against the default, with the spread. Shut an idle Horovod down.
#
# **Sources.** A. Sergeev and M. Del Balso, *Horovod: fast and easy distributed deep learning in TensorFlow* (arXiv:1802.05799):
# tensor fusion, timeline. Horovod's documentation and the source of version 0.28.1: cycles, response cache, autotune,
# what the wrapper does with the optimizer's state. The MPI trace of 32 ranks is published in argonne-lcf/sdl_ai_workshop. S. Maleki et al.,
# *Scaling Distributed Training with Adaptive Summation* (arXiv:2006.02924): Adasum. P. Goyal et al., *Accurate, Large Minibatch
# SGD* (arXiv:1706.02677): the learning rate for larger batches.

# %%
ranks.stop()
