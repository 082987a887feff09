# %% [markdown]
# # Synchronous SGD
#
# **You will** see why averaging the ranks' gradients gives exactly the gradient of the whole batch, write that averaging
# yourself, give all ranks the same start, find out where the time of a step goes, and train MNIST with what you wrote.
#
# **Time** about 40 minutes. **Needs** two cores; no GPU, no network. If `%%ranks` is new to you, begin with
# [00_start_here](00_start_here.ipynb); `Allreduce` and `Bcast` are explained in [01_mpi_basics](01_mpi_basics.ipynb).

# %%
import numpy as np
import torch

from workshop_lib import ranks
from workshop_lib.exercises import sync_sgd as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.figures import steps as step_figures
from workshop_lib.notebook.prediction import predict
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
team = ranks.start(sizes.ranks)
team

# %% [markdown]
# ## One batch, in parts
#
# *Stochastic gradient descent*, SGD, takes a *batch* of samples, computes the gradient of their mean loss, and takes a
# step against it: it subtracts from the weights the gradient times a number, the *learning rate*. Suppose that each of $N$
# ranks holds $B$ samples, all of them different. The mean over all $N B$ samples is the mean over ranks of the means over
# their $B$ samples. The gradient of a mean is the mean of the gradients, so
#
# $$\underbrace{\nabla \frac{1}{NB} \sum_{i=1}^{NB} \ell_i}_{\text{gradient of the global batch}} \;=\;
# \underbrace{\frac{1}{N} \sum_{r=0}^{N-1}}_{\text{mean over ranks}} \;
# \underbrace{\nabla \frac{1}{B} \sum_{i \,\in\, \text{rank } r} \ell_i}_{\text{what rank } r \text{ computes}}$$
#
# where $\ell_i$ is the loss of sample $i$, and depends on no other sample (with batch normalisation it would). Every rank
# computes the gradient of its own part, its *shard*, and the mean of these is the gradient of the *global batch*. Check it:
# each rank builds the same network from the same seed and takes its own shard of the same 128 images. Rank 0 also computes
# the gradient of all of them.

# %%
# %%ranks
import numpy as np
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist, shard
from workshop_lib.models import torch_cnn

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
train = mnist.load("train")


def batch(indices):
    """These training images, ready for the network, and their labels."""
    images = torch_cnn.normalise(torch.tensor(train.images[indices]))
    return images, torch.tensor(train.labels[indices]).long()


def gradient(model, images, labels):
    """The gradient of the mean loss, all parameters in one flat array."""
    model.zero_grad()
    cross_entropy(model(images), labels).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()


model = torch_cnn.build(seed=1)
start, stop = shard.shard_bounds(128, comm.rank, comm.size)
mine = gradient(model, *batch(np.arange(start, stop)))

mean = np.empty_like(mine)
comm.Allreduce(mine, mean)  # the sum over ranks, on every rank
mean /= comm.size

print(f"samples {start} to {stop - 1}: the norm of my gradient is {np.linalg.norm(mine):.4f}")
if comm.rank == 0:
    whole = gradient(model, *batch(np.arange(128)))
    print(f"norm of the mean over ranks:              {np.linalg.norm(mean):.4f}")
    print(f"norm of the gradient of the global batch: {np.linalg.norm(whole):.4f}")
    print(f"largest difference, relatively:           {np.abs(mean - whole).max() / np.abs(whole).max():.1e}")

# %% [markdown]
# The shards' gradients differ. Their mean is the gradient of the global batch but for rounding: float32 has about seven
# digits, and the sum was taken in another order.
#
# *Try it:* let all ranks hold the same samples, with `start, stop = 0, 64` instead of `shard_bounds`. The mean is still a
# mean, but of which batch?
#
# ## Exercise 1: the averaging step
#
# After `backward()`, every rank calls `average_gradients` with its own model. When the call ends, the gradient of each
# parameter, `p.grad`, must be the mean over all ranks.
#
# `mine` is a copy of one parameter's gradient, as an array that is stored row by row, as mpi4py needs it.
# `comm.Allreduce(mine, total)` fills `total` with the sum over ranks, and `p.grad.copy_(torch.from_numpy(array))` puts an
# array into the gradient.


# %%
def average_gradients(model, comm):
    for p in model.parameters():
        mine = p.grad.numpy().copy()
        total = np.empty_like(mine)
        # <solution>
        comm.Allreduce(mine, total)
        p.grad.copy_(torch.from_numpy(total / comm.size))
        # <stub>
        # # fill `total`, make a mean of it, and put that into p.grad
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>


# %%
check.average_gradients(average_gradients)

# %% [markdown]
# Now train a few steps with it. Each rank takes its shard of every global batch, so the ranks compute different
# gradients, and nothing but your function keeps their weights equal. (While it is not written, they train without it.)
#
# A *digest* is a checksum of all bytes: if one bit of the weights differs, the digest is, as good as certainly, another one.

