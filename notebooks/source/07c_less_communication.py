# %% [markdown]
# # Less communication
#
# **You will** send gradients in a fiftieth of their bytes, and make ranks wait less for each other, and see what both cost.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Notebooks
# [02](02_synchronous_sgd.ipynb) and [05](05_ddp.ipynb) first.

# %%
import numpy as np
import pandas as pd

from workshop_lib import ranks
from workshop_lib.exercises import less_communication as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.figures import learning
from workshop_lib.notebook.prediction import predict
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
quick = sizes.name == "quick"
team = ranks.start(max(2, sizes.ranks))

# %% [markdown]
# ## Fewer bytes
#
# Large batches are one way to communicate less often. Another is to send less. A *communication hook* of DDP decides what
# travels (notebook [05](05_ddp.ipynb)):
#
# - **fp16, bf16**: half the bytes. fp16 loses what is small, bf16 has the range of fp32 and about three digits.
# - **PowerSGD** (Vogels et al. 2019): each matrix of gradients as two thin ones.
# - **top-k**: only the entries of largest magnitude, as values and places.
#
# Both of the last keep what they do not send, and add it to the next gradient. This *error feedback* loses nothing: what is small
# now is sent when it has become large.
#
# ## Exercise 1: top-k with error feedback
#
# `gradient` and `residual` are vectors of the same length. Choose the `k` entries of `gradient + residual` with the largest
# magnitude. Return three arrays: the chosen values, their places (indices), and the new residual: everything that is not sent.


# %%
def compress(gradient, residual, k):
    # <solution>
    total = gradient + residual
    places = np.argsort(np.abs(total))[-k:]
    kept = total.copy()
    kept[places] = 0
    return total[places], places, kept
    # <stub>
    # # np.argsort(a) gives the places of a's entries, from the smallest to the largest
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.compress(compress)

# %% [markdown]
# The library has the same as a hook ([compression.py](../workshop_lib/comm/compression.py)). Ranks choose different entries, so
# an allreduce cannot add them up: every rank gathers all ranks' pairs, and adds them itself.

# %%
guess = predict("Top 1 % takes what share of the bytes of fp32?", low=0, high=10, unit="%")
guess

# %%
team.push(steps=100 if quick else 300)

# %%
# %%ranks --timeout 300
import time

import numpy as np
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.comm import compression
from workshop_lib.data import mnist, shard
from workshop_lib.models import torch_cnn
from workshop_lib.training import rendezvous, world

rendezvous.join_process_group(world.detect(), torch.device("cpu"))
comm = MPI.COMM_WORLD
train, test = mnist.load("train"), mnist.load("test")


