# %% [markdown] track="core path"
# # Synchronous SGD
#
# Two ranks hold the same network, and each has half of the data. They train for an hour, and at the end their weights are
# identical, down to the last bit. Apart from rounding, every step was the one that a single process with all the data would have
# taken. What did the ranks tell each other?
#
# **You will** write the functions that make this work, and a check that tells you when they don't. With these functions you'll
# train a network on MNIST to 99 %, and compare it, bit by bit, with one that the workshop's library trains.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. If `%%ranks` is new to you,
# begin with [00_start_here](00_start_here.ipynb); [01_mpi_basics](01_mpi_basics.ipynb) explains `Allreduce` and `Bcast`.

# %%
import hashlib

import numpy as np
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib import TrainOptions, predict, profile, ranks

from lessons import synchronous_sgd as lesson

sizes = profile.current()
team = ranks.start(sizes.ranks)
team

# %% [markdown]
# ## One batch, in parts
#
# *Stochastic gradient descent*, SGD, takes a *batch* of samples, computes the gradient of their mean loss, multiplies it by a
# *learning rate*, and subtracts the result from the weights. What if each rank has a batch of its own? Here each rank looks at
# 16 images, with a network of a single layer. `team.pull` then brings the gradients of all ranks into the notebook, which
# computes their mean. The pictures show the gradients for the weights of the digit 3. A pixel is red where the gradient is
# negative, so SGD increases the weight there, and blue where SGD decreases the weight.

# %%
# %%ranks
import hashlib

import numpy as np
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib import mnist, torch_cnn

from lessons import synchronous_sgd as lesson

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
train = mnist.load("train")

own = np.arange(16) + 16 * comm.rank  # this rank's images
pixels = torch.tensor(train.images[own]).float().flatten(1) / 255
layer = torch.zeros(784, 10, requires_grad=True)
cross_entropy(pixels @ layer, torch.tensor(train.labels[own]).long()).backward()
mine = layer.grad.numpy()

# %%
gradients = team.pull("mine")
lesson.figures.threes(gradients, np.mean(gradients, axis=0))

# %% [markdown]
# Each rank saw different images, so each has a different gradient. The mean of these gradients depends less on how a few people
# wrote their 3s. If each of $N$ ranks holds $B$ samples, the mean is exactly the gradient for all $N B$ samples, the *global
# batch*:
#
# $$\underbrace{\nabla \frac{1}{NB} \sum_{i=1}^{NB} \ell_i}_{\text{gradient of the global batch}} \;=\;
# \underbrace{\frac{1}{N} \sum_{r=0}^{N-1}}_{\text{mean over ranks}} \;
# \underbrace{\nabla \frac{1}{B} \sum_{i \,\in\, \text{rank } r} \ell_i}_{\text{what rank } r \text{ computes}}$$
#
# Here $\ell_i$ is the loss of sample $i$, and a rank's part of the batch is its *shard*. Does the equation hold in floating
# point?


# %%
# %%ranks
def batch(indices):
    """These training images, ready for the network, and their labels."""
    images = torch_cnn.normalize(torch.tensor(train.images[indices]))
    return images, torch.tensor(train.labels[indices]).long()


def gradient(model, images, labels):
    """The gradient of the mean loss, all parameters in one flat array."""
    model.zero_grad()
    cross_entropy(model(images), labels).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()


model = torch_cnn.build(seed=1)
own = np.array_split(np.arange(128), comm.size)[comm.rank]
mine = gradient(model, *batch(own))
whole = gradient(model, *batch(np.arange(128)))


# %%
def off_by():
    """How far the mean of the ranks' gradients is from that of the whole batch."""
    mean = np.mean(team.pull("mine"), axis=0)
    whole = team.pull("whole")[0]
    return np.linalg.norm(mean - whole) / np.linalg.norm(whole)


print(f"the mean over ranks is off by {off_by():.1e} of its length")

