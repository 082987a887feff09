# %% [markdown]
# # Synchronous SGD
#
# Two ranks hold the same network, and each has half of the data. They train for an hour, and at the end their weights are
# identical, down to the last bit. And in every step, apart from rounding, they did what one process with all the data would
# have done. What did the ranks tell each other?
#
# **You will** write the three functions that make this work, train a network on MNIST to 99 % with them, and check them
# against the library bit by bit. Then you'll see where the time in a step goes, and how a mean can be silently wrong.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. If `%%ranks` is new to you,
# begin with [00_start_here](00_start_here.ipynb); [01_mpi_basics](01_mpi_basics.ipynb) explains `Allreduce` and `Bcast`.

# %%
import numpy as np
import torch
from torch.nn.functional import cross_entropy

from workshop_lib import ranks
from workshop_lib.lessons.synchronous_sgd import figures as step_figures
from workshop_lib.lessons.synchronous_sgd import judge as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.prediction import predict
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
team = ranks.start(sizes.ranks)
team

# %% [markdown]
# ## One batch, in parts
#
# *Stochastic gradient descent*, SGD, takes a *batch* of samples, computes the gradient of their mean loss, multiplies it by a
# *learning rate*, and subtracts the result from the weights. Suppose each of $N$ ranks holds $B$ samples. The mean over all
# $N B$ samples is the mean of the ranks' own means, and the gradient of a mean is the mean of the gradients:
#
# $$\underbrace{\nabla \frac{1}{NB} \sum_{i=1}^{NB} \ell_i}_{\text{gradient of the global batch}} \;=\;
# \underbrace{\frac{1}{N} \sum_{r=0}^{N-1}}_{\text{mean over ranks}} \;
# \underbrace{\nabla \frac{1}{B} \sum_{i \,\in\, \text{rank } r} \ell_i}_{\text{what rank } r \text{ computes}}$$
#
# Here $\ell_i$ is the loss of sample $i$. So each rank computes the gradient of its own part, its *shard*, and the mean of
# these is the gradient of the *global batch*. Is it really, in floating point? Try it with 128 images.

# %%
# %%ranks
import hashlib
from contextlib import suppress
from functools import partial

import numpy as np
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist, shard
from workshop_lib.models import torch_cnn
from workshop_lib.training import schedules

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
train, test = mnist.load("train"), mnist.load("test", None, comm.rank, comm.size)


def batch(indices):
    """These training images, ready for the network, and their labels."""
    images = torch_cnn.normalize(torch.tensor(train.images[indices]))
    return images, torch.tensor(train.labels[indices]).long()


# %%
# %%ranks
def gradient(model, images, labels):
    """The gradient of the mean loss, all parameters in one flat array."""
    model.zero_grad()
    cross_entropy(model(images), labels).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()


model = torch_cnn.build(seed=1)
start, stop = shard.shard_bounds(128, comm.rank, comm.size)
mine = gradient(model, *batch(np.arange(start, stop)))
mean = comm.allreduce(mine) / comm.size
whole = gradient(model, *batch(np.arange(128)))
print(f"samples {start} to {stop - 1}: the norm of my gradient is {np.linalg.norm(mine):.4f}")
print(f"mean over ranks {np.linalg.norm(mean):.4f}, global batch {np.linalg.norm(whole):.4f}")
print(f"largest relative difference between the two: {np.abs(mean - whole).max() / np.abs(whole).max():.1e}")

# %% [markdown]
# The shards' gradients differ, but their mean is the gradient of the global batch. What's left is rounding: float32 has about
# seven digits, and the two sums were taken in a different order.
#
# Some older slides say that the ranks "average loss and gradients each epoch". Taken literally, that lets the ranks go their
# own ways for a whole epoch, and that's a different algorithm. (The one that averages the *weights* now and then is called
# *local SGD*.) In this workshop, and in DDP and Horovod, the ranks average **gradients, in every step**. They average losses
# only to print them.
#
# *Try it:* let all ranks hold the same samples, with `start, stop = 0, 64`. It's still a mean, but of which batch?
#
# ## Exercise 1 (normal): average the gradients
#
# With this function, many ranks train as one. Every rank calls it with its own model, right after its own `backward()`.
# Afterwards each parameter's `p.grad` must be the mean over all ranks. mpi4py wants NumPy arrays, and you get one from a CPU
# tensor with `tensor.numpy()`.
#
# <details><summary>Hint 1: which call?</summary>
#
# Every rank needs the sum of what all ranks hold. Which collective of notebook 01 does that, and what's missing from
# a sum to make it a mean?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# Go through `model.parameters()`. `p.grad.numpy().copy()` is the gradient as an array, `np.empty_like(array)` makes room
# for the sum, and `p.grad.copy_(torch.from_numpy(array))` puts an array back.
#
# </details><details><summary>Solution</summary>
#
# {solution of average_gradients}
#
# </details>


