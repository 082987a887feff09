# %% [markdown] track="core path"
# # ZeRO and FSDP: when the model no longer fits
#
# You have a network of 7 billion parameters and GPUs with 80 GB. In 16 bits its weights take 14 GB, yet training runs out of
# memory before the first step is over. Eight such GPUs with DDP don't help at all. Where does the memory go, and why does
# every GPU have to hold all of it?
#
# **You will** count what a parameter costs in training, write the first two stages of ZeRO yourself, read the third, and then
# see what turns a DDP script into an FSDP script. You'll measure what each stage saves and what it sends, so you can decide
# when to use which.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebooks
# [02](02_synchronous_sgd.ipynb) and [05](05_ddp.ipynb) first.

# %%
import time
from functools import partial

import pandas as pd
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from workshop_lib import ranks
from workshop_lib.data import mnist
from workshop_lib.lessons.mpi_basics import ring
from workshop_lib.lessons.zero_and_fsdp import figures, shares
from workshop_lib.lessons.zero_and_fsdp import judge as check
from workshop_lib.lessons.zero_and_fsdp import judge_overlap as overlap
from workshop_lib.lessons.zero_and_fsdp.calculator import calculator
from workshop_lib.lessons.zero_and_fsdp.zero_memory import state_bytes
from workshop_lib.models import torch_cnn
from workshop_lib.notebook import profile, take_home
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, MNIST, SCRIPTS
from workshop_lib.ranks import scripts

torch.set_num_threads(1)
sizes = profile.current()
folder = BUILD / "06_zero_and_fsdp"
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## What does a parameter cost?
#
# The workshop's network is too small for memory to matter, so here is a larger one. It has 12 outputs for the ten digits. Two
# of these classes never occur, but 12 can be divided by 2 and by 4, so all ranks get equal shares.


# %%
def perceptron(width=1024, hidden=3):
    """784 inputs, hidden layers of this width, 12 outputs; the same weights wherever it is built."""
    torch.manual_seed(1)
    layers = [torch.nn.Flatten(), torch.nn.Linear(784, width), torch.nn.ReLU()]
    for _ in range(hidden - 1):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 12))


model = perceptron()
parameters = sum(p.numel() for p in model.parameters())
print(f"{parameters:,} parameters")

# %%
guess = predict(
    "Adam, all numbers in fp32: how many bytes does a parameter cost in training?", low=0, high=40, unit="B"
)
guess

# %% [markdown]
# Take one step, and add up the bytes of every tensor that lives from one step to the next.

# %%
split = mnist.load("train")
images = torch_cnn.normalize(torch.tensor(split.images[:1024]))
labels = torch.tensor(split.labels[:1024]).long()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
cross_entropy(model(images[:64]), labels[:64]).backward()
optimizer.step()

one_process = shares.live_bytes(model, optimizer)
for kind, size in one_process.items():
    print(f"{kind:>10}: {size / parameters:5.2f} bytes per parameter")
guess.compare(sum(one_process.values()) / parameters)

# %% [markdown]
# Adam keeps two numbers for each weight, a running mean of its gradients and one of their squares. That's the *optimizer's
# state*, and here it takes half of all the memory.
#
# Don't 16-bit formats make this smaller? They make training faster, but they save less than you'd think. A step is often so
# much smaller than the weight that adding it in 16 bits changes nothing. So the weights have to be kept in fp32 somewhere, as
# *master weights*. Where depends on the recipe:
#
# | recipe | weights | gradients | optimizer | bytes per parameter |
# |---|---|---|---|---|
# | fp32 | 4 | 4 | 8 | 16 |
# | `torch.autocast` in bf16 (what [07c](07c_less_communication.ipynb) trains with) | 4, the masters | 4 | 8 | 16, plus 2 for bf16 copies of the weights, from forward until backward has used them |
# | bf16 weights with fp32 masters: ZeRO's paper, DeepSpeed | 2 | 2 | 4 for the masters, 8 for Adam | 16 |
# | the same, but gradients added up in fp32: Megatron-LM | 2 | 4 | the same | 18 |
# | bf16 and nothing else | 2 | 2 | 4 | 8, and small steps get lost |
#
# So "16 bytes per parameter" is a good rule of thumb, although recipes reach it in different ways, and some take more or
# less. How large a model does that let you fit on a GPU, before you store a single activation?

# %%
for gib in (16, 40, 80):
    print(f"{gib} GB: {gib * 2**30 / 16 / 1e9:.1f} billion parameters")

# %% [markdown]
# More GPUs don't help with DDP, because each of them holds all 16 bytes of every parameter. All these copies are identical, so
# why keep them all?
# *ZeRO*, the zero redundancy optimizer, is still data parallel: every rank trains on its own samples. But each rank keeps only a
# *share* of what is redundant, and the ranks send each other what they need when they need it. Here's what each of four ranks
# holds, with the recipe of ZeRO's paper. The dotted frames show what DDP would hold.

# %%
four = {f"stage {stage}": [state_bytes(10**9, 4, stage)] * 4 for stage in range(4)}
figures.zero(four, 10**9)

# %% [markdown]
# Stage 0 is DDP. Stage 1 splits the optimizer's state among the ranks, stage 2 the gradients too,
# and stage 3 even the weights.
# Given enough ranks, stage 3 makes room for any number of parameters, as long as one whole layer fits. Now build these stages.
#
# ## Two halves of an allreduce
#
# Suppose each rank updates only its share of the weights. What does it have to receive?
# Before the step, it needs the mean gradient of *that share*, and nothing else.
# That's a *reduce-scatter*: every rank puts in a whole array, and gets its own part of the sum. After the
# step, every rank needs all the weights. That's an *allgather*: every rank puts in its part and gets everyone's.
# A ring allreduce is exactly these two, one after the other ([01](01_mpi_basics.ipynb)). Count the bytes of each:

