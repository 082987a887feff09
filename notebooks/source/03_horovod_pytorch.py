# %% [markdown] track="frameworks"
# # Horovod: PyTorch
#
# In notebook 02 you averaged gradients yourself, between `backward()` and the optimizer's step. In 2017 Horovod put that behind
# one line, and scripts written for one GPU ran on hundreds. How can one line do that? And what does it leave to you?
#
# **Is Horovod still worth your time?** To learn from, yes. It sends gradients while the backward pass is still running, combines
# small messages into larger ones, and shows you on a timeline what it does. These ideas are in everything that came later. For a
# new project, no: its last release was in June 2023, so use DDP ([05_ddp](05_ddp.ipynb)), which is part of PyTorch.
#
# **You will** train on many processes, start a script with `mpiexec`, and see what Horovod's background thread does. Then you'll
# write a function that reads Horovod's recording of a slow run and says which rank is late, and by how much.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores and Horovod, which `make setup` builds; no GPU, no
# network. Do notebook [02](02_synchronous_sgd.ipynb) first.

# %%
import sys

import pandas as pd

from workshop_lib import paths, predict, profile, ranks, scripts, take_home

from lessons import horovod_pytorch as lesson

lesson.backends.require("horovod")
sizes = profile.current()
samples, epochs = sizes.sweep_samples or 60_000, sizes.sweep_epochs
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## Two numbers for each rank
#
# `hvd.init()` starts a second thread in every rank, Horovod's *background thread*. From then on, each rank can ask Horovod for
# its two numbers.

# %%
# %%ranks
import hashlib

import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from workshop_lib import mnist, torch_cnn

torch.set_num_threads(1)
hvd.init()
print(
    f"rank {hvd.rank()} of {hvd.size()}, "
    f"local rank {hvd.local_rank()} of {hvd.local_size()}"
)
# The background thread uses the processor even when there's nothing to send, so stop it
# until you need it.
hvd.shutdown()

# %% [markdown]
# `rank` numbers the processes across all hosts, and `local_rank` numbers those on one host. On a single host the two are equal.
# On two hosts with two GPUs each, they aren't:
#
# | host | GPU | rank | local rank | images, by rank | images, by local rank |
# |---|---|---|---|---|---|
# | A | 0 | 0 | 0 | 0, 4, 8, … | 0, 2, 4, … |
# | A | 1 | 1 | 1 | 1, 5, 9, … | 1, 3, 5, … |
# | B | 0 | 2 | 0 | 2, 6, 10, … | 0, 2, 4, … |
# | B | 1 | 3 | 1 | 3, 7, 11, … | 1, 3, 5, … |
#
# Use the **local rank** for whatever belongs to a host, such as the GPU that a process takes. Use the **rank** to divide the
# data, because Horovod doesn't do that for you. If you mix them up, as in the last column, you get no error. But each host goes
# through all the images, so an epoch takes as long on two hosts as on one, and the four ranks, which hold only two different
# parts of the data, learn no better than two ranks.
#
# ## From one process to many
#
# Every rank runs the whole script. Two things have to change before the first step:
#
# - All ranks must **start with the same weights**, those of rank 0. Horovod *broadcasts* them.
# - The **gradients must be averaged** in each step. For that you *wrap* your optimizer. The wrapper registers a *hook* with
#   each parameter, a function that PyTorch calls during the backward pass, as soon as that parameter's gradient is finished.
#   The hook hands the gradient to the background thread. The wrapper's `step()` waits until all gradients are averaged, and
#   then takes your optimizer's step.
#
# The next function does both. Its first line broadcasts the weights, and its last line is Horovod's one line:


# %%
def make_distributed(model, optimizer, hvd):
    """Gives every rank rank 0's weights, and returns an averaging optimizer.

    It averages the gradients of all ranks before each step. Called on every rank.
    """
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    # The ranks match their gradients by these names.
    names = model.named_parameters()
    return hvd.DistributedOptimizer(optimizer, named_parameters=names)