# %% [markdown]
# What's left is rounding, because float32 has about seven digits, and the two sums were taken in different orders.
#
# In this workshop, as in DDP and Horovod, the ranks average **gradients, in every step**. They average losses only to print
# them. (An algorithm that averages the *weights* now and then is called *local SGD*.)
#
# *Try it:* let all ranks hold the same 64 samples. Change `own` in the cell that defines `gradient`, and run that cell and the
# next. Which batch does the mean gradient belong to now?
#
# ## Exercise 1 (normal): average the gradients
#
# So far the notebook has computed the mean. In a real run there's no notebook between the ranks, so they must compute the mean
# themselves. With your `average_gradients`, many ranks train as one. Every rank calls it right after its own `backward()`.
# Afterwards each parameter's `p.grad` must be the mean over all ranks. mpi4py sends NumPy arrays, and `tensor.numpy()` turns a
# CPU tensor into one.
#
# <details><summary>Hint 1: which call?</summary>
#
# Every rank needs the sum of what all ranks hold. `comm.Allreduce(array, total)` adds up the arrays of all ranks, and writes the
# sum into `total` on every rank. What's missing from a sum to make it a mean?
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
    """Replace every `p.grad` of the model by its mean over all ranks.

    Must be called on every rank.
    """
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
lesson.check.average_gradients(average_gradients)

# %% [markdown]
# *Break it:* leave out the division, and see what the check says. Which learning rate would then give you the same steps as
# before? (Put the division back before you go on.)
#
# ## Exercise 2 (warm-up): the training loop
#
# Write the training loop. It's the loop of any PyTorch script, plus a call of `average(model, comm)`, which will be your
# `average_gradients`. `batches` yields `(images, labels)`, and the loss is `cross_entropy(model(images), labels)`.
# `schedule.step()` sets the learning rate of the next step, so it comes last.
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
    """One step for each (images, labels) of `batches`, with averaged gradients.

    Returns nothing.
    """
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
lesson.check.train_epoch(train_epoch)

# %% [markdown]
# ## Equal, to the last bit
#
# Let the ranks train for a few steps. Each rank takes its own shard of every global batch, so nothing but your averaging keeps
# their weights equal. A colleague has also written an averaging function, which sends as many bytes as yours. As in most scripts,
# only rank 0 prints its loss. (If you haven't written a function yet, `lesson.check.written` uses the solution instead. A
# function that you've written is used even if its check fails.)

# %%
team.push(
    average_gradients=lesson.check.written(average_gradients),
    train_epoch=lesson.check.written(train_epoch),
    steps=sizes.steps,
)


# %%
# %%ranks
def batches(samples, epoch):
    """This rank's part of every global batch, in an order that all ranks agree on."""
    for indices, _ in lesson.shard.epoch_batches(
        samples, 64, comm.rank, comm.size, seed=1, epoch=epoch
    ):
        yield batch(indices)


def short_run(average, seed=1):
    """A network after a few steps with your loop, from the weights of this seed."""
    model = torch_cnn.build(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)
    own = batches(64 * comm.size * steps, epoch=1)
    train_epoch(model, optimizer, schedule, own, average, comm)
    if comm.rank == 0:
        images, labels = batch(np.arange(1000))
        print(f"loss {cross_entropy(model(images), labels):.3f}")
    return model


def colleagues_average(model, comm):
    for p in model.parameters():
        gradient = p.grad.numpy().copy()
        comm.Allreduce(MPI.IN_PLACE, gradient)
        gradient /= comm.size


yours = short_run(average_gradients)
colleagues = short_run(colleagues_average)

# %% [markdown]
# Both losses look fine. But in one of these runs, the ranks no longer train the same network. Rank 0's loss doesn't give it
# away, because rank 0's own network learns in both runs. To find out, you have to compare the weights of all ranks.
#
# ## Exercise 3 (normal): do the ranks agree?
#
# Write the check that catches such a run. All ranks call `ranks_agree`, and all of them get the same answer, so that they can
# stop together. It's `True` only if all ranks hold the same parameters, to the last bit. Averaging keeps equal weights exactly
# equal, so even a tiny difference means that something is wrong. The ranks don't have to send all their weights: each can
# compute a *digest*, a checksum of all bytes. Flip a single bit, and the digest almost certainly changes.
#
# <details><summary>Hint 1: who compares what?</summary>
#
# If every rank compared its weights with those of rank 0, rank 0 would always say yes. What does each rank have to see, so
# that all ranks come to the same answer? `comm.allgather(value)` returns a list of all ranks' values, on every rank.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `hashlib.sha256(data).hexdigest()` is a digest of 64 characters. `p.detach().numpy().tobytes()` returns the bytes of one
# parameter. You can join the bytes of several parameters with `+` or `b"".join(…)`.
#
# </details><details><summary>Solution</summary>
#
# {solution of ranks_agree}
#
# </details>


# %%
def ranks_agree(model, comm):
    """Whether all ranks hold the same parameters, to the last bit: True or False.

    The same answer on every rank. Must be called on every rank.
    """
    # <solution>
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().numpy().tobytes())
    digests = comm.allgather(digest.hexdigest())
    return len(set(digests)) == 1
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.ranks_agree(ranks_agree)

