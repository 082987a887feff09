# %% [markdown]
# # Synchronous SGD on MPI ranks
#
# **You will** start MPI ranks from this notebook, see why averaging the ranks' gradients gives exactly the
# gradient of the whole batch, write that averaging yourself, and train MNIST with it: by hand, and with
# PyTorch's DDP.
#
# **Time** about 40 minutes. **Needs** two cores; no GPU, no network.
#
# A *rank* is one process of a parallel program, numbered from 0. All ranks run the same code on different
# data. *MPI*, the Message Passing Interface, is the library through which they talk.

# %%
import numpy as np
import torch
from mpi4py import MPI

from workshop_lib import ranks
from workshop_lib.notebook import profile
from workshop_lib.notebook.exercises import sync_sgd as check
from workshop_lib.notebook.prediction import predict
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
team = ranks.start(sizes.ranks)
team

# %% [markdown]
# A cell that begins with `%%ranks` runs on every rank at once, each with its own memory. What a rank prints
# appears with its number in front.

# %%
# %%ranks
from mpi4py import MPI

comm = MPI.COMM_WORLD
print(f"I am rank {comm.rank} of {comm.size}")

# %% [markdown]
# ## One batch, two halves
#
# Stochastic gradient descent takes a *batch* of samples, computes the gradient of their mean loss, and takes a
# step against it. Suppose each of $N$ ranks holds $B$ different samples. The mean over all $N \cdot B$ samples
# is the mean over ranks of the means over their $B$ samples:
#
# $$\nabla \frac{1}{NB} \sum_{i=1}^{NB} \ell_i = \frac{1}{N} \sum_{r=1}^{N} \Big( \nabla \frac{1}{B}
# \sum_{i \in \text{rank } r} \ell_i \Big)$$
#
# So every rank can compute the gradient of its own *shard* of the batch, and the average of these gradients is
# the gradient of the *global batch*. Check it. Each rank builds the same network from the same seed and takes
# its own part of the same 128 images; rank 0 also computes the gradient of all of them.

# %%
# %%ranks
import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist, shard
from workshop_lib.models import torch_cnn

torch.set_num_threads(1)
train = mnist.load("train")
images = torch_cnn.normalise(torch.tensor(train.images[:128]))
labels = torch.tensor(train.labels[:128]).long()


def gradient(model, images, labels):
    """The gradient of the mean loss, all parameters in one flat vector."""
    model.zero_grad()
    cross_entropy(model(images), labels).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()


model = torch_cnn.build(seed=1)
start, stop = shard.shard_bounds(128, comm.rank, comm.size)
mine = gradient(model, images[start:stop], labels[start:stop])

average = np.empty_like(mine)
comm.Allreduce(mine, average, op=MPI.SUM)
average /= comm.size

print(f"samples {start} to {stop - 1}: my gradient's norm is {np.linalg.norm(mine):.4f}")
if comm.rank == 0:
    whole = gradient(model, images, labels)
    print(f"norm of the average:            {np.linalg.norm(average):.4f}")
    print(f"norm of the global gradient:    {np.linalg.norm(whole):.4f}")
    print(f"largest difference, relatively: {np.abs(average - whole).max() / np.abs(whole).max():.1e}")

# %% [markdown]
# The shards' gradients differ; their average is the global gradient, but for rounding. `Allreduce` did the
# work: every rank gives an array, and every rank gets the sum of all of them. It is a *collective*: it ends
# only when every rank has called it.
#
# That equation needs equal shards. When they differ in size, each rank's gradient counts by its number of
# samples, or the samples of small shards weigh too much.

# %% [markdown]
# ## Exercise 1: the averaging step
#
# Every rank calls `average_gradients` after `backward()`, with its own model. Afterwards each parameter's gradient must
# be the mean over all ranks. `comm.Allreduce(MPI.IN_PLACE, array)` replaces an array by its sum over ranks.


# %%
def average_gradients(model, comm):
    for p in model.parameters():
        gradient = np.ascontiguousarray(p.grad)  # in the order in memory that MPI needs
        # <solution>
        comm.Allreduce(MPI.IN_PLACE, gradient)
        gradient /= comm.size
        # <stub>
        # raise NotImplementedError("your code here")  # make `gradient` the mean over ranks
        # </stub>
        # </solution>
        p.grad.copy_(torch.from_numpy(gradient))


# %%
check.average_gradients(average_gradients)

# %% [markdown]
# Train a few steps with it. Each rank takes its shard of every global batch, so the ranks compute different
# gradients; what keeps their weights equal is your function alone. (Until it is written, the ranks train without.)

# %%
team.push(average_gradients=average_gradients)


# %%
# %%ranks
def train_steps(model, samples=2048):
    """Train on this many samples of all ranks, in batches of 64 a rank; returns the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for indices, _ in shard.epoch_batches(samples, 64, comm.rank, comm.size, seed=1, epoch=1):
        images = torch_cnn.normalise(torch.tensor(train.images[indices]))
        labels = torch.tensor(train.labels[indices]).long()
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        try:
            average_gradients(model, comm)
        except NotImplementedError:
            pass
        optimizer.step()
    return loss.item()


def compare(model):
    """Say how far the ranks' weights are apart."""
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    all_weights = comm.gather(weights)
    if comm.rank == 0:
        apart = max(np.abs(other - weights).max() for other in all_weights)
        same = "to the last bit the same" if apart == 0 else f"up to {apart:.3f} apart: different networks"
        print(f"The ranks' weights are {same}.")


model = torch_cnn.build(seed=1)
print(f"loss at the end: {train_steps(model):.3f}")
compare(model)