# %%
team.push(average_gradients=average_gradients, steps=sizes.steps)

# %%
# %%ranks
import hashlib


def train_steps(model, steps, average=average_gradients):
    """Train for some steps, in each with 64 new samples on every rank; returns the loss of the last step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for indices, _ in shard.epoch_batches(64 * comm.size * steps, 64, comm.rank, comm.size, seed=1, epoch=1):
        images, labels = batch(indices)
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        try:
            average(model, comm)
        except NotImplementedError:
            pass
        optimizer.step()
    return loss.item()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def digest(model):
    return hashlib.sha256(weights(model).tobytes()).hexdigest()[:12]


model = torch_cnn.build(seed=1)
loss = train_steps(model, steps)
print(f"loss of the last step {loss:.3f}, digest of the weights {digest(model)}")

# %% [markdown]
# The losses differ, since each rank reports that of its own shard. With your function the digests are the same: ranks that
# start alike and take the same step stay alike, bit for bit. Now once more, with nothing averaged.

# %%
# %%ranks
model = torch_cnn.build(seed=1)
loss = train_steps(model, steps, average=lambda model, comm: None)
print(f"loss of the last step {loss:.3f}, digest of the weights {digest(model)}")

# %% [markdown]
# The losses look like any others: each rank trains a network of its own on its own samples, and nothing in its loss tells.
# Only the digests do. The same happens by accident, when a script or a framework leaves the averaging out without a word. So
# compare the weights.
#
# *Try it:* leave the division out of your function and run the cells from there on again. What does that do to the step?
#
# ## The same start
#
# Averaged gradients keep equal weights equal. Do they make different weights equal? Let each rank draw its first weights
# from a seed of its own, and average as before.

# %%
guess = predict(
    "How far apart are the ranks' weights after the training? (at its start: 100 %)", low=0, high=200, unit="%"
)
guess


# %%
# %%ranks
def apart(model):
    """How far this rank's weights are from those of rank 0: the norm of the difference."""
    return float(np.linalg.norm(weights(model) - comm.bcast(weights(model), root=0)))


model = torch_cnn.build(seed=comm.rank)
before = apart(model)
loss = train_steps(model, steps)
after = apart(model)
print(f"loss of the last step {loss:.3f}, {before:.4f} away from rank 0 at the start, {after:.4f} in the end")

# %%
before, after = np.array(team.pull("before")[1:]), np.array(team.pull("after")[1:])
shares = 100 * after / before
guess.compare(np.median(shares), spread=(shares.min(), shares.max()))

# %% [markdown]
# With averaged gradients every rank takes the *same* step, so what lay between the ranks at the start stays between them to
# the end, but for rounding. (Without exercise 1, the ranks drift.) The losses may fall all the same, but the step is a
# compromise: the mean of gradients that were taken at different weights is the gradient of none of these networks.
#
# So a training begins with a *broadcast*: one rank, the *root*, sends its weights to all.
#
# ## Exercise 2: broadcast the weights
#
# Every rank calls `broadcast_weights` with its own model. Afterwards all must hold the weights of rank 0, to the last bit.
# `comm.Bcast(array, root=0)` overwrites `array`, on every rank, with that of rank 0.


# %%
def broadcast_weights(model, comm):
    with torch.no_grad():  # what follows is not part of what is differentiated
        for p in model.parameters():
            array = p.numpy().copy()
            # <solution>
            comm.Bcast(array, root=0)
            p.copy_(torch.from_numpy(array))
            # <stub>
            # # send `array`, then put it into the parameter: `p.copy_(…)`
            # raise NotImplementedError("your code here")
            # </stub>
            # </solution>


# %%
check.broadcast_weights(broadcast_weights)

# %%
team.push(broadcast_weights=broadcast_weights)

# %%
# %%ranks
model = torch_cnn.build(seed=comm.rank)
try:
    broadcast_weights(model, comm)
except NotImplementedError:
    print("broadcast_weights is not written yet")
loss = train_steps(model, steps)
print(f"loss of the last step {loss:.3f}, digest of the weights {digest(model)}")

# %% [markdown]
# That is all of *synchronous SGD*: the same start, different shards, one averaging in each step. It is called
# synchronous because no rank updates its weights before all have computed their gradients at the same weights.
#
# ## Where the time goes
#
# A rank that comes to the `Allreduce` early has to wait for the others. To see the waiting apart from the messages, the
# cell below puts a `Barrier` in front, which ends when the last rank has come. It leaves out the update of the weights,
# which is the same on every rank and needs no message. `rows` says how many samples each rank has in its batch.

# %%
# %%ranks
import time