# %%
team.push(ranks_agree=lesson.check.written(ranks_agree))

# %%
# %%ranks
print(
    f"your average: {ranks_agree(yours, comm)}, "
    f"your colleague's: {ranks_agree(colleagues, comm)}"
)

# %% [markdown]
# The colleague's function sends all gradients and computes their mean, but in a copy. It never writes the mean back into
# `p.grad`, so each rank has trained a network of its own. Nothing failed, and the run took as long as a correct one. Real
# scripts end up like this when a framework silently leaves the averaging out. So compare the weights at least once per run.
# From here on, you do.
#
# ## The same start
#
# Averaging keeps equal weights equal. Does it also make *different* weights equal? Let every rank draw its initial weights
# from its own seed.

# %%
guess = predict(
    "How far apart are the ranks' weights after training? "
    "(100 %: as far as at the start)",
    0,
    200,
    unit="%",
)
guess


# %%
# %%ranks
def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def apart(model):
    """How far this rank's weights are from those of rank 0."""
    return float(np.linalg.norm(weights(model) - comm.bcast(weights(model), root=0)))


before = apart(torch_cnn.build(seed=comm.rank))
after = apart(short_run(average_gradients, seed=comm.rank))

# %%
guess.compare(
    100 * np.array(team.pull("after")[1:]) / np.array(team.pull("before")[1:])
)

# %% [markdown]
# With averaged gradients every rank takes the *same* step, so the distance between the ranks stays the same. But the mean of
# gradients taken at different weights isn't the gradient of any of these networks.
#
# ## Exercise 4 (warm-up): the same start
#
# Training has to begin with a *broadcast*: rank 0 sends its weights to everyone. Afterwards all ranks must hold exactly these
# weights, to the last bit. Sending the parameters is enough, because this network has no other state.
#
# <details><summary>Hint 1: which call?</summary>
#
# `comm.Bcast(array, root=0)` overwrites `array`, on every rank, with the array of rank 0.
#
# </details><details><summary>Hint 2: writing into a parameter</summary>
#
# PyTorch refuses to change a parameter while it records operations for `backward()`. So call `p.copy_(torch.from_numpy(array))`
# inside `with torch.no_grad():`.
#
# </details><details><summary>Solution</summary>
#
# {solution of broadcast_weights}
#
# </details>


# %%
def broadcast_weights(model, comm):
    """Give every rank the parameters of rank 0's model.

    Must be called on every rank.
    """
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
lesson.check.broadcast_weights(broadcast_weights)

# %% [markdown]
# *Break it:* rank 0 already has its weights, so why call `Bcast`? Put `if comm.rank != 0:` in front of the call, and read what
# the check says. The check then starts fresh ranks, which know none of your functions. So repair `broadcast_weights`, and run
# all cells above again.

# %% [markdown]
# ## MNIST to 99 %, with what you wrote
#
# That's all there is to *synchronous SGD*: the same start, different shards, and averaged gradients in every step. Now train
# for real. `lesson.recipe` creates an optimizer, and a schedule that raises the learning rate for half an epoch and then lowers
# it. Everything that the ranks need from each other for training goes through your functions.

# %%
team.push(broadcast_weights=lesson.check.written(broadcast_weights))
team.push(epochs=sizes.epochs, samples=sizes.train_samples or 60_000)

# %%
# %%ranks --timeout 600
test = mnist.load("test", None, comm.rank, comm.size)
model = torch_cnn.build(seed=1 + comm.rank)  # every rank begins somewhere else
broadcast_weights(model, comm)
optimizer, schedule = lesson.recipe(model, comm, epochs, samples)

for epoch in range(1, epochs + 1):
    own = batches(samples, epoch)
    train_epoch(model, optimizer, schedule, own, average_gradients, comm)
    if not ranks_agree(model, comm):
        raise RuntimeError(f"the ranks' weights differ after epoch {epoch}")
    accuracy = lesson.accuracy(model, test, comm)
    if comm.rank == 0:
        print(f"epoch {epoch}: the ranks agree, test accuracy {accuracy:.2%}")

mine = hashlib.sha256(weights(model).tobytes()).hexdigest()

# %% [markdown]
# *Break it:* leave out `broadcast_weights`. When does your check notice?
#
# Now the library does the same. Its `mpi` *backend* works as your functions do, except that it adds up all gradients in one
# message.