# %% [markdown]
# Ranks that start alike and apply the same averaged gradient stay alike, bit for bit. A framework that fails to
# average still trains and still reports a falling loss; comparing weights is how one notices.
#
# *Try it:* put `return` as the first line of `average_gradients`, run the cells again, and look at the losses.
#
# ## The same start
#
# Averaged gradients keep equal weights equal. They do not make different weights equal: here each rank draws its
# first weights from a seed of its own.

# %%
# %%ranks
model = torch_cnn.build(seed=comm.rank)
print(f"loss at the end: {train_steps(model):.3f}")
compare(model)

# %% [markdown]
# Each rank steps by the mean of gradients that were computed at different weights, which is the gradient of nothing.
# So a training begins with a *broadcast*: one rank, the *root*, sends its weights to all.
#
# ## Exercise 2: broadcast the weights
#
# Every rank calls `broadcast_weights` with its own model. Afterwards all must hold the weights of rank 0, to the last bit.
# `comm.Bcast(array, root=0)` overwrites `array` on every rank by that of rank 0.


# %%
def broadcast_weights(model, comm):
    with torch.no_grad():  # what follows is no part of a computation to be differentiated
        for p in model.parameters():
            weights = np.ascontiguousarray(p.detach()).copy()
            # <solution>
            comm.Bcast(weights, root=0)
            p.copy_(torch.from_numpy(weights))
            # <stub>
            # raise NotImplementedError("your code here")  # then put `weights` into the parameter, with p.copy_
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
    print("not solved yet")
print(f"loss at the end: {train_steps(model):.3f}")
compare(model)

# %% [markdown]
# ## When a rank fails
#
# Rank 1 raises an error below, while the others wait in a collective for it. Plain MPI would wait for ever.
# Here it is reported within seconds, together with the line on which each other rank waits. (`--catch` only
# keeps "Run all" going.)

# %%
# %%ranks --catch
if comm.rank == 1:
    raise ValueError("this shard is broken")
comm.Barrier()

# %% [markdown]
# Fresh ranks take a few seconds. Their memory is empty: cells that define something have to run again.

# %%
team.restart()

# %% [markdown]
# ## A whole training
#
# The library's `mpi` backend does what you just did, with one `Allreduce` for all parameters together, for
# whole epochs, and evaluates the test set over all ranks. Watch it; the button stops it cleanly. The strip under the
# curves shows the last steps of each rank: *computing*; *waiting* for the slowest rank to arrive at the `Allreduce`; and
# *communicating*, from then until the sum is there.
#
# Each step is a few milliseconds of computing and one message with all gradients.

# %%
guess = predict("What share of the time will the ranks spend in Allreduce?", low=0, high=100, unit="%")
guess

# %%
by_hand = team.train(
    TrainOptions(backend="mpi", epochs=sizes.epochs, train_samples=sizes.train_samples),
    timeout=sizes.timeout_s,
)

# %% [markdown]
# The returned *run record* says what ran, where, and what came out, and holds a checksum of the final weights of
# every rank.

# %%
print("accuracy on the test set:", [f"{epoch['test_accuracy']:.2%}" for epoch in by_hand["epochs"]])
print("weights of each rank:    ", [checksum[:12] for checksum in by_hand["weights_sha256"]])

# %% [markdown]
# ## The same with DDP
#
# PyTorch's `DistributedDataParallel` does the averaging during `backward()`: it packs gradients into *buckets*
# and sends each off as soon as it is complete, while the rest is still being computed. On a CPU it talks through
# the *gloo* library.

# %%
with_ddp = team.train(
    TrainOptions(backend="ddp", epochs=sizes.epochs, train_samples=sizes.train_samples),
    timeout=sizes.timeout_s,
)

# %%
for record in (by_hand, with_ddp):
    last = record["epochs"][-1]
    print(
        f"{record['what']['backend']:>4}: test accuracy {last['test_accuracy']:.2%}, "
        f"{last['samples_per_s']:>7,.0f} samples/s in the last epoch"
    )

# %%
shares = [100 * epoch["communication_s"] / epoch["seconds"] for epoch in by_hand["epochs"]]
guess.compare(float(np.median(shares)), spread=(min(shares), max(shares)))

# %% [markdown]
# That share includes waiting for the slower rank; with perfectly even ranks less would be left.
#
# Both average the same gradients in float32, so both learn alike; their speed differs by how fast the messages
# are. For so small a network DDP's machinery and gloo's sockets cost more than the computing they could hide
# behind. A larger batch means fewer messages for the same number of samples. Try it:

# %%
for batch_size in (64, 256):
    for backend in ("mpi", "ddp"):
        options = TrainOptions(backend=backend, epochs=2, batch_size=batch_size, train_samples=6_000)
        record = team.train(options, timeout=sizes.timeout_s, show=False)
        speed = record["epochs"][-1]["samples_per_s"]
        print(f"batch {batch_size:>3} a rank, {backend:>4}: {speed:>7,.0f} samples/s")

# %% [markdown]
# Larger batches are not free: the same number of epochs makes fewer steps, and each step must then count for
# more. That is a lesson of its own.
#
# ## Remember
#
# - The mean of the ranks' gradients is the gradient of the global batch; with unequal shards, weighted by size.
# - Synchronous SGD is: same start, different shards, one averaging a step. The ranks then stay identical.
# - Identical weights can be checked, and should be: training without averaging looks almost normal.
# - Communication costs time for every step, whatever the batch.
#
# **Sources.** P. Goyal et al., *Accurate, Large Minibatch SGD* (arXiv:1706.02677), section 3, for synchronous SGD
# and the pitfalls of averaging; S. Li et al., *PyTorch Distributed* (arXiv:2006.15704) for DDP's buckets and
# overlap; the MPI standard, chapter on collective communication.

# %%
ranks.stop()