# %%
team = ranks.start(sizes.ranks)
team.push(perceptron=perceptron, parameters=parameters)

# %%
# %%ranks
import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist
from workshop_lib.lessons.mpi_basics import ring
from workshop_lib.lessons.mpi_basics.counting import CountingComm
from workshop_lib.lessons.zero_and_fsdp import shares
from workshop_lib.models import torch_cnn
from workshop_lib.training import rendezvous, world

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
ones, counting = np.full(1_000_000, 1.0 + rank, dtype=np.float32), CountingComm(comm)
part = ring.reduce_scatter(counting, ones)
scattered = counting.bytes_sent
ones[ring.part(len(ones), rank, size)] = part
ring.allgather(counting, ones)
if rank == 0:
    print(f"reduce-scatter: a part of {len(part):,} elements, {scattered / ones.nbytes:.2f} n bytes sent")
    print(f"allgather: all {len(ones):,} elements, {(counting.bytes_sent - scattered) / ones.nbytes:.2f} n bytes sent")
    print(f"every element is now {set(ones.tolist())}, the sum of 1 to {size}")

# %% [markdown]
# If the whole array has $n$ bytes and there are $p$ ranks, each rank sends $(p-1)/p \cdot n$ bytes in each half. So stage 1
# will send no more than DDP's allreduce does. It just takes the optimizer's step between the two halves.
#
# ## Exercise 1 (normal): stage 1
#
# With `Zero1`, your ranks train one model together, but each keeps Adam's state only for its own share. `__init__` is already
# there.
# It lays out all weights in one flat array, padded with zeros until the ranks can split it evenly.
# The model's parameters become *views* of that array,
# so writing into `self.weights` changes the model. `self.share` is a view too, of the part that this rank updates. It's all
# that the optimizer knows about.
#
# Write `step`, which the training loop calls after backward. Afterwards every rank must hold the weights that a single process
# would get with the global batch, and `step` may send no more bytes than one allreduce would.
#
# <details><summary>Hint 1: what, and in which order?</summary>
#
# You need the mean gradient of your share before the step, and everybody's weights after it. `gradient` is laid out like
# `self.weights`. Where does an optimizer look for gradients?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `ring.reduce_scatter(comm, array)` returns this rank's part of the sum. `ring.allgather(comm, array)` fills `array` in place.
# Both take NumPy arrays: `tensor.numpy()` gives you an array on the tensor's memory, and `torch.from_numpy(array)` a tensor on
# the array's. The optimizer reads `self.share.grad`.
#
# </details><details><summary>Solution</summary>
#
# {solution of Zero1.step}
#
# </details>


# %%
class Zero1:
    """Each rank keeps the optimizer's state of one share of the weights, and updates that share."""

    def __init__(self, model, comm, make_optimizer):
        self.comm, self.parameters = comm, shares.trained(model)
        self.weights = shares.flat_weights(self.parameters, comm.size)
        mine = ring.part(len(self.weights), comm.rank, comm.size)
        self.share = torch.nn.Parameter(self.weights[mine])
        self.optimizer = make_optimizer([self.share])

    def step(self):
        gradient = shares.flat_gradient(self.parameters, self.comm.size)
        # <solution>
        total = ring.reduce_scatter(self.comm, gradient.numpy())
        self.share.grad = torch.from_numpy(total / self.comm.size)
        self.optimizer.step()
        ring.allgather(self.comm, self.weights.numpy())
        # <stub>
        # # 1. the mean gradient of my share, into self.share.grad   2. the optimizer's step   3. everybody's weights
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>


# %%
check.Zero1(Zero1)

# %% [markdown]
# Now train the large network with it. For comparison, rank 0 also trains alone, with the global batch.

# %%
team.push(Zero1=Zero1)


# %%
# %%ranks
split = mnist.load("train")


def batch(step, everyone=False):
    """The 64 images of this rank in a step and their labels, or those of all ranks."""
    together = slice(step * 64 * size, (step + 1) * 64 * size)
    mine = slice(None) if everyone else slice(rank, None, size)
    images = torch_cnn.normalize(torch.tensor(split.images[together]))[mine]
    return images, torch.tensor(split.labels[together]).long()[mine]


def adam(parameters):
    return torch.optim.Adam(list(parameters), lr=1e-3)


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# %%
# %%ranks
def train(make, steps=3, micro_batches=1):
    """Train with the object that `make` returns. Returns the model, it, and bytes held between backward and step."""
    model = perceptron()
    zero = make(model, CountingComm(comm), adam)
    for step in range(steps):
        model.zero_grad()
        zero.optimizer.zero_grad()
        for images, labels in zip(*(each.chunk(micro_batches) for each in batch(step)), strict=True):
            (cross_entropy(model(images), labels) / micro_batches).backward()
        live = shares.live_bytes(model, zero.optimizer)
        zero.step()
    return model, zero, live


if rank == 0:
    model = perceptron()
    optimizer = adam(model.parameters())
    for step in range(3):
        images, labels = batch(step, everyone=True)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    alone = weights_of(model)


# %%
# %%ranks
held = {}  # bytes by kind, by class


