# %% [markdown]
# # Synchronous SGD on MPI ranks
#
# **You will** start MPI ranks from this notebook, see why averaging the ranks' gradients gives exactly the
# gradient of the whole batch, write that averaging yourself, and train MNIST with it: by hand, and with
# PyTorch's DDP.
#
# **Time** about 30 minutes. **Needs** two cores; no GPU, no network.
#
# A *rank* is one process of a parallel program, numbered from 0. All ranks run the same code on different
# data. *MPI*, the Message Passing Interface, is the library through which they talk.

# %%
from workshop_lib import ranks
from workshop_lib.notebook import profile
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
# ## Exercise: the averaging step
#
# Fill in `average_gradients`, which every rank calls after `backward()`. Afterwards each parameter's gradient
# must be the mean over all ranks. `comm.Allreduce(MPI.IN_PLACE, array)` replaces an array by its sum over ranks.

# %%
# %%ranks
def average_gradients(model):
    for p in model.parameters():
        gradient = np.ascontiguousarray(p.grad)
        # <solution>
        comm.Allreduce(MPI.IN_PLACE, gradient)
        gradient /= comm.size
        # <stub>
        # # your code here: make gradient the mean over ranks
        # </stub>
        # </solution>
        p.grad.copy_(torch.from_numpy(gradient))


# %% [markdown]
# Train a few steps with it. Each rank takes its shard of every global batch, so the ranks compute different
# gradients; what keeps their weights equal is your function alone.

# %%
# %%ranks
model = torch_cnn.build(seed=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for indices, _ in shard.epoch_batches(2048, 64, comm.rank, comm.size, seed=1, epoch=1):
    images = torch_cnn.normalise(torch.tensor(train.images[indices]))
    labels = torch.tensor(train.labels[indices]).long()
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()
    average_gradients(model)
    optimizer.step()

weights = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
all_weights = comm.gather(weights)
if comm.rank == 0:
    if all((other == weights).all() for other in all_weights):
        print("After the last step all ranks hold the same weights, to the last bit.")
    else:
        apart = max(np.abs(other - weights).max() for other in all_weights)
        print(f"The ranks' weights differ by up to {apart:.3f}: they train different networks.")
        print("Hint: are the gradients of all ranks summed, and the sum divided by their number?")

# %% [markdown]
# Ranks that start alike and apply the same averaged gradient stay alike, bit for bit. A framework that fails to
# average still trains and still reports a falling loss; comparing weights is how one notices.
#
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
# whole epochs, and evaluates the test set over all ranks. Watch it; the button stops it cleanly.

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
share = sum(e["communication_s"] for e in by_hand["epochs"]) / sum(e["seconds"] for e in by_hand["epochs"])
print(f"mpi spends {share:.0%} of its time in Allreduce, including waiting for the slower rank")

# %% [markdown]
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