# %%
def average_gradients(model, comm):
    """Replace every `p.grad` of the model by its mean over all ranks. Must be called on every rank."""
    # <solution>
    for p in model.parameters():
        mine = p.grad.numpy().copy()
        total = np.empty_like(mine)
        comm.Allreduce(mine, total)
        p.grad.copy_(torch.from_numpy(total / comm.size))
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.average_gradients(average_gradients)

# %% [markdown]
# *Break it:* forget the division. Which learning rate would then give you the same steps as before?
#
# ## Exercise 2 (warm-up): the training loop
#
# Now write the loop that uses it: one pass over the batches of this rank. It's the loop of any PyTorch script, with one extra
# line. `batches` yields `(images, labels)`; the loss is `cross_entropy(model(images), labels)`; `average(model, comm)` will be
# your function. `schedule.step()` sets the learning rate of the next step, so it comes last.
#
# <details><summary>Hint 1: the order</summary>
#
# `backward()` *adds* to the gradients that are already there. The optimizer reads `p.grad` when it steps. So what has to
# happen before `backward()`, and what has to happen between `backward()` and the step?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `optimizer.zero_grad()`, the loss and its `backward()`, `average(model, comm)`, `optimizer.step()`,
# `schedule.step()`.
#
# </details><details><summary>Solution</summary>
#
# {solution of train_epoch}
#
# </details>


# %%
def train_epoch(model, optimizer, schedule, batches, average, comm):
    """One step for each (images, labels) of `batches`, with gradients averaged over the ranks. Returns nothing."""
    # <solution>
    for images, labels in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        average(model, comm)
        optimizer.step()
        schedule.step()
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.train_epoch(train_epoch)

# %% [markdown]
# *Break it:* average after the step instead of before it. Would you notice from the loss?
#
# ## Equal, to the last bit
#
# Let the ranks train for a few steps. Each takes its own shard of every global batch, so nothing but your averaging keeps
# their weights equal. To compare weights we use a *digest*, a checksum of all their bytes. Flip a single bit and it almost
# certainly changes. (While an exercise is open, the ranks skip the training.)

# %%
team.push(average_gradients=average_gradients, train_epoch=train_epoch, steps=sizes.steps)


# %%
# %%ranks
def batches(samples, epoch):
    """This rank's part of every global batch, in an order that all ranks agree on."""
    for indices, _ in shard.epoch_batches(samples, 64, comm.rank, comm.size, seed=1, epoch=epoch):
        yield batch(indices)


def recipe(model, samples, epochs, peak_lr=0.1):
    """SGD with momentum, and a learning rate that rises for half an epoch and then falls."""
    per_epoch = shard.steps_per_epoch(samples, 64, comm.size)
    plan = {"total_steps": epochs * per_epoch, "warmup_steps": round(per_epoch / 2), "decay": "linear"}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True, fused=True)
    rate = partial(schedules.lr_at, peak_lr=peak_lr, **plan)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def digest(model):
    return hashlib.sha256(weights(model).tobytes()).hexdigest()


# %%
# %%ranks
def short_run(model, average):
    """A few steps with your loop, from wherever `model` is."""
    samples = 64 * comm.size * steps
    with suppress(NotImplementedError):  # while an exercise is open
        train_epoch(model, *recipe(model, samples, 1, peak_lr=0.03), batches(samples, 1), average, comm)
    images, labels = batch(np.arange(1000))
    print(f"loss {cross_entropy(model(images), labels):.3f}, digest of the weights {digest(model)[:12]}")


short_run(torch_cnn.build(seed=1), average_gradients)

# %% [markdown]
# Same start, same steps: same digest. Now once more, but nobody averages anything.

# %%
# %%ranks
short_run(torch_cnn.build(seed=1), average=lambda model, comm: None)

# %% [markdown]
# The losses still look fine. Each rank is training its own network on its own part of the data, and the loss gives no hint
# that anything is wrong. Only the digests give it away. This happens to real scripts, when a framework silently leaves the
# averaging out. So compare the weights at least once. The library does so at the end of every run.
#
# ## The same start
#
# Averaging keeps equal weights equal. Does it also make *different* weights equal? Let every rank draw its initial weights
# from its own seed.

# %%
guess = predict(
    "How far apart are the ranks' weights after training? (100 %: as far as at the start)", 0, 200, unit="%"
)
guess