# %% [markdown]
# ## Train with it
#
# The loop below is the loop for a single process, with two changes: it calls `make_distributed`, and it uses a
# `DistributedSampler`, which gives each rank its own part of every batch. The ranks begin with different weights. At the end,
# all ranks have the same digest (a checksum of the weights).

# %%
team.push(make_distributed=make_distributed, samples=samples, epochs=epochs)


# %%
# %%ranks --timeout 120
hvd.init()
split = mnist.load("train")
images = torch_cnn.normalize(torch.tensor(split.images[:samples]))
train = TensorDataset(images, torch.tensor(split.labels[:samples]).long())
sampler = DistributedSampler(train, hvd.size(), hvd.rank(), seed=1)

model = torch_cnn.build(seed=hvd.rank())
optimizer = make_distributed(
    model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), hvd
)
for epoch in range(epochs):
    # Without this call, every epoch would have the same order.
    sampler.set_epoch(epoch)
    for images, labels in DataLoader(train, 64, sampler=sampler, drop_last=True):
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(
        f"epoch {epoch + 1}: last loss {loss:.3f}, "
        f"digest {hashlib.sha256(weights).hexdigest()[:12]}"
    )

# %%
# %%ranks
hvd.shutdown()

# %% [markdown]
# *Break it:* leave out the broadcast in `make_distributed`, push the function to the ranks, and train again. Would the loss
# have told you?
#
# If you clip gradients, clip the averaged ones. After `backward()` some gradients may still be traveling, so call
# `optimizer.synchronize()`, clip, and step inside `with optimizer.skip_synchronize():`.
#
# ## The script to take home
#
# [scripts/one_process.py](scripts/one_process.py) is a plain script for MNIST on one process, and
# [scripts/horovod_torch.py](scripts/horovod_torch.py) is the same script with Horovod. The data and the network come from
# [scripts/mnist_data.py](scripts/mnist_data.py), and none of the three files needs this repository. This is all that changes:

# %%
take_home.diff("one_process.py", "horovod_torch.py")

# %% [markdown]
# | change | why |
# |---|---|
# | `own_device()`, with `hvd.local_rank()` | each rank of a host takes its own GPU |
# | `size * BATCH` | each step takes 64 images per rank, so an epoch has fewer steps |
# | `Subset(test, …)`, `allreduce` | each rank tests its part of the images. Add up counts and divide last, as in [01](01_mpi_basics.ipynb) |
# | `if rank == 0` | one rank writes the checkpoint; several would overwrite each other's file |
#
# The learning rate stays as it is. The *linear scaling rule* would multiply it by the number of ranks, because the global batch
# grows; [07_large_batch](07_large_batch.ipynb) shows when that helps. The next cell starts the script. To start it in a terminal,
# go to the workshop's folder, type `source .venv/bin/activate`, and then type the line that the cell prints after `$`.

# %%
out = paths.BUILD / "horovod_torch.pt"
options = ["--images", samples, "--epochs", epochs, "--data", paths.MNIST, "--out", out]
launch = [*scripts.mpiexec(sizes.ranks), sys.executable]
scripts.run(
    *launch, paths.SCRIPTS / "horovod_torch.py", *options, timeout_s=sizes.timeout_s
)

# %% [markdown]
# Why not `python -m mpi4py`, as in notebook 01? There, a rank that failed left the others waiting. A Horovod rank that fails
# shuts Horovod down as it exits. Its background thread tells the other ranks, and their next allreduce raises an error:
# "Horovod has been shut down". So no rank waits for the one that failed.
#
# Any MPI launcher will do, such as `mpiexec` or `srun`. Avoid Horovod's own launcher, `horovodrun`: it calls `mpirun` with
# options that Open MPI 5 no longer understands, and stops with "unable to find the specified executable file".
#
# ## What does the background thread do?
#
# Ranks finish their gradients at different moments, perhaps even in different orders. But an allreduce only works if all ranks
# start the same one. That's why the background threads *negotiate*. They work in *cycles*, by default one per millisecond. In
# each cycle the ranks first exchange a few bytes, to tell each other which tensors they have ready. Then they send the tensors
# that are ready on every rank. Small tensors travel together: Horovod copies them side by side into the *fusion buffer* (128
# MiB by default), sends its contents in one allreduce, and copies the results out again.
#
# Horovod can record all of this on a *timeline*. The next cell starts fresh processes that train a network with 16 small
# tensors. Horovod records fifteen of their steps, once the run has warmed up.