def train_with(register):
    """One run with DDP and a hook: bytes and messages of the last step, seconds a step, test accuracy."""
    model = DistributedDataParallel(torch_cnn.build(seed=1))
    register(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    taken = []
    batches = shard.epoch_batches(train.total, 64, comm.rank, comm.size, seed=1, epoch=1)
    for step, (rows, _) in enumerate(batches):
        images, labels = torch.from_numpy(train.images[rows]), torch.from_numpy(train.labels[rows]).long()
        begun = time.perf_counter()
        with compression.counted() as sent:
            optimizer.zero_grad()
            cross_entropy(model(torch_cnn.normalise(images)), labels).backward()
        optimizer.step()
        taken.append(time.perf_counter() - begun)
        if step + 1 == steps:
            break
    with torch.no_grad():
        right = sum(
            (
                model.module(torch_cnn.normalise(torch.tensor(test.images[part]))).argmax(1).numpy()
                == test.labels[part]
            ).sum()
            for part in (slice(first, first + 500) for first in range(0, 2000, 500))
        )
    return sent | {"ms a step": 1000 * np.median(taken), "test accuracy": right / 2000}


ways = {name: train_with(register) for name, register in compression.WAYS.items()}

# %%
table = pd.DataFrame(team.pull("ways")[0]).T
table["bytes, share"] = table["bytes"] / table.loc["fp32", "bytes"]
guess.compare(100 * table.loc["top 1 %", "bytes, share"])

# %%
table.style.format(
    {
        "bytes": "{:,.0f}",
        "messages": "{:.0f}",
        "ms a step": "{:.1f}",
        "test accuracy": "{:.1%}",
        "bytes, share": "{:.1%}",
    }
)

# %% [markdown]
# Bytes are what a rank gives to the collective. On one machine a message costs little and the 80 kB of this network cost next to
# nothing, so choosing and packing may well take longer than it saves; compression pays where the network is slow and the model
# large. (PowerSGD sends its first ten steps whole.) Compare the last two rows with the first: a fiftieth of the bytes trains as
# well, but not without the feedback, where small gradients are never heard.
#
# *Try it:* `lr=0.05, momentum=0.9`. Momentum repeats every gradient in the steps that follow, late ones too, so feedback helps
# less. Lin et al. (2018) repair it: what they keep back is what momentum has made of the gradients.
#
# Computing can be done in 16 bits too: with bf16 *autocast*, matrix products and convolutions take bf16 copies of the weights,
# which stay in fp32.

# %%
rows = []
for precision in ("fp32", "bf16"):
    options = TrainOptions(
        backend="ddp", precision=precision, epochs=2, train_samples=2000 if quick else 15_000
    )
    last = team.train(options, show=False)["epochs"][-1]
    rows.append(
        {"precision": precision, "samples/s": last["samples_per_s"], "test accuracy": last["test_accuracy"]}
    )
pd.DataFrame(rows).style.format({"samples/s": "{:,.0f}", "test accuracy": "{:.2%}"}).hide()

# %% [markdown]
# Whether that is faster depends on the processor: it has to have instructions for bf16.
#
# ## Waiting less
#
# In synchronous SGD all ranks wait for the slowest, a *straggler*, in every step. There are three ways to wait less. All of them
# make gradients *stale*: computed with weights that lack updates made meanwhile. The *staleness* of an update is how many.
#
# - **lag-sync** applies gradients one step late. They travel while the next ones are computed, and a rank that is late *once*
#   holds nobody up.
# - **local SGD** lets each rank step alone, and averages the weights every $k$ steps.
# - **asynchronous**: a *parameter server* has the weights, and applies each gradient as it comes. No worker waits for another.
#
# ([staleness.py](../workshop_lib/comm/staleness.py) has all four, each in a dozen lines.) Three ranks: rank 0 serves in the
# asynchronous run and otherwise does nothing, ranks 1 and 2 work. In every step one of these is made 10 ms late, in two
# ways: *fixed*, always the same rank, as on a slow node; and *roaming*, in turn, as with a disturbance that hits now one and
# now the other.

# %%
guess = predict(
    "One worker is always late. How much longer does synchronous SGD take than asynchronous?",
    low=0.5,
    high=4,
    unit="times",
)
guess

# %%
team = ranks.start(3)
team.push(steps=60 if quick else 300)

# %%
# %%ranks --timeout 300
import time

import numpy as np
from mpi4py import MPI

from workshop_lib.comm import staleness
from workshop_lib.data import mnist
from workshop_lib.models.flat import FlatNetwork

comm = MPI.COMM_WORLD
train, test = mnist.load("train"), mnist.load("test")
network = FlatNetwork(seed=1)
start = network.weights()
server = comm.rank == staleness.SERVER
workers = comm.Split(color=int(server), key=comm.rank)  # on rank 0: a communicator of itself alone
LR, BATCH, LATE_S = 0.1, 32, 0.01


def late_gradient(straggler):
    def gradient(weights, step):
        rows = np.random.default_rng([comm.rank, step]).integers(train.total, size=BATCH)
        found = network.gradient(weights, train.images[rows], train.labels[rows])
        slow = 2 if straggler == "fixed" else 1 + step % 2
        if comm.rank == slow:
            time.sleep(LATE_S)
        return found

    return gradient


def run(mode, straggler):
    gradient, p = late_gradient(straggler), comm.size - 1
    gradient(start, 0)  # warm up
    if mode == "asynchronous":
        done = staleness.asynchronous(comm, start, gradient, LR / p, steps * p)
    elif not server:
        how = {"period": 10} if mode == "local_sgd" else {}
        done = getattr(staleness, mode)(workers, start, gradient, LR, steps, **how)
    staleness.wait(comm.Ibarrier(), "the end of the run", 120, nap_s=0.005)  # a rank with nothing to do sleeps
    done = comm.bcast(
        None if server and mode != "asynchronous" else done, root=0 if mode == "asynchronous" else 1
    )
    network.set(done.weights)
    return {
        "mode": mode,
        "straggler": straggler,
        "ms a global step": 1000 * done.seconds / steps,
        "staleness": done.staleness,
        "by worker": [done.workers.count(worker) for worker in range(1, comm.size)],
        "test accuracy": network.accuracy(test.images[:2000], test.labels[:2000]),
    }


modes = ("synchronous", "lag_sync", "local_sgd", "asynchronous")
runs = [run(mode, straggler) for straggler in ("fixed", "roaming") for mode in modes]

# %%
runs = pd.DataFrame(team.pull("runs")[0])
runs["mode"] = runs["mode"].replace({"lag_sync": "lag-sync", "local_sgd": "local SGD"})
runs["mean staleness"] = [
    sum(s * n for s, n in found.items()) / sum(found.values()) for found in runs["staleness"]
]
fixed = runs[runs["straggler"] == "fixed"].set_index("mode")
guess.compare(fixed.loc["synchronous", "ms a global step"] / fixed.loc["asynchronous", "ms a global step"])

# %%
shown = ["straggler", "mode", "ms a global step", "mean staleness", "test accuracy"]
runs[shown].style.format(
    {"ms a global step": "{:.1f}", "mean staleness": "{:.2f}", "test accuracy": "{:.1%}"}
).hide()

# %%
print("gradients of rank 1 and rank 2, asynchronous, rank 2 late:", fixed.loc["asynchronous", "by worker"])
learning.staleness(dict(fixed["staleness"]), "MNIST, two workers, one of them always 10 ms late")

# %% [markdown]
# All runs use the same number of gradients. What to look for:
#
# - With a *fixed* straggler, lag-sync and local SGD gain next to nothing: whoever has to agree now and then is as slow as the
#   slowest. Only the asynchronous run lets the quick worker do more; the slow one's gradients come later, and its *data* count
#   for less.
# - With a *roaming* one, each of the three beats synchronous SGD: delays of different ranks overlap instead of adding up.
# - Staleness can cost accuracy while it still rises: compare lag-sync and local SGD with the synchronous run. (The asynchronous
#   run takes twice as many steps at half the rate, one for each gradient; its accuracy is not for comparing.) Two workers make an
#   asynchronous staleness of about one. A hundred make about a hundred, and the learning rate has to go down.
# - Run it again: the synchronous run, lag-sync and local SGD give the same accuracy to the last digit, the asynchronous one does not.
#
# The guidelines recommend synchronous SGD first, since it can be reproduced and converges easily; asynchronous SGD for algorithms
# that are well understood, to scale further; and lag-sync as something to consider. The measurement agrees, with one
# addition: know your straggler. What removes a *fixed* one is to repair or drop the node.
#
# *Try it:* `LATE_S = 0.0`. Which mode costs most when nobody is late?

# %%
ranks.stop()