# %%
# %%ranks
def apart(model):
    """How far this rank's weights are from those of rank 0."""
    return float(np.linalg.norm(weights(model) - comm.bcast(weights(model), root=0)))


model = torch_cnn.build(seed=comm.rank)
before = apart(model)
short_run(model, average_gradients)
after = apart(model)

# %%
shares = 100 * np.array(team.pull("after")[1:]) / np.array(team.pull("before")[1:])
guess.compare(np.median(shares), spread=(shares.min(), shares.max()))

# %% [markdown]
# With averaged gradients every rank takes the *same* step, so the distance between the ranks stays the same. The loss may even
# fall. But each step is the mean of gradients taken at different weights, and that isn't the gradient of any of these
# networks.
#
# ## Exercise 3 (warm-up): the same start
#
# So training begins with a *broadcast*: rank 0 sends its weights to everyone. Afterwards all ranks must hold exactly these
# weights, to the last bit. You only have to send the parameters, since this network has nothing else.
#
# <details><summary>Hint 1: which call?</summary>
#
# `comm.Bcast(array, root=0)` overwrites `array`, on every rank, with the array of rank 0.
#
# </details><details><summary>Hint 2: writing into a parameter</summary>
#
# PyTorch refuses to change a parameter while it records operations for `backward()`. Do it inside
# `with torch.no_grad():`, with `p.copy_(torch.from_numpy(array))`.
#
# </details><details><summary>Solution</summary>
#
# {solution of broadcast_weights}
#
# </details>


# %%
def broadcast_weights(model, comm):
    """Give every rank the parameters of rank 0's model. Must be called on every rank."""
    # <solution>
    with torch.no_grad():
        for p in model.parameters():
            array = p.numpy().copy()
            comm.Bcast(array, root=0)
            p.copy_(torch.from_numpy(array))
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.broadcast_weights(broadcast_weights)

# %% [markdown]
# *Break it:* "rank 0 already has its weights, so it can skip the call." Put `if comm.rank != 0:` in front of your `Bcast`
# and read what the check says.
#
# ## MNIST to 99 %, with what you wrote
#
# That's all there is to *synchronous SGD*: the same start, different shards, and averaged gradients in every step. It's
# called synchronous because no rank updates its weights before all of them have computed their gradients. Now train for real.
# `WatchedLoop` passes your loop its batches one by one. So it can draw how the loss falls, and end the loop when you press
# *Stop*. The strip under the curves shows how each rank spent its most recent steps.

# %%
team.push(broadcast_weights=broadcast_weights, epochs=sizes.epochs, samples=sizes.train_samples or 60_000)

# %%
guess = predict("What share of the time will the ranks spend in Allreduce, waiting included?", 0, 100, unit="%")
guess

# %%
# %%ranks --timeout 600
from workshop_lib.lessons.synchronous_sgd.own_loop import WatchedLoop

model = torch_cnn.build(seed=1 + comm.rank)  # every rank begins somewhere else
with suppress(NotImplementedError):
    broadcast_weights(model, comm)
    optimizer, schedule = recipe(model, samples, epochs)
    watched = WatchedLoop(model, optimizer, comm, epochs, shard.steps_per_epoch(samples, 64, comm.size))
    average = watched.average(average_gradients)
    for epoch in watched.epochs():
        train_epoch(model, optimizer, schedule, watched.batches(batches(samples, epoch)), average, comm)
        with torch.no_grad():
            answers = model(torch_cnn.normalize(torch.tensor(test.images))).argmax(dim=1).numpy()
        right = comm.allreduce(int((answers == test.labels).sum()))
        watched.tested(right / test.total)
mine = digest(model)

# %% [markdown]
# Now the library does the same. Whatever averages the gradients is called a *backend* there; `mpi` is what you've just
# written.

# %%
options = TrainOptions(backend="mpi", epochs=sizes.epochs, train_samples=sizes.train_samples)
record = team.train(options, timeout=5 * sizes.timeout_s)

# %%
shares = [100 * epoch["communication_s"] / epoch["seconds"] for epoch in record["epochs"]]
guess.compare(shares)  # the median and the spread of the epochs

# %%
print("test accuracy:", [f"{epoch['test_accuracy']:.2%}" for epoch in record["epochs"]])
print("the library's weights:", [digest[:12] for digest in record["weights_sha256"]])
print("your ranks' weights:  ", [digest[:12] for digest in team.pull("mine")])

