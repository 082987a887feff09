# %% [markdown]
# # Horovod: PyTorch
#
# In notebook 02 you averaged gradients yourself, between `backward()` and the step. In 2017 Horovod put that behind one line,
# and scripts written for one GPU ran on hundreds. How can one line do that? And what does it leave to you?
#
# **Is Horovod still worth an hour?** To learn from, yes. It sends during backward, fuses small messages, and shows you what it
# does on a timeline. These ideas are in everything that came later, and you'll still meet scripts written with Horovod. For a
# new project, no: its last release is from 2023, so use DDP ([05_ddp](05_ddp.ipynb)), which is part of PyTorch. Older guides
# that recommend "Horovod with MPI" are out of date. [00_start_here](00_start_here.ipynb) helps you choose.
#
# **You will** turn a script for one process into a Horovod script, train with the two functions that make the difference, and
# start the plain script from a terminal. Then you'll see what Horovod's background thread does, and find out which rank is late.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores and Horovod, which `make setup` builds; no GPU, no
# network. Do notebook [02](02_synchronous_sgd.ipynb) first.

# %%
import statistics
import sys

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import cross_entropy

from workshop_lib import ranks
from workshop_lib.data import mnist
from workshop_lib.lessons.horovod_pytorch import figures
from workshop_lib.lessons.horovod_pytorch import judge as check
from workshop_lib.models import torch_cnn
from workshop_lib.notebook import profile, take_home
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, MNIST, SCRIPTS
from workshop_lib.ranks import scripts
from workshop_lib.training import backends

backends.require("horovod")
sizes = profile.current()
samples, epochs = sizes.sweep_samples or 60_000, sizes.sweep_epochs
folder = BUILD / "03_horovod_pytorch"
folder.mkdir(parents=True, exist_ok=True)
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## Two numbers for each rank
#
# `hvd.init()` starts a second thread in every rank, Horovod's *background thread*. From then on each rank can ask who it is.

# %%
# %%ranks
import hashlib
import time
from contextlib import suppress

import horovod.torch as hvd
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist, shard
from workshop_lib.models import torch_cnn

torch.set_num_threads(1)
hvd.init()
print(f"rank {hvd.rank()} of {hvd.size()}, local rank {hvd.local_rank()} of {hvd.local_size()}")
hvd.shutdown()

# %% [markdown]
# `rank` numbers the processes across all hosts, `local_rank` those on one host. Here the two are equal. On two hosts they aren't:
#
# | host | GPU | rank | local rank | images, by rank | images, by local rank |
# |---|---|---|---|---|---|
# | A | 0 | 0 | 0 | 0, 4, 8, … | 0, 2, 4, … |
# | A | 1 | 1 | 1 | 1, 5, 9, … | 1, 3, 5, … |
# | B | 0 | 2 | 0 | 2, 6, 10, … | 0, 2, 4, … |
# | B | 1 | 3 | 1 | 3, 7, 11, … | 1, 3, 5, … |
#
# Use the **local rank** for whatever belongs to a host: which GPU a process takes, which cores it's bound to, or who unpacks the
# data onto the host's disk for everyone there. Use the **rank** to share out the data, because Horovod doesn't do that for you.
#
# What happens if you mix them up, as in the last column? You get no error, and on one host the results are even correct. On two
# hosts an epoch takes as long as on one, because each host goes through all images. And there's another cost that doesn't show
# on the clock. Averaging over more *different* samples makes the gradient less noisy, and that's what justifies a larger learning
# rate for more ranks. Duplicates add nothing. The next cell measures how far the averaged gradient is from that of 2,000 images.

# %%
train, model = mnist.load("train"), torch_cnn.build(seed=1)


def gradient(indices):
    model.zero_grad()
    images, labels = torch_cnn.normalize(torch.tensor(train.images[indices])), torch.tensor(train.labels[indices])
    cross_entropy(model(images), labels.long()).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


everything = gradient(np.arange(2000))
shards = np.random.default_rng(1).permutation(2000)[: 7 * 4 * 64].reshape(7, 4, 64)
of_shards = [[gradient(indices) for indices in step] for step in shards]
sharding = {"one rank": [0], "four ranks, by rank": [0, 1, 2, 3], "four ranks, by local rank": [0, 1, 0, 1]}
for name, taken in sharding.items():
    means = [sum(gradients[shard] for shard in taken) / len(taken) for gradients in of_shards]
    noise = [((mean - everything).norm() / everything.norm()).item() for mean in means]
    print(f"{name:>26}: off by {statistics.mean(noise):.0%}")