# %%
options = TrainOptions(
    backend="mpi", epochs=sizes.epochs, train_samples=sizes.train_samples
)
record = team.train(options, timeout=5 * sizes.timeout_s)

# %%
print("test accuracy:", [f"{epoch['test_accuracy']:.2%}" for epoch in record["epochs"]])
print("the library's weights:", [digest[:12] for digest in record["weights_sha256"]])
print("your ranks' weights:  ", [digest[:12] for digest in team.pull("mine")])

# %% [markdown]
# On two ranks, all of these digests should be equal: you've done, bit for bit, what the library does. (On more ranks, MPI may
# add up your six small messages in another order than one large message, and then the last bits differ.) And what did the ranks
# tell each other? Rank 0's weights at the start, and in every step the gradients of all ranks. They exchanged digests and
# accuracies only to check the result.
#
# *Beat it:* halve the number of bytes. Let `average_gradients` send `float16`, run the cells again from there on, and see what
# that costs in accuracy. (The check of `average_gradients` will object, because such a mean is only roughly right.)
#
# ## Deeper: one message
#
# ### Exercise 5 (normal): one message instead of six
#
# Your function sends one message per parameter, and each message pays the latency. DDP copies gradients into *flat buffers* of
# up to 25 MiB and sends these buffers. Horovod's buffers hold up to 128 MiB. `average_in_one_message` does what
# `average_gradients` does, but the check allows it only one message.
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
lesson.check.average_in_one_message(average_in_one_message)

# %%
team.push(average_in_one_message=lesson.check.written(average_in_one_message))

# %%
# %%ranks
import time


def fastest_ms(average):
    """Milliseconds of the fastest of 50 calls."""
    spent = []
    for _ in range(50):
        comm.Barrier()
        began = time.perf_counter()
        average(model, comm)
        spent.append(time.perf_counter() - began)
    return 1000 * min(spent)


print(f"six messages: {fastest_ms(average_gradients):.2f} ms")
print(f"one message: {fastest_ms(average_in_one_message):.2f} ms")

# %% [markdown]
# Between two processes on one machine, a message has hardly any latency, so a single message may gain you nothing here. It
# pays off on a network, where every message costs a few microseconds, or tens of them.
#
# ## Deeper: where the time goes
#
# A rank that reaches the `Allreduce` early has to wait for the others. To separate waiting from sending, the next cell puts a
# `Barrier` before the `Allreduce`. `rows` says how many samples each rank has.

# %%
# %%ranks
import time


def timed_steps(rows, steps):
    """Milliseconds of computing, waiting and Allreduce in each step: [steps, 3]."""
    model, spent = torch_cnn.build(seed=1), []
    random = np.random.default_rng(comm.rank)
    mean = np.empty_like(weights(model))
    for _ in range(steps):
        began = time.perf_counter()
        mine = gradient(
            model, *batch(random.integers(len(train.images), size=rows[comm.rank]))
        )
        computed = time.perf_counter()
        comm.Barrier()
        all_there = time.perf_counter()
        comm.Allreduce(mine, mean)
        spent.append(np.diff([began, computed, all_there, time.perf_counter()]))
    return 1000 * np.array(spent[1:])  # without the first, which warms up


even_ms = timed_steps([64] * comm.size, steps)

# %%
even_ms = team.pull("even_ms")
lesson.figures.step_times({"64 samples on every rank": even_ms})

# %% [markdown]
# No two ranks are equally fast in every step, so somebody always waits a little.
#
# Now give the last rank three times as many samples.

# %%
guess = predict(
    "What share of a step will rank 0 spend waiting?", low=0, high=100, unit="%"
)
guess

# %%
# %%ranks
uneven_ms = timed_steps([64] * (comm.size - 1) + [192], steps)

# %%
uneven_ms = team.pull("uneven_ms")
lesson.figures.step_times(
    {"64 samples on every rank": even_ms, "192 on the last": uneven_ms}
)

# %%
guess.compare(100 * uneven_ms[0][:, 1] / uneven_ms[0].sum(axis=1))

# %% [markdown]
# The slowest rank sets the pace. In practice a rank may be slow because of another job on its cores, a slow disk, or a hot
# GPU. Without the `Barrier`, the waiting would hide inside `Allreduce`, and look like a slow network.
#
# ## Deeper: unequal shards
#
# With 64 samples on rank 0 and 192 on every other rank, the mean over *ranks* isn't the mean over *samples*: a sample in the
# small shard counts three times as much as one in a large shard.