# %% [markdown]
# With your three functions in place, all of these digests are equal: you've done, bit for bit, what the library does. (With
# more than two ranks the last bits may differ, because MPI may add up six small messages in a different order than one large
# one. With the function from the next exercise they're equal again.)
#
# ## Deeper: one message instead of six
#
# Your function sends one message per parameter, and each of them pays the latency. The library copies all gradients into one
# *flat buffer* and sends that. DDP and Horovod do the same, in pieces of tens of megabytes.
#
# ### Exercise 4 (normal): the flat buffer
#
# `average_in_one_message` does what `average_gradients` does. The check counts the messages: there may only be one.
#
# <details><summary>Hint 1: getting there</summary>
#
# `torch.cat([…])` joins flat tensors into a new one, and `tensor.flatten()` makes a tensor flat.
#
# </details><details><summary>Hint 2: and back</summary>
#
# `p.numel()` is the number of values in a parameter. `flat.split([…])` cuts a flat tensor into pieces of the lengths you list,
# and `piece.view(p.shape)` gives a piece its shape back.
#
# </details><details><summary>Solution</summary>
#
# {solution of average_in_one_message}
#
# </details>


# %%
def average_in_one_message(model, comm):
    """What `average_gradients` does, with a single collective call."""
    # <solution>
    parameters = list(model.parameters())
    flat = torch.cat([p.grad.flatten() for p in parameters])
    total = torch.empty_like(flat)
    comm.Allreduce(flat.numpy(), total.numpy())
    pieces = (total / comm.size).split([p.numel() for p in parameters])
    for p, piece in zip(parameters, pieces, strict=True):
        p.grad.copy_(piece.view(p.shape))
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.average_in_one_message(average_in_one_message)

# %% [markdown]
# *Beat it:* use this function in the training to 99 %. Does the digest stay the same, and is an epoch faster? Then send half
# the bytes, as `float16`, and see what that costs in accuracy.
#
# ## Deeper: where the time goes
#
# A rank that reaches the `Allreduce` early has to wait for the others. To separate waiting from sending, the next cell puts a
# `Barrier` in front of it. The `Barrier` returns once the last rank has arrived. `rows` says how many samples each rank has.

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
        spent.append(np.diff([began, computed, all_there, time.perf_counter()]))
    return 1000 * np.array(spent[1:])  # without the first, which warms up


rows = [64] * comm.size
even_ms = timed_steps(rows, steps)


# %%
def of_ranks(spent_ms):
    """What each rank spends a step on: the median over the steps."""
    kinds = ("computing", "waiting", "Allreduce")
    return [dict(zip(kinds, np.median(rank_ms, axis=0), strict=True)) for rank_ms in spent_ms]


even = of_ranks(team.pull("even_ms"))
step_figures.step_times({"64 samples on every rank": even})

# %% [markdown]
# *Computing* is what a single process would have to do as well; the rest is the price of working together. Even with the same
# number of samples, no two ranks are equally fast in every step, so somebody always waits a little.
#
# Now give the last rank three times as many samples.

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
# If computing time were strictly proportional to the number of samples, rank 0 would wait for nearly two thirds of a step. The
# slowest rank sets the pace. In practice a rank may be slow because of another job on its cores, a slow disk, or a hot GPU.
# And without the `Barrier` the waiting would hide inside `Allreduce`, where it looks like a slow network.
#
# *Try it:* make the rows equal, but let one rank `time.sleep(0.01)` before it computes.
#
# ## Deeper: unequal shards
#
# An imbalance has a second effect, and this one is silent. With 64 samples on one rank and 192 on another, the mean over
# *ranks* isn't the mean over *samples*: a sample in the small shard counts three times as much as one in the large shard.

# %%
# %%ranks
model = torch_cnn.build(seed=1)
first = sum(rows[: comm.rank])
own = gradient(model, *batch(np.arange(first, first + rows[comm.rank])))
whole = gradient(model, *batch(np.arange(sum(rows))))
plain = comm.allreduce(own) / comm.size
if comm.rank == 0:
    print(f"the plain mean over ranks is off by {np.linalg.norm(plain - whole) / np.linalg.norm(whole):.1%}")

# %% [markdown]
# This happens in practice in the last step of an epoch, when the samples that are left don't divide evenly.
#
# ### Exercise 5 (warm-up): the mean over samples
#
# With this function, uneven shards do no harm. Every rank calls `weighted_mean` with the gradient of the *mean* loss of its
# own samples, and with the number of these samples. Return the gradient of the mean loss over all samples. A rank may have no
# samples; its gradient is then all zeros.
#
# <details><summary>Hint 1</summary>
#
# A mean is a sum divided by a count. How do you get from a rank's mean back to its sum?
#
# </details><details><summary>Hint 2</summary>
#
# `comm.allreduce(x)`, in lower case, returns the sum over all ranks of a number or of an array. You need it twice.
#
# </details><details><summary>Solution</summary>
#
# {solution of weighted_mean}
#
# </details>