# %% [markdown]
# Four different shards halve the noise, because it falls with the square root of the number of samples. Two shards, each taken
# twice, are only as good as two ranks. But a script that follows the usual rule has multiplied its learning rate by four.
#
# ## From one process to many
#
# Every rank runs the whole script. Four things in its setup have to change:
#
# - All ranks must **start with the same weights**, those of rank 0. Horovod *broadcasts* them.
# - The **gradients must be averaged** in each step. For that you *wrap* your optimizer. The wrapper registers a *hook* with each
#   parameter, a function that backward calls when that gradient is finished. The hook hands the gradient to the background
#   thread. `step()` waits until all gradients are averaged, and then takes your optimizer's step.
# - The **learning rate** is usually multiplied by the number of ranks. If each rank keeps its batch size, the global batch is
#   that many times larger, and an epoch has that many times fewer steps.
# - The **state of the optimizer**, such as momentum, must be the same everywhere. And here's a trap: a wrapper begins without
#   any state, even if the optimizer inside had some. So if a script loads a checkpoint and then wraps its optimizer, training
#   silently continues without momentum.
#
# ### Exercise 1 (normal): continue from a checkpoint, on all ranks
#
# With this function, a run that began on one process can continue on many. Every rank calls it. Rank 0 has loaded its model and
# optimizer from a checkpoint; on the other ranks both are new. The learning rate is still the one for a single process. `hvd` is
# Horovod, as imported above.
#
# <details><summary>Hint 1: in which order?</summary>
#
# The wrapper shares its `param_groups`, and so its learning rate, with your optimizer, but not the momentum. Momentum has to get
# from the old optimizer to the wrapper on rank 0, and from there to everyone. Which of the two comes first?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `group["lr"]` for each `group` in `optimizer.param_groups`; `hvd.size()`; `optimizer.state_dict()` and `load_state_dict(state)`;
# `hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())`;
# `hvd.broadcast_parameters(model.state_dict(), root_rank=0)`; `hvd.broadcast_optimizer_state(optimizer, root_rank=0)`.
#
# </details><details><summary>Solution</summary>
#
# {solution of make_distributed}
#
# </details>


# %%
def make_distributed(model, optimizer, hvd):
    """A wrapped optimizer, with which all ranks continue from rank 0's checkpoint: its weights, its momentum, averaged
    gradients, and the learning rate scaled for all ranks. Must be called on every rank."""
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
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.make_distributed(make_distributed)

# %% [markdown]
# *Break it:* leave out `load_state_dict`. Then put it back, and leave out the broadcast of the state instead. Would the loss have
# told you? *Beat it:* suppose all ranks can read the checkpoint file. Which of your lines could you drop, and what might go wrong
# that can't go wrong now?
#
# After `backward()` a gradient may still be the rank's own, or already the average, because the background thread works in the
# meantime. So if you clip gradients, wait first: `optimizer.synchronize()`, clip, and then step inside
# `with optimizer.skip_synchronize():`.
#
# ### Exercise 2 (normal): the end of an epoch
#
# After an epoch you want one accuracy for all test images, and one checkpoint. Each rank tests its own part of the images, and
# the parts may differ in length by one. So is the mean of the ranks' accuracies really the accuracy you want? And if all ranks
# write to the same file, one may overwrite what another has only half written.
#
# Write `finish_epoch`, which gets both right on any number of ranks. Every rank calls it with all test images and labels. The
# images may not divide evenly among the ranks, and the ranks may be on several hosts.
#
# <details><summary>Hint 1: what to add up?</summary>
#
# You can't add up accuracies of parts that differ in size. What can you add up? And do you divide before or after the sum over
# ranks?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `images[start::step]` takes every `step`-th image, beginning at `start`. `(model(x).argmax(dim=1) == y).sum()` counts the right
# answers, as a tensor. `hvd.allreduce(tensor, op=hvd.Sum, name="correct")` gives every rank the sum. Without `op`, Horovod
# averages. It uses the *names* to match tensors from different ranks.
#
# </details><details><summary>Solution</summary>
#
# {solution of finish_epoch}
#
# </details>