# %%
# %%ranks
model = torch_cnn.build(seed=1)
own = (
    np.arange(64)
    if comm.rank == 0
    else np.arange(192 * comm.rank - 128, 192 * comm.rank + 64)
)
mine = gradient(model, *batch(own))
whole = gradient(model, *batch(np.arange(64 + 192 * (comm.size - 1))))

# %%
print(f"the plain mean over ranks is off by {off_by():.1%}")

# %% [markdown]
# Shards are also unequal in the last step of an epoch, if the remaining samples don't divide evenly, and with language models,
# where batches hold different numbers of *tokens*. Until October 2024, Hugging Face's `Trainer` took a plain mean, too, when it
# accumulated gradients: it averaged the mean losses of several small batches, so a token in a short batch counted more than a
# token in a long one.
#
# ### Exercise 6 (warm-up): the mean over samples
#
# With this function, unequal shards do no harm. Every rank calls `weighted_mean` with the gradient of the *mean* loss of its
# own samples, and with the number of these samples. Return the gradient of the mean loss over all samples. A rank may have no
# samples; its gradient is then all zeros.
#
# <details><summary>Hint 1</summary>
#
# A mean is a sum divided by a count. How do you get from a rank's mean back to its sum?
#
# </details><details><summary>Hint 2</summary>
#
# `comm.Allreduce(array, total)` adds up arrays. For a single number, `comm.allreduce(x)`, in lower case, returns the sum.
#
# </details><details><summary>Solution</summary>
#
# {solution of weighted_mean}
#
# </details>


# %%
def weighted_mean(gradient, n_samples, comm):
    """The mean of the ranks' gradients, each weighted by its number of samples.

    A new array, on every rank.
    """
    # <solution>
    weighted = gradient * n_samples
    total = np.empty_like(weighted)
    comm.Allreduce(weighted, total)
    return total / comm.allreduce(n_samples)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.weighted_mean(weighted_mean)

# %% [markdown]
# *Beat it:* do without the second allreduce. If the size of the global batch is known before the step, each rank can divide the
# *sum* of its losses by that size, and the gradients only have to be added up.
#
# ## Deeper: what batch normalization changes
#
# The formula at the top needs a loss $\ell_i$ that depends on sample $i$ alone. *Batch normalization* breaks that, because it
# subtracts the mean of the batch and divides by its standard deviation. Each rank uses the mean and standard deviation of its
# own samples only:


# %%
# %%ranks
def normalized_gradient(images, labels):
    torch.manual_seed(1)
    layers = (
        torch.nn.Flatten(),
        torch.nn.Linear(784, 32),
        torch.nn.BatchNorm1d(32),
        torch.nn.Linear(32, 10),
    )
    return gradient(torch.nn.Sequential(*layers), images, labels)


own = np.array_split(np.arange(128), comm.size)[comm.rank]
mine = normalized_gradient(*batch(own))
whole = normalized_gradient(*batch(np.arange(128)))

# %%
print(f"the mean over ranks is off by {off_by():.1%}")

# %% [markdown]
# Statistics per rank are often good enough, but with only a few samples per rank they get noisy. Then use `SyncBatchNorm`,
# which computes them over all ranks at the price of extra messages, or a layer that looks at only one sample at a time, such as
# `GroupNorm` or `LayerNorm`. The running means and variances that batch normalization keeps for testing aren't parameters, so
# your functions leave them different on every rank. DDP broadcasts those of rank 0 before each forward pass.
#
# ## Take it home
#
# [scripts/mpi_by_hand.py](scripts/mpi_by_hand.py) trains the same way, as a plain script. To start it in a terminal, go to the
# workshop's folder, and type:
#
# ```bash
# source .venv/bin/activate
# mpiexec -n 2 python -m mpi4py notebooks/scripts/mpi_by_hand.py
# ```
#
# ## Remember
#
# - The mean of the ranks' gradients is the gradient of the global batch, if all shards are equally large.
# - Synchronous SGD means the same start, different shards, and averaged gradients in every step. Together, these keep the ranks
#   identical.
# - Check that all ranks hold the same weights, to the last bit. The loss of rank 0 looks normal even if nobody averages.
#
# **Sources.** Synchronous training: J. Chen et al. (arXiv:1604.00981). What to average over, and batch normalization: P. Goyal et
# al. (arXiv:1706.02677). DDP: S. Li et al. (arXiv:2006.15704). Means over tokens: huggingface.co/blog/gradient_accumulation.

# %%
ranks.stop()