def timed_steps(rows, steps):
    """Milliseconds that this rank spends computing, waiting and in Allreduce, for each step: [steps, 3]."""
    model, spent = torch_cnn.build(seed=1), []
    random = np.random.default_rng(comm.rank)
    mean = np.empty_like(weights(model))
    for _ in range(steps):
        began = time.perf_counter()
        mine = gradient(model, *batch(random.integers(len(train.images), size=rows[comm.rank])))
        computed = time.perf_counter()
        comm.Barrier()
        all_there = time.perf_counter()
        comm.Allreduce(mine, mean)
        mean /= comm.size
        spent.append(np.diff([began, computed, all_there, time.perf_counter()]))
    return 1000 * np.array(spent[1:])  # without the first, which warms up


rows = [64] * comm.size
even_ms = timed_steps(rows, steps)


# %%
def of_ranks(spent_ms):
    """What each rank spends a step on: the mean over the middle half of the steps, by their length."""
    spent_ms = np.array(spent_ms)  # [rank, step, kind]
    by_length = np.argsort(spent_ms[0].sum(axis=1))
    quarter = len(by_length) // 4
    means = spent_ms[:, by_length[quarter : len(by_length) - quarter]].mean(axis=1)
    return [dict(zip(("computing", "waiting", "Allreduce"), row, strict=True)) for row in means]


even = of_ranks(team.pull("even_ms"))
step_figures.step_times({"64 samples on every rank": even})

# %% [markdown]
# Each bar is the mean over half of the steps, without the shortest and the longest quarter. *Computing* is what one rank alone
# would have to do as well; the rest is the price of being many. Even with equal samples no two ranks are equally fast in
# every step, so somebody always waits a little. `Allreduce`, the messages and the sum, is short for a network as small as this.
#
# Now an imbalance: the last rank gets three times the samples.

# %%
guess = predict("What share of a step will rank 0 spend waiting?", low=0, high=100, unit="%")
guess

# %%
# %%ranks
rows = [64] * (comm.size - 1) + [3 * 64]
uneven_ms = timed_steps(rows, steps)

# %%
uneven_ms = team.pull("uneven_ms")
step_figures.step_times({"64 samples on every rank": even, "192 samples on the last rank": of_ranks(uneven_ms)})

# %%
shares = 100 * uneven_ms[0][:, 1] / uneven_ms[0].sum(axis=1)
guess.compare(np.median(shares), spread=tuple(np.percentile(shares, [10, 90])))

# %% [markdown]
# If computing took time in strict proportion to the samples, rank 0 would wait for nearly two thirds of a step. The slowest
# rank sets the pace for all, and the others spend the difference waiting. In practice the reason may be another job on the
# same cores, a slow disk, or a hot GPU. A time in `Allreduce` says little by itself: without the `Barrier`, the waiting would
# be inside it, and it would look like a slow network.
#
# *Try it:* other `rows`; or equal rows, and `time.sleep(0.01)` on one rank before it computes.
#
# ## Unequal shards
#
# An imbalance in samples does a second thing, which is worse because it is silent. With 64 samples on one rank and 192 on
# another, the mean over *ranks* is not the mean over *samples*: a sample of the small shard weighs three times as much.

# %%
# %%ranks
model = torch_cnn.build(seed=1)
first = sum(rows[: comm.rank])
own = gradient(model, *batch(np.arange(first, first + rows[comm.rank])))
whole = gradient(model, *batch(np.arange(sum(rows))))


def off(mean):
    """How far `mean` is from the gradient of the global batch, relatively."""
    return np.linalg.norm(mean - whole) / np.linalg.norm(whole)


if comm.size > 1:
    plain = comm.allreduce(own) / comm.size
    if comm.rank == 0:
        print(f"the plain mean over ranks is off by {off(plain):.1%}")

# %% [markdown]
# This happens in practice in the last step of a pass over the data, when the samples that are left cannot be shared out
# evenly.
#
# ## Exercise 3: the mean over samples (optional)
#
# `weighted_mean` is called on every rank with the gradient of the *mean* loss of its own samples, as an array, and with the
# number of these samples. Return, on every rank, the gradient of the mean loss of all samples together, as a new array. A rank
# may have no samples; its gradient is then all zeros. `comm.allreduce(x)`, in lower case, returns the sum over ranks of a
# number or an array.


# %%
def weighted_mean(gradient, n_samples, comm):
    # <solution>
    total = comm.allreduce(gradient * n_samples)
    return total / comm.allreduce(n_samples)
    # <stub>
    # # a mean is a sum divided by a count; how do you get back to the sum?
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.weighted_mean(weighted_mean)

# %%
team.push(weighted_mean=weighted_mean)

# %%
# %%ranks
try:
    weighted = weighted_mean(own, rows[comm.rank], comm)
    if comm.rank == 0:
        print(f"the weighted mean is off by {off(weighted):.1e}")
except NotImplementedError:
    print("weighted_mean is not written yet")