# %%
def finish_epoch(model, images, labels, save, hvd):
    """The accuracy on all images, from 0 to 1, on every rank. Each image is tested once, by one rank, and exactly
    one rank calls `save()`. Must be called on every rank."""
    # <solution>
    part = slice(hvd.rank(), None, hvd.size())
    with torch.no_grad():
        correct = (model(images[part]).argmax(dim=1) == labels[part]).sum()
    correct = hvd.allreduce(correct, op=hvd.Sum, name="correct")
    if hvd.rank() == 0:
        save()
    return correct.item() / len(labels)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.finish_epoch(finish_epoch)

# %% [markdown]
# *Break it:* return the mean of the ranks' accuracies, with plain `hvd.allreduce`. With 10,000 images on 3 ranks you'd hardly
# notice the error. How few images per rank would make it visible?
#
# ## Train with your two functions
#
# The rest of the training loop is the same as for one process. Each rank begins with different weights. But if your functions
# work, all ranks have the same digest after each epoch, as in notebook 02. (While an exercise is open, the ranks skip the
# training.)

# %%
where = {"samples": samples, "epochs": epochs, "path": str(folder / "mine.pt")}
team.push(make_distributed=make_distributed, finish_epoch=finish_epoch, **where)


# %%
# %%ranks
def tensors(split, indices):
    """These images, ready for the network, and their labels."""
    return torch_cnn.normalize(torch.tensor(split.images[indices])), torch.tensor(split.labels[indices]).long()


def batches(samples, epoch):
    """This rank's part of each global batch, in an order that all ranks agree on."""
    for indices, _ in shard.epoch_batches(samples, 64, hvd.rank(), hvd.size(), seed=1, epoch=epoch):
        yield tensors(train, indices)


train, test = mnist.load("train"), tensors(mnist.load("test"), slice(None))


# %%
# %%ranks --timeout 120
hvd.init()
model = torch_cnn.build(seed=hvd.rank())
with suppress(NotImplementedError):
    optimizer = make_distributed(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), hvd)
    for epoch in range(1, epochs + 1):
        for images, labels in batches(samples, epoch):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        accuracy = finish_epoch(model, *test, lambda: torch.save(model.state_dict(), path), hvd)
        weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        print(f"epoch {epoch}: {accuracy:.2%} right, digest {hashlib.sha256(weights).hexdigest()[:12]}")
hvd.shutdown()

# %% [markdown]
# `hvd.shutdown()` is there because the background thread takes processor time even when nobody needs it. You'll see why below.
#
# ## The script to take home
#
# [scripts/one_process.py](scripts/one_process.py) is a plain script for MNIST on one process, and
# [scripts/horovod_torch.py](scripts/horovod_torch.py) is the same for Horovod. The data and the network come from
# [scripts/mnist_data.py](scripts/mnist_data.py), and none of the three needs this repository. This is all that changes:

# %%
take_home.diff("one_process.py", "horovod_torch.py")

# %% [markdown]
# | change | why |
# |---|---|
# | `hvd.init()` | starts the background thread, and the ranks learn who they are |
# | `own_device()`, with `hvd.local_rank()` | each rank of a host takes its own GPU |
# | `DistributedOptimizer`, `broadcast_parameters` | exercise 1. There's no checkpoint to continue from, so there's no state to keep |
# | `size * BATCH` | each step takes 64 images per rank, so there are fewer steps |
# | `DistributedSampler(train, size, rank, …)` | all ranks shuffle the same way, and each takes its part of every batch |
# | `set_epoch(epoch)` | without it, every epoch would have the same order |
# | `Subset(test, …)`, `allreduce`, `if rank == 0` | exercise 2 |
#
# The learning rate stays as it is: its peak of 0.1 is already high for this network, and [07_large_batch](07_large_batch.ipynb)
# shows when scaling helps. In a terminal, start the script with the line that begins with `$`:

# %%
options = ["--images", samples, "--epochs", epochs, "--data", MNIST, "--out", folder / "script.pt"]
launch = ["mpiexec", "-n", sizes.ranks, sys.executable]
scripts.run(*launch, SCRIPTS / "horovod_torch.py", *options, timeout_s=sizes.timeout_s)