def report(make):
    """Train with `make`, and say what it cost; a class that isn't written yet says so."""
    try:
        model, zero, live = train(make)
    except NotImplementedError:
        return print(f"{make.__name__} is not written yet")
    held[make.__name__], sent = live, zero.comm.bytes_sent / 3 / (4 * parameters)
    print(f"{sum(live.values()) / parameters:.2f} bytes per parameter, {sent:.2f} n bytes sent per step")
    for layer in getattr(zero, "layers", []):
        zero.gather(layer)  # so that stage 3 has weights to compare
    if rank == 0:
        print(f"distance to one process: {(weights_of(model) - alone).norm() / alone.norm():.0e} of the weights' norm")
    return sent


_ = report(Zero1)

# %% [markdown]
# Each rank holds only its share of the optimizer's state, the ranks send as much as an allreduce would, and the weights are
# the same except for rounding.
# (Adam divides each gradient by its own size. So where a gradient is nothing but rounding error, the steps may
# differ.) Adam treats each weight separately, so it doesn't matter that it sees only a share.
# (Clipping by the gradient's norm does need all gradients at once, so it takes one more allreduce, of a single number.)
# In PyTorch, stage 1 is called `ZeroRedundancyOptimizer`, and you use it together with DDP.
#
# *Break it:* train with plain SGD, which keeps no state. What does stage 1 save then?
#
# ## Exercise 2 (normal): stage 2
#
# In stage 1 every rank holds all gradients when backward ends, although it needs only its share. With `Zero2` you reduce each
# gradient *as soon as backward has finished it*, keep your share, and drop the rest. As in DDP, autograd calls a hook.
#
# Each parameter gets its own flat array, `self.weights[p]`, and this rank's share of it is `self.shares[p]`.
# Write `reduce`, which
# autograd calls with each parameter once `p.grad` is complete. Afterwards the share's `.grad` must be the mean over the ranks,
# and the memory of `p.grad` must be free. (Real implementations group small parameters into buckets, as DDP does.)
#
# <details><summary>Hint 1</summary>
#
# It's the first half of your `Zero1.step`, for a single parameter. Who still needs `p.grad` once your share is there?
#
# </details><details><summary>Hint 2</summary>
#
# `p.grad = None` drops a gradient and frees its memory.
#
# </details><details><summary>Solution</summary>
#
# {solution of Zero2.reduce}
#
# </details>


# %%
class Zero2:
    """Gradients are reduced during backward, and each rank keeps only those of its shares."""

    def __init__(self, model, comm, make_optimizer):
        self.comm, self.weights, self.shares = comm, {}, {}
        for p in shares.trained(model):
            self.weights[p] = flat = shares.flat_weights([p], comm.size)
            self.shares[p] = torch.nn.Parameter(flat[ring.part(len(flat), comm.rank, comm.size)])
            p.register_post_accumulate_grad_hook(self.reduce)
        self.optimizer = make_optimizer(self.shares.values())

    def reduce(self, p):
        gradient = shares.flat_gradient([p], self.comm.size)
        # <solution>
        total = ring.reduce_scatter(self.comm, gradient.numpy())
        self.shares[p].grad = torch.from_numpy(total / self.comm.size)
        p.grad = None
        # <stub>
        # # 1. the mean gradient of my share, into self.shares[p].grad   2. what is p.grad still needed for?
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>

    def step(self):
        self.optimizer.step()
        for flat in self.weights.values():
            ring.allgather(self.comm, flat.numpy())


# %%
check.Zero2(Zero2)

# %%
team.push(Zero2=Zero2)

# %%
# %%ranks
_ = report(Zero2)

# %% [markdown]
# Stage 2 saves more memory, and sends no more bytes than stage 1. But backward has to finish the gradients in the same order
# on all ranks, or they wait for one another forever.
# The same happens if one rank skips a parameter that the other ranks use, as in DDP.
#
# *Break it:* call backward twice before `step`, as you would to add up the gradients of two batches. Your `Zero2` then keeps
# only the gradients of the second. Which line has to change?
#
# ## What stage 3 adds
#
# Stages 1 and 2 still keep all weights on every rank. In stage 3 a rank keeps only its share, and the ranks *gather* a layer's
# weights whenever that layer computes: once in forward and, because they drop them in between, once more in backward. How many
# bytes do they send then?

# %%
guess = predict("How many times as many bytes as stage 2 does stage 3 send per step?", low=1, high=3)
guess

# %% [markdown]
# Stage 3 takes three operations. `shares.Sharded`
# calls `gather` before a layer computes, `drop` after its forward, and `reduce` when a
# gradient is complete. To drop an array, we shrink the memory behind it to nothing, but keep the array. So the views that
# autograd keeps for backward stay valid, and once `gather` fills the array again, they see the weights.

# %%
# %%ranks


class Zero3(shares.Sharded):
    """Weights are there only while their layer computes. Each rank keeps shares."""

    def gather(self, layer):
        for p in self.parameters[layer]:
            whole = np.empty(len(self.weights[p]), np.float32)
            whole[ring.part(len(whole), self.comm.rank, self.comm.size)] = self.shares[p].detach()
            ring.allgather(self.comm, whole)
            shares.fill(self.weights[p], torch.from_numpy(whole))

    def drop(self, layer):
        for p in self.parameters[layer]:
            shares.release(self.weights[p])

    def reduce(self, p):
        total = ring.reduce_scatter(self.comm, shares.flat_gradient([p], self.comm.size).numpy())
        mean, before = torch.from_numpy(total / self.comm.size), self.shares[p].grad
        self.shares[p].grad = mean if before is None else before + mean  # several backwards add up
        p.grad = None
        shares.release(self.weights[p])


volume = report(Zero3)