# %%
def weighted_mean(gradient, n_samples, comm):
    """A new array, on every rank: the mean of the ranks' gradients, each weighted by its number of samples."""
    # <solution>
    total = comm.allreduce(gradient * n_samples)
    return total / comm.allreduce(n_samples)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.weighted_mean(weighted_mean)

# %% [markdown]
# *Beat it:* do without the second allreduce. The size of the global batch is known before the step, so let each rank divide
# the *sum* of its losses by that size. Then the gradients only have to be added up. That's how the library does it.
#
# ## Deeper: what batch normalization changes
#
# The formula at the top needs a loss $\ell_i$ that depends on sample $i$ alone. *Batch normalization* breaks that: it
# subtracts the mean of the batch and divides by its standard deviation, so every sample depends on all the others in its
# batch. Each rank then normalizes with the statistics of its own samples, not those of the global batch:


# %%
# %%ranks
def normalized_gradient(images, labels):
    torch.manual_seed(1)
    layers = torch.nn.Flatten(), torch.nn.Linear(784, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 10)
    return gradient(torch.nn.Sequential(*layers), images, labels)


mean = comm.allreduce(normalized_gradient(*batch(np.arange(start, stop)))) / comm.size
whole = normalized_gradient(*batch(np.arange(128)))
if comm.rank == 0:
    print(f"the mean over ranks is off by {np.linalg.norm(mean - whole) / np.linalg.norm(whole):.1%}")

# %% [markdown]
# So N ranks with 64 samples each don't train like one process with 64 N. That's often fine, and sometimes better: many recipes
# are tuned for statistics of 32 or 64 samples. But with only a few samples per rank, the statistics get noisy. Then use
# `SyncBatchNorm`, which shares them at the price of extra messages for each such layer, or a layer that looks at only one
# sample at a time, such as `GroupNorm` or `LayerNorm`. The running means that batch normalization keeps for testing aren't
# parameters. Your `average_gradients` leaves them alone, so they end up different on every rank. DDP broadcasts rank 0's
# running means before each forward pass.
#
# ## Deeper: larger batches need fewer messages
#
# A step's messages add up to the size of the network, no matter how large the batch is. So for the same number of samples, a
# larger batch per rank means fewer steps and fewer messages.

# %%
samples = sizes.sweep_samples or 60_000
for batch_size in (64, 256):
    options = TrainOptions(backend="mpi", epochs=2, batch_size=batch_size, train_samples=samples)
    last = team.train(options, timeout=sizes.timeout_s, show=False)["epochs"][-1]
    print(f"batch {batch_size} per rank: {last['samples_per_s']:,.0f} samples/s, {last['test_accuracy']:.2%} right")

# %% [markdown]
# Look at both numbers. (Each comes from a single run, so a small difference in speed may be chance.) Larger batches aren't
# free: an epoch has fewer steps, so here the network learns less in the same number of epochs.
# [07_large_batch](07_large_batch.ipynb) shows what you can do about that. *Try it:* add `lr_scaling="linear"` to the options.
#
# ## Take it home
#
# [scripts/mpi_by_hand.py](scripts/mpi_by_hand.py) is this notebook as a plain script. With
# [mnist_data.py](scripts/mnist_data.py) beside it, it needs nothing from this repository. It sends the gradients in one message, and rank 0 saves a checkpoint. Start it in a terminal with as
# many processes as you like: `mpiexec -n 2 python -m mpi4py mpi_by_hand.py`.
#
# ## Remember
#
# - The mean of the ranks' gradients is the gradient of the global batch. With unequal shards, weight by samples.
# - Synchronous SGD means the same start, different shards, and averaged gradients in every step. That keeps
#   the ranks identical.
# - Check that they are. Training without averaging looks almost normal.
# - The slowest rank sets the pace; the others wait, and the waiting hides in `Allreduce`.
# - A step sends the same messages, no matter how large its batch is. One large message is cheaper than six small ones.
#
# **Sources.** J. Chen et al., *Revisiting Distributed Synchronous SGD* (arXiv:1604.00981), for synchronous training and its
# slowest workers. P. Goyal et al., *Accurate, Large Minibatch SGD* (arXiv:1706.02677), sections 2 and 3, for what to average
# over, batch normalization and other pitfalls. S. Li et al., *PyTorch Distributed* (arXiv:2006.15704), for DDP.

# %%
ranks.stop()