# %% [markdown]
# There is a way without the second allreduce: the size of the global batch is known beforehand, so let each rank divide the
# *sum* of its losses by it. Then the gradients only have to be added up. The library's training does it so.
#
# ## When a rank fails
#
# In synchronous SGD every rank waits for every other, in every step. When one fails, plain MPI lets the others wait for ever.
# Here the failure is reported within seconds, with the line on which each other rank waits. (`--catch` only keeps "Run all"
# going.)

# %%
# %%ranks --catch
if comm.rank == comm.size - 1:
    raise ValueError("this shard is broken")
train_steps(torch_cnn.build(seed=1), steps)
comm.Barrier()

# %% [markdown]
# Fresh ranks take a few seconds. Their memory is empty: cells that define something would have to run again.

# %%
team.restart()

# %% [markdown]
# ## A whole training
#
# In the library, what averages the gradients is called a *backend*. The one named `mpi` does what you just did, but with one
# `Allreduce` of all parameters' gradients, where your function makes one for each parameter and pays the latency as often.
# The training runs for whole *epochs*, each of them one pass over the training images. Its steps have momentum, and their
# learning rate first rises, then falls. After each epoch all ranks together test the network on images that are not used in
# training.
#
# Watch it run; the button stops it cleanly. The strip under the curves shows the last steps of each rank: *computing*;
# *waiting* for the slowest rank to arrive at the `Allreduce`; and *communicating*, from then until the sum is there.

# %%
guess = predict(
    "What share of the time will the ranks spend in Allreduce, waiting included?", low=0, high=100, unit="%"
)
guess

# %%
by_hand = team.train(
    TrainOptions(backend="mpi", epochs=sizes.epochs, train_samples=sizes.train_samples), timeout=sizes.timeout_s
)

# %%
shares = [100 * epoch["communication_s"] / epoch["seconds"] for epoch in by_hand["epochs"]]
guess.compare(np.median(shares), spread=(min(shares), max(shares))) if shares else print("stopped before the end")

# %% [markdown]
# `train` returned a *run record*: what ran, where, and what came out, with a digest of the final weights of every rank.

# %%
print("test accuracy:        ", [f"{epoch['test_accuracy']:.2%}" for epoch in by_hand["epochs"]])
print("weights of each rank: ", [checksum[:12] for checksum in by_hand["weights_sha256"]])

# %% [markdown]
# ## A larger batch needs fewer messages
#
# The messages of a step are as large as the network, whatever the batch. A larger batch on each rank means fewer steps
# for the same samples, and so fewer messages. We compare with `ddp`, PyTorch's `DistributedDataParallel`. It averages the
# same gradients, on a CPU through a library called *gloo*. In a large network it sends some of them while it still computes the
# rest; this one is so small that all go in one message ([05_ddp](05_ddp.ipynb) shows both).

# %%
records = []
for batch_size in (64, 256):
    for backend in ("mpi", "ddp"):
        options = TrainOptions(backend=backend, epochs=2, batch_size=batch_size, train_samples=6_000)
        record = team.train(options, timeout=sizes.timeout_s, show=False)
        records.append(record)
        last = record["epochs"][-1]
        print(
            f"batch {batch_size:>3} a rank, {backend:>4}: {last['samples_per_s']:>7,.0f} samples/s, "
            f"test accuracy {last['test_accuracy']:.2%}"
        )

# %% [markdown]
# Look at both numbers, and mind that each comes from one run: small differences in speed may be chance. Larger batches are
# not free: they make fewer steps at the same learning rate, and here the network learns less in the same number of epochs.
# What to do about it is a lesson of its own.
#
# *Try it:* other batch sizes; or `lr_scaling="linear"` in the options, which multiplies the learning rate by the number of
# ranks.
#
# ## Remember
#
# - The mean of the ranks' gradients is the gradient of the global batch. With unequal shards, weigh by samples.
# - Synchronous SGD is: the same start, different shards, one averaging in each step. Then the ranks stay identical.
# - Whether they are identical can be checked, and should be: training without averaging looks almost normal.
# - The slowest rank sets the pace; the others wait, and the waiting hides in `Allreduce`.
# - A step costs the same messages whatever its batch, so larger batches communicate less for each sample.
#
# **Sources.** J. Chen et al., *Revisiting Distributed Synchronous SGD* (arXiv:1604.00981), for synchronous training and its
# slowest workers. P. Goyal et al., *Accurate, Large Minibatch SGD* (arXiv:1706.02677), sections 2 and 3, for what to average
# over and the pitfalls. S. Li et al., *PyTorch Distributed* (arXiv:2006.15704), for DDP. Message Passing Interface Forum,
# *MPI: A Message-Passing Interface Standard* (mpi-forum.org), chapter on collective communication.

# %%
ranks.stop()