# %% [markdown]
# Any MPI launcher will do, such as `mpiexec` or `srun`. Horovod's own launcher, `horovodrun`, hands its work to `mpirun`, but
# with options that Open MPI 5 no longer understands, so it stops with "unable to find the specified executable file". Use
# `mpiexec` instead, or `horovodrun --gloo`, which doesn't use MPI at all.
#
# ## What does the background thread do?
#
# Ranks finish their gradients at different moments, perhaps even in different orders. But an allreduce only works if all ranks
# start the same one. That's why the background threads *negotiate*. They work in *cycles*, by default one per millisecond. In
# each cycle the ranks first exchange a few bytes, to tell each other which tensors they have ready. Then they send the tensors
# that are ready on every rank. Small ones travel together: Horovod copies them side by side into the *fusion buffer*, by default
# up to 128 MiB, sends them in one allreduce, and copies them out again.
#
# Horovod can record all of this. This workshop's `horovod.measure` starts fresh processes that train a network with 16 small
# tensors. They measure how long backward and averaging take, and then record a *timeline* of five more steps.

# %%
guess = predict("What share of Horovod's time per step goes into negotiation?", low=0, high=100, unit="%")
guess

# %%
measured = {"default": figures.measure("default")}
recorded = measured["default"].timeline
print({phase: f"{share:.0%}" for phase, share in recorded.shares().items()})

# %%
shares = [100 * recorded.of_step(step).shares()["negotiation"] for step in range(recorded.steps)]
guess.compare(statistics.median(shares), spread=(min(shares), max(shares)))

# %% [markdown]
# Each row below is a gradient. The last layer's is on top, because backward finishes it first. Rank 0 makes the recording, so
# this is its view. Each bar begins when rank 0 announces the tensor.

# %%
figures.draw({"default settings, the step of median length": recorded.typical()})

# %% [markdown]
# Bars that end together are tensors that traveled together. So a step needs only a few allreduces rather than 16. It needs more
# than one because the first tensors leave without waiting for the rest, and the number varies from step to step. The bar of an
# allreduce starts when *rank 0* enters it. So, like negotiation, it includes the time rank 0 spends waiting for the other
# ranks.
#
# The ticks at the top are cycles. Most cycles in the recording have nothing to send:

# %%
print(f"{len(recorded.cycles_ms)} cycles in five steps and the pauses between them,")
print(f"{len(recorded.allreduces())} allreduces that carried gradients")

# %% [markdown]
# Every cycle exchanges its few bytes, even when there is nothing to send. That's why an idle Horovod keeps the processor busy.
# If the background thread has no core of its own, it competes with the thread that computes, so an epoch on two ranks takes
# more than half as long as on one. The workshop's own backend (`training/backends/horovod_process.py`) gives it the lowest
# priority.
#
# At scale, those few bytes can cost more than the gradients. A tutorial for Theta, a machine with Intel's KNL processors, calls
# the overhead of communication "not significant". But in a trace of 32 ranks on such processors, 47,108 allreduces took 250.5 of
# 317.9 seconds, and 214.9 of those seconds went into the 45,773 allreduces that carried only 8 bytes each. Much of that is
# waiting, because the first rank to arrive waits for the last. Before Horovod could train on 27,360 GPUs of Summit in 2018, its
# users had to change it, so that the ranks negotiated in a tree instead of all talking to rank 0.
#
# ## Who is late?
#
# Horovod remembers the tensors of earlier steps, so a single bit is enough to say that a tensor is ready. Without this *response
# cache*, each rank sends names to rank 0, and the timeline shows when each rank's message arrived. In the next run the cache is
# off, and the last rank comes 20 ms late to every step. What do you expect to see?

# %%
late = figures.measure("late", "HOROVOD_CACHE_CAPACITY=0", late_ms=20).timeline
print({phase: f"{share:.0%}" for phase, share in late.shares().items()})
figures.draw({"one rank comes 20 ms late": late.typical()})