# %%
p = sizes.ranks
guess.compare(team.pull("volume")[0] / (2 * (p - 1) / p))

# %% [markdown]
# Stages 1 and 2 take a reduce-scatter and an allgather. Stage 3 takes a reduce-scatter and *two* allgathers. That's 1.5 times
# the bytes, the figure in ZeRO's paper. But that's with one backward per step.
# When a batch is too large for memory, you split it into
# $m$ *micro-batches* and step after the last one. What does each stage send then?

# %%
guess = predict("With 4 micro-batches, how many times as many bytes as stage 1 does stage 3 send?", low=1, high=10)
guess

# %%
# %%ranks
from contextlib import suppress

sent = []
for micro_batches in (1, 2, 4):
    row = {"micro-batches": micro_batches}
    for make in (Zero1, Zero2, Zero3):
        with suppress(NotImplementedError):  # while an exercise is open
            zero = train(make, 1, micro_batches)[1]
            row[f"{make.__name__}, n bytes"] = zero.comm.bytes_sent / (4 * parameters)
    sent.append(row)

# %%
table = pd.DataFrame(team.pull("sent")[0]).set_index("micro-batches")
stage_1 = 2 * (p - 1) / p  # what yours sends, once it's written
guess.compare(table["Zero3, n bytes"].loc[4] / stage_1)

# %%
table

# %% [markdown]
# Stage 1 adds up whole gradients on each rank, and reduces them once. Stage 2 has nowhere to add them up, so it reduces them
# after every micro-batch. Stage 3 also gathers all weights twice per micro-batch. Its $2m$ allgathers and $m$ reduce-scatters
# send $3m/2$ times the bytes of stage 1.
# That's why people who accumulate many micro-batches usually prefer stage 1, as long as the model fits.
#
# ## FSDP: stage 3 in PyTorch
#
# PyTorch's own stage 3 is called *fully sharded data parallel*, FSDP for short. In its second version it's a single function,
# `fully_shard`. Here's everything that changes in notebook 05's DDP script:

# %%
take_home.diff("ddp.py", "fsdp2.py")

# %% [markdown]
# | change | why |
# |---|---|
# | `fully_shard(layer)`, then `fully_shard(model)` | each call makes one unit, whose weights are gathered together. The last call takes what's left over |
# | the optimizer comes afterwards | only then are the parameters shards, DTensors that know how they're laid out |
# | forward, `backward()` and `step()` stay as they are | there's no engine and no wrapper. The model's own hooks gather and reduce |
# | `DistributedSampler(test, …)` | every forward gathers, so all ranks must run as many of them, in tests too. The images that it repeats for that don't count |
# | `get_state_dict(…)` on *every* rank | it gathers the shards into whole tensors. If only rank 0 called it, it would wait forever |
#
# A unit should be large enough to make good use of the network, and small enough to fit into memory when it's gathered. In a
# transformer, take one block as a unit. Now start the script, as you'd start any other:

# %%
launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", sizes.ranks]
options = ["--data", MNIST, "--images", sizes.sweep_samples or 60_000, "--epochs", 1, "--out", folder / "fsdp2.pt"]
scripts.run(*launch, SCRIPTS / "fsdp2.py", *options, timeout_s=sizes.timeout_s)

# %% [markdown]
# Does FSDP hold the same as our stage 3? Measure it with the large network on this notebook's ranks, just like the classes
# above.

# %%
# %%ranks
from torch.distributed.fsdp import fully_shard

from workshop_lib.lessons.zero_and_fsdp.traffic import Traffic

rendezvous.join_process_group(world.detect(), torch.device("cpu"))


def sharded(model, **options):
    """Make each layer of the perceptron a unit of FSDP."""
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def with_fsdp(steps=3, **options):
    """Train with FSDP: the bytes held between backward and step, and the collectives of the last step."""
    model = sharded(perceptron(), **options)
    optimizer = adam(model.parameters())
    for step in range(steps):
        images, labels = batch(step)
        optimizer.zero_grad()
        with Traffic() as traffic:
            cross_entropy(model(images), labels).backward()
        live = shares.live_bytes(model, optimizer)
        optimizer.step()
    return live, traffic


# %%
# %%ranks
held["FSDP"], traffic = with_fsdp()
if rank == 0:
    for name, calls in traffic.calls.items():
        print(f"{calls} {name}s per step, of {traffic.handed_bytes[name] / (4 * parameters):.2f} n bytes together")

# %%
by_rank = team.pull("held")
measured = {title: [of_rank[title] for of_rank in by_rank] for title in by_rank[0]}
figures.zero({"one process": [one_process]} | measured, parameters)

# %% [markdown]
# These are measurements: the bytes of all tensors alive between backward and step. The dotted frames show what a single
# process holds. FSDP and
# stage 3 hold a share of everything.
# The picture leaves out only the layer that's gathered while it computes.
#
# With `fully_shard(layer, reshard_after_forward=False)` the weights stay gathered from forward until backward has used them.
# That saves one of the two allgathers, but in the meantime all the weights take up memory.
#
# With micro-batches, FSDP sends as much as stage 3, unless you give up some of the memory it saves. After
# `model.set_requires_gradient_sync(False)`, FSDP adds up whole gradients, as stage 1 does.
# After `model.set_reshard_after_backward(False)`, the weights stay gathered until the next micro-batch.
#
# *Try it:* `with_fsdp(reshard_after_forward=False)`. How many allgathers are left?
#
# ## Does it fit?
#
# The same formula works for models that are far too large for this machine. Choose a model, a recipe, and GPUs.

# %%
calculator()