# %%
measured = lesson.figures.measure("default")
recorded = measured.timeline
lesson.figures.draw({"default settings, the step of median length": recorded.typical()})

# %% [markdown]
# Each row is a gradient. The last layer's gradient is on top, because the backward pass finishes it first. Rank 0 makes the
# recording, so each bar begins when rank 0 first hears of the tensor.
#
# Bars that end together are tensors that traveled together, so a step needs only a few allreduces rather than 16. It may need
# more than one, because the first tensors leave with the next cycle, without waiting for the rest. How many allreduces are
# there in your figure? Each allreduce bar starts when *rank 0* enters the allreduce. Like a negotiation bar, an allreduce bar
# includes the time that rank 0 spends waiting for the other ranks.
#
# The ticks at the top mark the cycles. The ranks exchange their few bytes in every cycle, even when there is nothing to send.
# That's why an idle Horovod keeps the processor busy. At scale, those few bytes can cost more than the gradients. In a traced
# training run on 32 ranks (Intel's KNL processors), allreduces took 250 of 318 seconds. Of these seconds, 215 went to messages of
# only 8 bytes each, which made up 97 % of the allreduces. Much of this time was spent waiting, because the first rank to arrive
# waits for the last.
#
# ## Who is late?
#
# Horovod remembers the tensors of earlier steps, so a single bit is enough to say that a tensor is ready. Without this
# *response cache*, each rank sends the tensors' names to rank 0, and the timeline shows when each rank's message arrived. The
# next run uses no cache, and the run has a problem: in every step, one rank comes late. The program chooses at random which
# rank is late, and by how much.

# %%
late = lesson.figures.measure("late", "HOROVOD_CACHE_CAPACITY=0", one_late=True)
lesson.figures.draw({"one rank is late": late.timeline.typical()})

# %% [markdown]
# Each digit is the number of a rank, drawn at the moment when that rank's message arrived. The long negotiation isn't Horovod's
# fault. It's the time that the other ranks spend waiting, and the digits tell you for whom. But the figure shows only one step
# of fifteen, with a few ranks. In a run on hundreds of ranks, nobody can read the digits. Here are the same messages as a list:

# %%
events = late.timeline.ready
pd.DataFrame(events).head(6)

# %% [markdown]
# ### Exercise 1 (normal): who is late?
#
# With this function you can find a late rank in any recording. `events` is a list of messages to rank 0, in any order. Each
# `event` is one message, which arrived at `event.at_ms`: rank `event.rank` announced that tensor `event.tensor` of step
# `event.step` is ready. Every rank announces every tensor of every step once. A rank's lateness *for a tensor* is the time from
# the first message about that tensor to this rank's message about it. A rank's lateness *in a step* is its largest lateness for
# any of that step's tensors.
#
# <details><summary>Hint 1: two passes</summary>
#
# To know how late a message is, you need the earliest message about the same tensor in the same step. So go through the events
# twice: which moments do you collect first?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# Keep the earliest `at_ms` in a dictionary with the keys `(event.tensor, event.step)`. For the result, begin with a list of
# zeros for each rank, `[0.0] * steps`, and let `max` keep the largest value of each step.
#
# </details><details><summary>Solution</summary>
#
# {solution of lateness}
#
# </details>


# %%
def lateness(events):
    """How late each rank was: {rank: [ms in step 0, ms in step 1, …]}."""
    # <solution>
    first_ms = {}
    for event in events:
        key = event.tensor, event.step
        first_ms[key] = min(event.at_ms, first_ms.get(key, event.at_ms))
    steps = 1 + max(event.step for event in events)
    late_ms = {event.rank: [0.0] * steps for event in events}
    for event in events:
        waited_ms = event.at_ms - first_ms[event.tensor, event.step]
        of_rank = late_ms[event.rank]
        of_rank[event.step] = max(of_rank[event.step], waited_ms)
    return late_ms
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.lateness(lateness)