# %% [markdown]
# The digits are ranks, each drawn at the moment its message arrived. The long negotiation isn't Horovod's fault. It's waiting, and
# the digits tell you for whom. So look here before you tune any setting.
#
# *Break it:* call `horovod.measure` with `late_ms=20` but without `HOROVOD_CACHE_CAPACITY=0`. Can you still tell who is late?
#
# ## Deeper: fusion and cycle time
#
# Fusion saves the *latency*, the fixed cost of a message, and pays for it with two copies. A longer cycle collects more tensors
# for one message, but all of them wait for it.

# %%
guess = predict("How many times as long does a step take with a cycle time of 20 ms?", low=0, high=50)
guess

# %%
settings = {"a cycle every 20 ms": "HOROVOD_CYCLE_TIME=20"}
if sizes.name != "quick":
    settings |= {"a cycle every 5 ms": "HOROVOD_CYCLE_TIME=5", "no fusion": "HOROVOD_FUSION_THRESHOLD=0"}
measured |= {name: figures.measure(name, setting) for name, setting in settings.items()}

# %%
base_ms = statistics.median(measured["default"].step_ms)
ratios = np.array(measured["a cycle every 20 ms"].step_ms) / base_ms
guess.compare(np.median(ratios), spread=tuple(np.percentile(ratios, [10, 90])))

# %%
figures.compare(measured)

# %%
figures.draw({name: each.timeline.typical() for name, each in measured.items() if name != "a cycle every 5 ms"})

# %% [markdown]
# Compare medians, and look at the spread beside them, because on a busy machine conditions differ from run to run. Without
# fusion the tensors take turns, so a step pays 16 latencies, one after another. Within a host each latency is only
# microseconds, so this may cost almost nothing here; between hosts it costs more. With a long cycle the processor has less to
# do and sends fewer messages, but the gradients wait for the next cycle. That doesn't matter if a step takes seconds, but it
# does here. (The picture only starts at that cycle, so it doesn't show the wait. The table includes it.)
#
# **Autotune.** With `HOROVOD_AUTOTUNE=1` Horovod tries settings while it trains, and keeps those that move the most bytes per
# microsecond. Here we let it spend only one step on each setting; by default it spends many more.

# %%
log = folder / "autotune.csv"
few_samples = {"WARMUP_SAMPLES": 1, "STEPS_PER_SAMPLE": 1, "BAYES_OPT_MAX_SAMPLES": 6}
tuning = ["HOROVOD_AUTOTUNE=1", f"HOROVOD_AUTOTUNE_LOG={log}"]
tuning += [f"HOROVOD_AUTOTUNE_{name}={value}" for name, value in few_samples.items()]
tuned_ms = figures.measure("autotune", *tuning, steps=4 * sizes.steps).step_ms[-sizes.steps :]
print(f"default: {base_ms:.2f} ms per step; the last steps of autotune: {statistics.median(tuned_ms):.2f} ms")
figures.tried(log).tail(6)

# %% [markdown]
# The search begins at four fixed points, with cycles of 5, 10, 25 and 50 ms, and never tries less than 1 ms. It goes by a few
# noisy samples, so its best row isn't always the best setting. Always check it against the default.
#
# *Beat it:* can you find a setting that's faster than the default here? Try `horovod.measure` with settings of your own.
#
# ## Deeper: fewer bytes with fp16
#
# `compression=hvd.Compression.fp16` sends each gradient as 16-bit numbers. That takes half the bytes, but keeps only about three
# digits. The smallest number above zero is $2^{-24} \approx 6 \cdot 10^{-8}$. Values are rounded to the nearest 16-bit number, so
# one just above half of that, $3 \cdot 10^{-8}$, becomes $6 \cdot 10^{-8}$, and anything below becomes 0:

# %%
print(torch.tensor([3.1e-8, 2.9e-8]).half().tolist())

# %% [markdown]
# From here on the number of ranks is a power of two, because Adasum, below, needs that.

# %%
powers = [n for n in sizes.sweep_ranks if n & (n - 1) == 0]
team = ranks.start(powers[-1])
team.push(steps=sizes.steps, few=min(sizes.train_samples or 12_000, 12_000), powers=powers)

# %%
# %%ranks
import time

import horovod.torch as hvd
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist, shard
from workshop_lib.models import torch_cnn

torch.set_num_threads(1)
train, test = mnist.load("train"), mnist.load("test")