# %% [markdown]
# ## When to use which
#
# The guidelines for scientists that this workshop grew out of (L. Shao et al., below) name three cases. If the model fits on
# one node, use data parallelism.
# If the model is too large but the data set fits, use *model parallelism*, where each rank computes a part of the network. If
# both are too large, combine the two.
# ZeRO and FSDP came later, and with them you don't have to change the network. So today you'd go down the list below, and stop
# at the first yes.
# (The size of the data set no longer matters, because a rank reads only its own samples, as in
# [09](09_feeding_the_ranks.ipynb).)
#
# | question | then | what it costs |
# |---|---|---|
# | Do 16 bytes per parameter, and the activations of one batch, fit? | DDP | one allreduce per step |
# | Does everything except the activations fit? | smaller micro-batches, accumulated; bf16; activation checkpointing | up to one more forward |
# | Do whole weights and gradients fit, with a share of the optimizer's state? | ZeRO-1 | no extra bytes, so it's nearly always worth it |
# | Do the whole weights fit, with a share of the rest? | ZeRO-2, or FSDP with `reshard_after_forward=False` | reduces gradients after every micro-batch, and FSDP also gathers for each |
# | Does one whole layer fit, with a share of the 16 bytes per parameter? | ZeRO-3 or FSDP | 1.5 times the bytes, in every micro-batch, so it needs a fast network |
# | Does it fit if you add the host's memory? | offload, in FSDP or [DeepSpeed](06b_deepspeed.ipynb) | time, for the link to the host and for a step on the CPU |
# | Is one layer, or its activations, too large for a GPU? | *tensor parallel*: each layer is cut, and ranks exchange activations within it | messages in nearly every layer, so stay inside a node |
# | Still too large, or the network too slow for ZeRO-3? | *pipeline parallel*: each rank holds a few consecutive layers, and micro-batches pass through them | idle time at both ends |
#
# The last two change the model's code ([11](11_model_parallelism.ipynb) builds the first of them). People combine them with the
# rows above, for example FSDP across groups of ranks that hold one model between them. That's the guidelines' third case.
#
# ## Deeper: build a model that doesn't fit
#
# `perceptron()` above builds the whole network on every rank before `fully_shard` cuts it up. For 7 billion parameters in fp32 that's
# 28 GB per process, and a host runs several. On the *meta device*, tensors have
# a shape but no memory. So build the model there, cut
# it up, and only then allocate the shards.

# %%
# %%ranks
import warnings

warnings.filterwarnings("ignore", message="DTensor random operators")  # it's about generators, and right about CPUs
with torch.device("meta"):
    network = perceptron()
before = sum(p.untyped_storage().nbytes() for p in network.parameters() if not p.is_meta)
sharded(network)
network.to_empty(device="cpu")  # memory for the shards only, with nothing in it
torch.manual_seed(1)
for layer in network:
    if hasattr(layer, "reset_parameters"):
        layer.reset_parameters()  # draws the values
first = network[1].weight
part = first.to_local().nbytes / first.nbytes
print(f"{before} bytes at first; now {part:.0%} of a tensor of shape {tuple(first.shape)}, as {first.placements}")

# %% [markdown]
# `to_empty` leaves whatever was in that memory, so every layer must draw its own values, in `reset_parameters` or in a
# function you write. If you load a checkpoint anyway, you can skip that, and load it straight into the shards (see below).
#
# *Break it:* leave out `reset_parameters`, and train. What's the first loss?
#
# ## Deeper: sixteen bits
#
# *fp16* and *bf16* both have 16 bits. fp16 spends 10 of them on digits and 5 on the exponent. bf16 spends 7 and 8, so it has fewer
# digits but the range of fp32. Gradients are small, so does range matter? Train a little, then check which of the last batch's
# gradients each format can hold.

# %%
model = perceptron()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for start in [*range(0, 1024, 64)] * 2:
    optimizer.zero_grad()
    cross_entropy(model(images[start : start + 64]), labels[start : start + 64]).backward()
    optimizer.step()
gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
gradient = gradient[gradient != 0]
print(f"{len(gradient):,} gradients that aren't 0, half of them smaller than {gradient.abs().median():.1e}")
formats = {"bf16": (torch.bfloat16, 1), "fp16": (torch.float16, 1), "fp16, loss times 2^16": (torch.float16, 2.0**16)}
for name, (dtype, scale) in formats.items():
    cast = (gradient * scale).to(dtype)
    poor = (cast.abs() < torch.finfo(dtype).tiny).float().mean()
    print(
        f"{name:>22}: {(cast == 0).float().mean():6.2%} become 0, {poor:6.2%} lose digits, {cast.isinf().sum()} too large"
    )

# %% [markdown]
# A gradient that becomes 0 is lost (*underflow*), and the network learns nothing from it. *Loss scaling* multiplies the loss
# by a large number before backward, which scales all gradients by the same number.
# Too large a scale makes gradients infinite; frameworks then skip the step, halve the
# scale, and try a larger one again later. So an fp16 step has five parts, and their order matters:
#
# 1. Run forward and backward in 16 bits, from the scaled loss.
# 2. Convert the gradients to fp32, divide them by the scale, and average them over the ranks.
# 3. Do whatever depends on their size: clip them, or compute LARS's ratio of weights to gradients in each layer
#    ([07](07_large_batch.ipynb)), which needs the *master* weights.
# 4. Take the optimizer's step, on the master weights.
# 5. Copy them to 16 bits for the next forward.
#
# If you swap 2 and 3, LARS's steps are too small by a factor of the scale, and you get no error.
# bf16 needs no scale, and that's why
# it's the usual choice where the hardware has it.
#
# And why do you need master weights? Take a weight of 1, and a hundred steps of 0.001:

# %%
weight, step = torch.tensor(1.0), torch.tensor(1e-3)
for dtype in (torch.float32, torch.bfloat16):
    moved = weight.to(dtype)
    for _ in range(100):
        moved = moved + step.to(dtype)
    print(f"{dtype}: 1 and 100 steps of 0.001 make {moved.item():.4f}")

# %% [markdown]
# With autocast the weights themselves are the masters, and autocast makes bf16 copies as it goes. Do these really stay from
# forward to backward? Count what forward keeps, with and without autocast:

# %%
from workshop_lib.training.memory import kept_for_backward

few, kept = images[:8].clone().requires_grad_(), {}
for enabled in (False, True):
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        _, kept[enabled] = kept_for_backward(lambda: cross_entropy(model(few), labels[:8]), model)
print(f"kept besides the weights, in bytes per parameter: {kept[False] / parameters:.2f} in fp32", end=", ")
print(f"{kept[True] / parameters:.2f} with autocast")

# %% [markdown]
# They do stay, at 2 bytes per parameter.
#
# In FSDP, a `MixedPrecisionPolicy` says where each format is used. FSDP's shards stay in fp32, so *they are* the master
# weights: each rank holds $16/p$ bytes per parameter, plus the bf16 copies of a layer while it computes.

# %%
# %%ranks
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

in_bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
live, traffic = with_fsdp(mp_policy=in_bf16)
if rank == 0:
    print(
        f"{sum(live.values()) / parameters:.2f} bytes per parameter, {live['parameters'] / parameters:.2f} of them weights"
    )
    for name, handed in traffic.handed_bytes.items():
        print(f"{name}: {handed / parameters:.2f} bytes per parameter")

# %% [markdown]
# Two allgathers in bf16 take 4 bytes per parameter instead of 8, and gradients are still added up in fp32. With
# `reduce_dtype=torch.bfloat16` the gradients would take half as many bytes, too, but every sum would be rounded to bf16.
#
# ## Deeper: offload
#
# The host has more memory than the GPU. With an offload policy FSDP keeps the shards, their gradients and the optimizer's state in the
# host's memory, and takes the optimizer's step there. Only gathered layers and activations stay on the GPU. (DeepSpeed can do
# this, too: see [06b](06b_deepspeed.ipynb).)
# Without a GPU, everything is on the host anyway, so this cell runs the policy and *computes* what would travel in each step:

# %%
# %%ranks
live, traffic = with_fsdp(offload_policy=CPUOffloadPolicy(pin_memory=False))
if rank == 0:
    up, down = 2 * live["parameters"], live["gradients"]  # shards go up for both allgathers, gradients come down
    print(f"kept on the host: {sum(live.values()) / 2**20:.1f} MiB per rank")
    print(f"each step: {up / 2**20:.1f} MiB up, {down / 2**20:.1f} MiB down; the step itself runs on the CPU")

# %% [markdown]
# If you have a GPU, leave `pin_memory` at its default, `True`, because copies from pinned memory don't block.
#
# ## Deeper: several nodes, and a mesh
#
# Inside a node, GPUs exchange data much faster than between nodes. But FSDP over 64 GPUs
# gathers every layer across all of them.
# *Hybrid sharding* (HSDP) shards only inside each node, and keeps one copy of the model per node. So the allgathers stay
# inside the nodes, and only the reduced gradients cross between them, in allreduces.
# To ask for it, you pass a *device mesh*, which arranges the ranks in rows and columns.
#
# This machine doesn't have 16 GPUs on 4 nodes. But PyTorch has a process group called `fake`, which only pretends to send.
# The tensors, shapes and calls are real, but the values aren't. People use it to dry-run large jobs, and you can do that right
# here, in this kernel:

# %%
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from workshop_lib.lessons.zero_and_fsdp.traffic import Traffic

dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=16)
meshes = {"FSDP over 16": init_device_mesh("cpu", (16,))}
meshes["HSDP, 4 nodes of 4"] = init_device_mesh("cpu", (4, 4), mesh_dim_names=("nodes", "gpus"))
for title, mesh in meshes.items():
    network = perceptron()
    for unit in (*(layer for layer in network if list(layer.parameters())), network):
        fully_shard(unit, mesh=mesh)
    with Traffic() as traffic:
        network(images[:64]).sum().backward()
    share = sum(p.to_local().nbytes for p in network.parameters()) / (4 * parameters)
    print(f"{title}: 1/{1 / share:.0f} of the weights per rank")
    for name, count in traffic.calls.items():
        print(f"    {count} {name}s of {traffic.handed_bytes[name] / (4 * parameters):.2f} n bytes together")
dist.destroy_process_group()

# %% [markdown]
# HSDP sends the same allgathers and reduce-scatters, but among the 4 ranks of a node instead of all 16. The allreduces are
# new. Together they carry $n/4$ bytes per rank, and they're the only messages between nodes.
# You pay with memory: a rank holds $16/4$ bytes per parameter instead of $16/16$.
#
# Everything in this notebook is data parallel: every rank computes the whole network, on its own samples, and only what it
# keeps is cut. Ranks can also share out the computing of each layer, or the layers: that's *model parallelism*, in
# [11](11_model_parallelism.ipynb) and [11b](11b_pipelines.ipynb).
#
# ## Deeper: checkpoints in shards
#
# `fsdp2.py` gathers the whole network on rank 0 to save it. At 7 billion parameters that's 28 GB through one process, and 84 GB with
# Adam's state. *Distributed checkpoints* let all ranks write their own shards at the same time:

# %%
team.push(folder=folder)

# %%
# %%ranks
import shutil

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict

if rank == 0:
    shutil.rmtree(folder / "sharded", ignore_errors=True)
comm.Barrier()
network = sharded(perceptron())
_ = dcp.save({"model": get_model_state_dict(network)}, checkpoint_id=folder / "sharded")

# %%
for file in sorted((folder / "sharded").iterdir()):
    print(f"{file.stat().st_size / 2**20:6.2f} MiB  {file.name}")

# %% [markdown]
# There's one file per rank, and a `.metadata` file that says which piece of which tensor is where.
# So a different number of ranks can read the checkpoint, too: each picks what it needs, with `dcp.load`.
# Here a single process turns it into one file, for everyone who just wants to use the network:

# %%
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

dcp_to_torch_save(folder / "sharded", folder / "whole.pt")
whole = torch.load(folder / "whole.pt")["model"]
equal = all(torch.equal(whole[name], value) for name, value in perceptron().state_dict().items())
print(f"{(folder / 'whole.pt').stat().st_size / 2**20:.2f} MiB in one file; equal to the last bit: {equal}")

# %% [markdown]
# To resume training, save the optimizer too: `get_state_dict(model, optimizer)` gives both, and `set_state_dict` puts them back.
#
# ## Deeper: activation checkpointing
#
# So far we've only looked at the model's states.
# *Activations*, the outputs of layers that forward keeps for backward, grow with the
# batch, and ZeRO doesn't split them, because each rank has its own samples. *Activation checkpointing* cuts the network into a
# few segments, keeps only their inputs, and computes the rest again in backward.
# PyTorch can call a function whenever it keeps a tensor for backward, so
# we count the bytes there.

# %%
from torch.utils.checkpoint import checkpoint_sequential

deep, rows, some = perceptron(width=512, hidden=12), {}, slice(256)


def loss_of(segments):
    inputs = images[some].clone()
    outputs = checkpoint_sequential(deep, segments, inputs, use_reentrant=False) if segments else deep(inputs)
    return cross_entropy(outputs, labels[some])


for segments in (None, 6, 4, 2):
    loss, kept_bytes = kept_for_backward(partial(loss_of, segments), deep)
    start = time.perf_counter()
    loss_of(segments).backward()
    milliseconds = 1000 * (time.perf_counter() - start)
    title = f"{segments} segments" if segments else "everything kept"
    rows[title] = {"loss": loss.item(), "MiB kept by forward": kept_bytes / 2**20, "ms": milliseconds}
pd.DataFrame(rows).T.style.format("{:.2f}")

# %% [markdown]
# The loss is the same and forward keeps less, but a step takes longer, by as much as a whole extra forward pass. The last
# segment isn't recomputed, because backward begins there. With few segments, each is long and takes a lot of memory when it's
# recomputed. With many, there are many inputs to keep. So the square root of the number of layers is a good choice.
#
# ## Deeper: send while you compute
#
# Your stage 2 waits in every hook. DDP doesn't, as you saw in notebook 05, and neither does FSDP. With PyTorch's collectives
# you don't have to wait, either: `dist.reduce_scatter_single(part, whole, async_op=True)` starts
# a reduce-scatter of the flat tensor `whole` into
# `part`, and returns a handle at once. (Before PyTorch 2.13 it was called `reduce_scatter_tensor`.)
#
# ### Exercise 3 (hard): stage 2 that overlaps
#
# With this class, your gradients travel while backward continues. `shares.Stage2` does what `__init__` and `step` of your
# `Zero2` do. Write the two other methods. `reduce` starts a reduce-scatter, and never waits for another rank.
# `finish`, called before the step, waits for all of them and leaves the mean gradient in each share's `.grad`.
# As before, `p.grad`
# must be gone after the hook.
#
# <details><summary>Hint 1</summary>
#
# Where will you keep the handles? And what else has to stay alive until the message has arrived?
#
# </details><details><summary>Hint 2</summary>
#
# In `reduce`: `part = torch.empty_like(self.shares[p])`, start, then append `(p, part, gradient, handle)` to `self.pending`. In
# `finish`: for each of them `handle.wait()`, then `self.shares[p].grad = part / dist.get_world_size()`. Empty the list at the
# end.
#
# </details><details><summary>Solution</summary>
#
# {solution of OverlappedZero2.reduce}
# {solution of OverlappedZero2.finish}
#
# </details>


# %%
class OverlappedZero2(shares.Stage2):
    """Stage 2 whose reduce-scatters travel while backward continues."""

    # <solution>
    def reduce(self, p):
        gradient = shares.flat_gradient([p], self.comm.size)
        part = torch.empty_like(self.shares[p])
        handle = dist.reduce_scatter_single(part, gradient, async_op=True)
        self.pending.append((p, part, gradient, handle))
        p.grad = None

    def finish(self):
        for p, part, _, handle in self.pending:
            handle.wait()
            self.shares[p].grad = part / self.comm.size
        self.pending.clear()

    # <stub>
    # def reduce(self, p):
    #     gradient = shares.flat_gradient([p], self.comm.size)
    #     raise NotImplementedError("your code here")
    #
    # def finish(self):
    #     raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
overlap.OverlappedZero2(OverlappedZero2)

# %%
team.push(OverlappedZero2=OverlappedZero2)

# %%
# %%ranks
with suppress(NotImplementedError):  # while the exercise is open
    model, zero, _ = train(OverlappedZero2)
    if rank == 0:
        print(f"distance to one process: {(weights_of(model) - alone).norm() / alone.norm():.0e} of the weights' norm")