# %% [markdown]
# Which rank was late in your run, and by how much? The table shows what your function returns, over all fifteen steps, and the
# last line shows what the program chose. (Until you've written `lateness`, `written` uses the solution instead.)

# %%
late_ms = pd.DataFrame(lesson.check.written(lateness)(events)).sort_index(axis=1)
print(late_ms.describe().loc[["min", "50%", "max"]].round(1).to_string())
print(f"chosen at random: rank {late.late_rank}, {late.late_ms:.0f} ms in every step")

# %% [markdown]
# (On a busy machine, other ranks come late in some steps, too.) A rank that is late in every step has a slow GPU, an overloaded
# host, or more work than its share. A rank that is late only once, for example because it wrote a checkpoint, has a large `max`
# and a small median. Look for late ranks before you tune any setting.
#
# *Break it:* measure the late run again, but without `HOROVOD_CACHE_CAPACITY=0`. Can you still tell who is late?
#
# ## Deeper: cycle time and other settings
#
# A longer cycle collects more tensors for one message, but all of them wait for the cycle to end.

# %%
guess = predict(
    "How many times as long does a step take with a cycle time of 20 ms?",
    low=0,
    high=50,
)
guess

# %%
slow = lesson.figures.measure("a cycle every 20 ms", "HOROVOD_CYCLE_TIME=20")
table = lesson.figures.compare({"default": measured, "a cycle every 20 ms": slow})
guess.compare([ms / measured.median_ms for ms in slow.step_ms])

# %%
table

# %% [markdown]
# The processor has less to do and sends fewer messages, but the gradients wait for the next cycle. This wait doesn't matter if
# a step takes seconds, but here a step takes only milliseconds. (Horovod can choose the settings itself, with
# [autotune](https://horovod.readthedocs.io/en/stable/autotune.html).)
#
# Instead of averaging, the wrapper can combine gradients with
# [Adasum](https://horovod.readthedocs.io/en/stable/adasum_user_guide_include.html). The wrapper can also send 16-bit gradients
# (`compression=hvd.Compression.fp16`; see [07c](07c_less_communication.ipynb)) and accumulate them over several backward passes
# (`backward_passes_per_step=4`; see [05](05_ddp.ipynb)).
#
# For TensorFlow and Keras, the calls have other names: see [04_horovod_tensorflow](04_horovod_tensorflow.ipynb). Horovod also
# runs inside Spark and Ray. Underneath, it uses MPI, gloo, NCCL, or Intel's oneCCL.
#
# ## Deeper: continue from a checkpoint
#
# Suppose rank 0 loads a model and an optimizer from a checkpoint, and then calls `make_distributed`. The weights reach all
# ranks, but the momentum is gone: the wrapper begins without any state, even if the optimizer inside has some, and nothing
# warns you. So load the optimizer's state into the wrapper, and broadcast it from rank 0:
#
# ```python
# state = optimizer.state_dict()
# optimizer = make_distributed(model, optimizer, hvd)
# optimizer.load_state_dict(state)
# hvd.broadcast_optimizer_state(optimizer, root_rank=0)
# ```
#
# ## Remember
#
# - Choose the GPU by local rank and the data by rank.
# - Broadcast rank 0's weights, and wrap the optimizer. Wrapping loses the optimizer's state.
# - A background thread finds out, in cycles, which gradients are ready on all ranks, and fuses small ones into one message.
# - Negotiation and allreduce both include the time spent waiting for the slowest rank. Without the response cache, the timeline
#   tells you which rank that is, and a few lines of Python compute how late it is in each step.
#
# **Sources.** A. Sergeev and M. Del Balso, *Horovod: fast and easy distributed deep learning in TensorFlow* (arXiv:1802.05799),
# for tensor fusion and the timeline; the ring came from A. Gibiansky's post for Baidu, *Bringing HPC Techniques to Deep
# Learning* (2017). Horovod's documentation and the source of version 0.28.1, for the cycles, the response cache, the launcher,
# and what the wrapper does with the optimizer's state. The MPI trace of 32 ranks is in argonne-lcf/sdl_ai_workshop.

# %%
ranks.stop()