def tensors(split, indices):
    return torch_cnn.normalize(torch.tensor(split.images[indices])), torch.tensor(split.labels[indices]).long()


def accuracy(model):
    images, labels = tensors(test, slice(None))
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).float().mean().item()


# %%
# %%ranks
def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def trained(samples, lr=0.05, **how):
    """The gradient of the first step, and the model after one pass; `how` is for Horovod's optimizer."""
    model, first = torch_cnn.build(seed=1), None
    optimizer = torch.optim.SGD(model.parameters(), lr)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **how)
    for indices, _ in shard.epoch_batches(samples, 64, hvd.rank(), hvd.size(), seed=1, epoch=1):
        images, labels = tensors(train, indices)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        first = gradient(model) if first is None else first
    return first, model


# %%
# %%ranks --timeout 120
hvd.init()
exact, model = trained(64 * hvd.size() * steps)
rounded, half_model = trained(64 * hvd.size() * steps, compression=hvd.Compression.fp16)
if hvd.rank() == 0:
    half, _ = hvd.Compression.fp16.compress(exact)
    print(f"bytes of the gradient: {exact.nbytes:,} and {half.nbytes:,}")
    print(f"relative error of the first gradient: {(rounded - exact).norm() / exact.norm():.1e}")
    lost = ((rounded == 0) & (exact != 0)).sum() / (exact != 0).sum()
    print(f"nonzero gradients that became zero: {lost:.2%}")
    print(f"test accuracy after {steps} steps: {accuracy(model):.2%} and {accuracy(half_model):.2%}")

# %% [markdown]
# On one host bytes are cheap and the conversion isn't, so fp16 only pays off where the network is slow.
#
# ## Deeper: accumulating
#
# If a batch doesn't fit into memory, you split it into *micro-batches* and add up their gradients before you take a step.
# `backward_passes_per_step=k` tells Horovod to send only with every k-th backward.


# %%
# %%ranks
images, labels = tensors(train, range(64 * hvd.rank(), 64 * (hvd.rank() + 1)))


def accumulated(parts, **how):
    """The averaged gradient of one batch, computed in this many parts."""
    model = torch_cnn.build(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **how)
    for some_images, some_labels in zip(images.chunk(parts), labels.chunk(parts), strict=True):
        cross_entropy(model(some_images), some_labels).backward()
    optimizer.step()
    return gradient(model)


whole, in_4 = accumulated(1), accumulated(4, backward_passes_per_step=4)
if hvd.rank() == 0:
    print(f"norm with the whole batch at once: {whole.norm():.4f}; in four micro-batches: {in_4.norm():.4f}")
    print(f"a quarter of the second differs from the first by {(in_4 / 4 - whole).norm() / whole.norm():.1e}")

# %% [markdown]
# Horovod averages over ranks but not over micro-batches, where it leaves you with the sum. So divide each loss by the number of
# micro-batches. Without `backward_passes_per_step`, the second backward would change gradients that are already on their way, so
# Horovod refuses. (The next cell fails on purpose.)

# %%
# %%ranks --catch
accumulated(4)

# %%
# %%ranks
hvd.shutdown()

# %% [markdown]
# ## Deeper: Adasum
#
# The average of $N$ gradients is at most as long as a typical single one, however large $N$ is. That's why you raise the
# learning rate. Their sum would be up to $N$ times longer, and that's too long a step if the gradients all point the same way.
# *Adasum* lets the gradients decide, two at a time:
#
# $$\mathrm{Adasum}(a, b) = \Big(1 - \frac{a \cdot b}{2\,\|a\|^2}\Big)\, a + \Big(1 - \frac{a \cdot b}{2\,\|b\|^2}\Big)\, b$$
#
# If $a$ and $b$ are orthogonal, that's their sum; if they're equal, it's their mean. With more than two ranks, Adasum
# combines pairs, then pairs of pairs, so the number of ranks must be a power of two.
#
# The next cell trains on 1, 2, … ranks. Each rank keeps its batch size, so the more ranks there are, the fewer steps the same
# samples take. Each time it trains once with averaging and once with Adasum, at the learning rate for one rank.
# `hvd.init(comm=…)` starts Horovod on only some of the ranks.

# %%
guess = predict("With the most ranks, how far does Adasum beat averaging in test accuracy?", -20, 50, unit="points")
guess