# %% [markdown]
# *Beat it:* until `finish`, your list keeps every whole gradient alive, so you need as much memory as in stage 1. If you wait
# for the oldest message whenever more than two are on their way, you overlap *and* save memory. Does your class still pass the
# check?
#
# ### Exercise 4 (hard): stage 3 that looks ahead
#
# In stage 3 a layer has to wait for its weights before it can compute, unless you asked for them earlier. With `Lookahead`,
# your ranks gather the *next* layer while this one computes.
# Write `enter`, which is called before each layer computes, in forward and in backward. `following` is the layer that computes
# next, or None if there is none.
# `self.start(layer)` starts to gather a layer, and `self.wait(layer)` returns when its weights are there. Call each exactly
# once per layer and pass, and never have more than two layers gathered at once.
#
# <details><summary>Hint</summary>
#
# By the time you enter a layer, you may already have started gathering it, when you entered the one before. Which layer of a
# pass can't have been started early? Keep track in `self.started`.
#
# </details><details><summary>Solution</summary>
#
# {solution of Lookahead.enter}
#
# </details>


# %%
class Lookahead:
    """Decides when the layers of stage 3 are gathered."""

    def __init__(self, start, wait):
        self.start, self.wait, self.started = start, wait, set()

    def enter(self, layer, following):
        """Called right before `layer` computes; `following` computes next."""
        # <solution>
        if layer not in self.started:
            self.start(layer)
        self.wait(layer)
        self.started.discard(layer)
        if following is not None:
            self.start(following)
            self.started.add(following)
        # <stub>
        # self.start(layer)
        # self.wait(layer)
        # raise NotImplementedError("your code here: it works, but every layer waits")
        # </stub>
        # </solution>


# %%
overlap.Lookahead(Lookahead)

# %% [markdown]
# Now run stage 3 with your `Lookahead`, and with allgathers that don't wait:

# %%
team.push(Lookahead=Lookahead)


# %%
# %%ranks
class Zero3Ahead(Zero3):
    def __init__(self, *arguments):
        self.on_their_way, self.early = {}, 0
        self.enter = Lookahead(self.start, self.wait).enter
        super().__init__(*arguments)

    def start(self, layer):
        whole = [torch.empty(len(self.weights[p])) for p in self.parameters[layer]]
        pairs = zip(whole, self.parameters[layer], strict=True)
        handles = [dist.all_gather_single(w, self.shares[p].detach(), async_op=True) for w, p in pairs]
        self.on_their_way[layer] = whole, handles

    def wait(self, layer):
        whole, handles = self.on_their_way.pop(layer)
        self.early += all(handle.is_completed() for handle in handles)
        for p, values, handle in zip(self.parameters[layer], whole, handles, strict=True):
            handle.wait()
            shares.fill(self.weights[p], values)


with suppress(NotImplementedError):  # while the exercise is open
    model, zero, _ = train(Zero3Ahead)
    print(f"in 3 steps, {zero.early} of {3 * 2 * len(zero.layers)} layers were there before they were needed")

# %% [markdown]
# FSDP looks ahead by itself: always in backward, and in forward as far as the CPU runs ahead of the GPU.
# `set_modules_to_forward_prefetch` makes it gather even earlier.
#
# *Beat it:* the price of looking ahead is a second layer in memory. With blocks of equal size, what share of a 32-block network is that?
#
# ## Remember
#
# - Training with Adam takes about 16 bytes per parameter, in fp32 and in most mixed-precision recipes. Activations come on
#   top of that.
# - ZeRO is data parallelism without copies. Stage 1 splits the optimizer's state among the ranks, stage 2 also the gradients,
#   stage 3 also the weights.
# - An allreduce is a reduce-scatter and an allgather. Stages 1 and 2 take the step in between. Stage 3 adds a second
#   allgather.
# - With $m$ micro-batches stage 3 gathers $2m$ times. Stage 1 still reduces and gathers once.
# - ZeRO changes only who holds and sends what. The result is still that of one process with the global batch.
# - In FSDP the fp32 shards are the master weights. Every rank must run the same forwards, backwards and checkpoints.
#
# **Take it home:** [scripts/fsdp2.py](scripts/fsdp2.py).
#
# **Sources.** S. Rajbhandari et al., [*ZeRO: Memory Optimizations Toward Training Trillion Parameter
# Models*](https://arxiv.org/abs/1910.02054), for bytes per parameter, stages and volume of messages. Y. Zhao et al., [*PyTorch
# FSDP*](https://arxiv.org/abs/2304.11277), also for hybrid sharding and prefetching. P. Micikevicius et al., [*Mixed Precision
# Training*](https://arxiv.org/abs/1710.03740), for master weights and loss scaling. NVIDIA's [guide to Megatron's distributed
# optimizer](https://docs.nvidia.com/megatron-core/developer-guide/latest/api-guide/dist_optimizer.html), for 18 bytes. T. Chen et
# al., [*Training Deep Nets with Sublinear Memory Cost*](https://arxiv.org/abs/1604.06174). P. Patarasuk and X. Yuan, *Bandwidth
# optimal all-reduce algorithms* (2009), for the ring. L. Shao, V. Lee, T. Kurth, M. Mustafa and Prabhat, *Distributed Training*,
# guidelines of the Big Data Center collaboration. PyTorch's documentation of
# [`fully_shard`](https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html) and of [distributed
# checkpoints](https://pytorch.org/docs/stable/distributed.checkpoint.html).

# %%
ranks.stop()