# %%
# %%ranks --timeout 200
world, results = MPI.COMM_WORLD, []
for size in powers:
    part = world.Split(0 if world.rank < size else MPI.UNDEFINED, world.rank)
    if part != MPI.COMM_NULL:
        hvd.init(comm=part)
        models = [trained(few, lr=0.02, op=op)[1] for op in (hvd.Average, hvd.Adasum)]
        hvd.shutdown()
        results.append([size, few // (64 * size), *map(accuracy, models)])
    request = world.Ibarrier()
    while not request.Test():  # the ranks that are left out sleep
        time.sleep(0.05)

# %%
table = pd.DataFrame(team.pull("results")[0], columns=["ranks", "steps", "averaging", "Adasum"])
averaging, adasum = table[["averaging", "Adasum"]].iloc[-1]
guess.compare(100 * (adasum - averaging))

# %%
table.style.hide(axis="index").format({"averaging": "{:.1%}", "Adasum": "{:.1%}"})

# %% [markdown]
# On one rank both are the same. (Each number is one run from one seed, so small differences may be chance.) With averaging,
# fewer steps of the same length don't get as far. Adasum's steps get longer where the gradients of the ranks differ, so it needs
# less scaling of the learning rate. The price is extra arithmetic and messages, pair by pair.
#
# *Beat it:* give averaging the larger learning rate, `lr=0.02 * hvd.size()`. Which of the two is ahead now?
#
# ## Deeper: the same in TensorFlow
#
# Horovod works the same way in all frameworks, but the calls differ. [04_horovod_tensorflow](04_horovod_tensorflow.ipynb) covers
# the last two columns, and tells you what's broken under Keras 3.
#
# | | PyTorch | TensorFlow, own loop | Keras |
# |---|---|---|---|
# | averaging | `DistributedOptimizer`, during backward | `DistributedGradientTape`, in `tape.gradient` | `DistributedOptimizer` |
# | names of tensors | from `named_parameters` | automatic | automatic |
# | same weights | `broadcast_parameters` | `broadcast_variables` | a callback |
# | optimizer's state | `broadcast_optimizer_state` | `broadcast_variables`, after the first step | the same callback |
# | counts and metrics | `hvd.allreduce` | `hvd.allreduce` | `MetricAverageCallback`, or by hand |
# | the GPU | `torch.cuda.set_device` | `tf.config.set_visible_devices` | as on the left |
#
# Horovod also runs inside Spark and Ray. Underneath, it uses MPI, gloo, NCCL, or Intel's oneCCL, which older guides call MLSL.
# They also list Cray's ML Plugin next to Horovod; it was a competitor, made for Cray's machines.
#
# ## Remember
#
# - Choose the GPU by local rank and the data by rank. Sharding by local rank costs time *and* makes the gradient noisier.
# - Scale the learning rate, wrap, broadcast weights *and* state. Wrapping forgets the state, so load it afterwards.
# - To get the accuracy, add up the ranks' counts of right answers, then divide. Save on one rank.
# - A background thread finds out, in cycles, which gradients are ready on all ranks, and fuses small ones into one message.
# - Negotiation and allreduce both include the time spent waiting for the slowest rank. The timeline tells you which rank that is.
# - Compare settings with the default, and look at the spread. Shut down an idle Horovod.
#
# **Sources.** A. Sergeev and M. Del Balso, *Horovod: fast and easy distributed deep learning in TensorFlow* (arXiv:1802.05799),
# for tensor fusion and the timeline; the ring came from A. Gibiansky's post for Baidu, *Bringing HPC Techniques to Deep
# Learning* (2017). Horovod's documentation and the source of version 0.28.1, for cycles, response cache, autotune, launcher and
# what the wrapper does with the optimizer's state. The MPI trace of 32 ranks is in argonne-lcf/sdl_ai_workshop. T. Kurth et al.,
# *Exascale Deep Learning for Climate Analytics* (arXiv:1810.01993), for Summit. S. Maleki et al., *Scaling Distributed Training
# with Adaptive Summation* (arXiv:2006.02924), for Adasum. P. Goyal et al., *Accurate, Large Minibatch SGD* (arXiv:1706.02677),
# for the learning rate of larger batches.

# %%
ranks.stop()
