# %% [markdown] track="large models"
# # Model parallelism: one layer on several ranks
#
# FSDP shares out the memory of a model, but each rank still computes every layer as a whole. So what do you do when a single
# layer, or what it computes, is too large for a GPU? Then several ranks have to compute that layer *together*. Where would
# you cut it, so that they have little to send each other?
#
# **You will** cut linear layers in two ways, work out what has to be sent in forward and in backward, and build a whole
# transformer block from them. You'll train it on MNIST, check that you get the same results as one process, count every byte,
# and see that PyTorch does the same. Then you'll arrange ranks in a mesh, with data parallelism one way and tensor parallelism
# the other.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebooks
# [02](02_synchronous_sgd.ipynb) and [06](06_zero_and_fsdp.ipynb) first. You'll meet the small vision transformer of
# `workshop_lib/models/vit.py`, which is written to be read.

# %%
import inspect
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import gelu, linear

from workshop_lib import judge, ranks
from workshop_lib.lessons.model_parallelism import cut, figures, tensors
from workshop_lib.lessons.model_parallelism import judge as check
from workshop_lib.lessons.model_parallelism import judge_cut_blocks as cut_blocks
from workshop_lib.lessons.model_parallelism.tensors import allgather, allreduce, both_ways, reduce_scatter, same, shard
from workshop_lib.models import vit
from workshop_lib.notebook import profile, take_home
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, MNIST, SCRIPTS
from workshop_lib.ranks import scripts

torch.set_num_threads(1)
sizes = profile.current()
folder = BUILD / "11_model_parallelism"
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## Where to cut
#
# A transformer spends most of its time in linear layers, and they often come in pairs. The MLP of a block is such a pair: `up`
# makes each token four times as wide, `gelu` works on each number by itself, and `down` makes the token as wide as before.
# Cut both layers in two, in one process for now:

# %%
torch.manual_seed(1)
x = torch.randn(25, 64)  # 25 tokens of 64 numbers
mlp = vit.Mlp(64)
up, down = mlp.up, mlp.down  # 64 to 256 numbers, and back
parts = []
for rank in range(2):
    mine = slice(128 * rank, 128 * (rank + 1))
    inner = gelu(linear(x, up.weight[mine], up.bias[mine]))  # half of the inner numbers, from the whole x
    parts.append(linear(inner, down.weight[:, mine]))  # what they add to every output
together = sum(parts) + down.bias
print(f"largest difference to the whole MLP: {(together - mlp(x)).abs().max():.0e}")

# %% [markdown]
# `up` is cut by its outputs, and `down` by its inputs. So the half of the inner numbers that a rank computes is exactly the
# half that its part of `down` needs, and in between nobody sends anything. Each rank ends up with a *part of the sum* in every
# output. One allreduce adds the parts up.

# %%
figures.mlp_in_parts()

# %% [markdown]
# The first kind is called *column-parallel* and the second *row-parallel*, because in $y = xA$ they cut the columns and the
# rows of $A$. Take care: `nn.Linear` stores the transpose, a weight of shape `[outputs, inputs]`.
#
# Why not rows first? Then each rank would have a part of each sum *before* `gelu`, and `gelu` of a sum isn't the sum of the
# `gelu`s. You'd need an allreduce there, and a second one later.
#
# ## And backward?
#
# Autograd knows nothing about other ranks. So wherever data crosses between ranks, you have to tell it what crosses on the way
# back. Our helper `both_ways` does one thing to a tensor in forward, and another to its gradient in backward. This is all of it:

# %%
print(inspect.getsource(tensors._BothWays), inspect.getsource(both_ways), sep="\n")

# %% [markdown]
# Now think about what crosses. At the entrance, all ranks read the same x, so forward sends nothing. But x has an effect on
# every rank's part of the inner numbers. What's the gradient of x, then? At the exit it's the other way round. Forward adds up
# the parts. In backward, every rank already has the whole gradient of the output, and an addition passes it on as it is.
#
# Megatron-LM, where this comes from, calls the two operations *f* and *g*:
#
# | | forward | backward |
# |---|---|---|
# | f, at the entrance of a column-parallel layer | nothing | ? |
# | g, at the exit of a row-parallel layer | allreduce | nothing |
#
# ## Exercise 1 (normal): a column-parallel layer
#
# With `ColumnParallel(layer, comm)` your ranks share out the outputs of a linear layer. Every rank passes in the same x, and
# gets the outputs of its part. Write the two methods: take your part of the weight and the bias, and compute.
#
# `shard(tensor, dim, comm)` makes a parameter with this rank's part of a tensor along a dimension. (If there's no tensor, as
# with a layer without bias, it returns None.) `allreduce(comm, tensor)` returns the sum over the ranks as a new tensor, and
# `same(tensor)` returns the tensor as it is.
#
# <details><summary>Hint 1: which parts?</summary>
#
# The weight has the shape `[outputs, inputs]`, and there's one number in the bias for each output. You're sharing out outputs.
#
# </details><details><summary>Hint 2: backward</summary>
#
# x went into the outputs of all ranks. So its gradient is a sum with one part from each rank, and autograd gives you only
# yours.
#
# </details><details><summary>Hint 3: the pieces</summary>
#
# `partial(allreduce, self.comm)` is a function of one tensor. So forward starts with
# `x = both_ways(x, forward=same, backward=partial(allreduce, self.comm))`, and then it's `linear(x, self.weight, self.bias)`.
#
# </details><details><summary>Solution</summary>
#
# {solution of ColumnParallel.__init__}
# {solution of ColumnParallel.forward}
#
# </details>


# %%
class ColumnParallel(nn.Module):
    """A linear layer whose outputs are shared out: every rank reads the same x, and rank r has the r-th part of them."""

    def __init__(self, layer, comm):
        super().__init__()
        self.comm = comm
        # <solution>
        self.weight = shard(layer.weight, 0, comm)
        self.bias = shard(layer.bias, 0, comm)
        # <stub>
        # raise NotImplementedError("your code here: self.weight and self.bias")
        # </stub>
        # </solution>

    def forward(self, x):
        # <solution>
        x = both_ways(x, forward=same, backward=partial(allreduce, self.comm))
        return linear(x, self.weight, self.bias)
        # <stub>
        # raise NotImplementedError("your code here: linear(...) of x, which needs help on its way back")
        # </stub>
        # </solution>


# %% [markdown]
# Start the ranks. If there are more of them than cores, they take turns. That's slow, but we count bytes here, not seconds.

# %%
team = ranks.start(min(4, max(sizes.sweep_ranks)))
team

# %%
check.ColumnParallel(ColumnParallel)

# %% [markdown]
# ## Exercise 2 (normal): a row-parallel layer
#
# `RowParallel(layer, comm)` takes over where the first one ends. Rank r passes in the r-th part of the inputs, and all ranks
# get the same outputs. Write both methods again. Only the weight is cut here. What about the bias?
#
# <details><summary>Hint 1: the bias</summary>
#
# It belongs to the outputs, and these are whole on every rank. So every rank keeps all of it, as
# `nn.Parameter(layer.bias.detach().clone())`. But if each rank added it to its part of the sum, how often would it be in there
# after the allreduce?
#
# </details><details><summary>Hint 2: backward</summary>
#
# After the allreduce all ranks hold the same output and do the same with it. So each gets the whole gradient anyway. If you
# added these up again, they'd be too large.
#
# </details><details><summary>Solution</summary>
#
# {solution of RowParallel.__init__}
# {solution of RowParallel.forward}
#
# </details>


# %%
class RowParallel(nn.Module):
    """A linear layer whose inputs are shared out: rank r passes the r-th part, and every rank has the same outputs."""

    def __init__(self, layer, comm):
        super().__init__()
        self.comm = comm
        # <solution>
        self.weight = shard(layer.weight, 1, comm)
        self.bias = nn.Parameter(layer.bias.detach().clone())
        # <stub>
        # raise NotImplementedError("your code here: self.weight and self.bias")
        # </stub>
        # </solution>

    def forward(self, x):
        # <solution>
        part = linear(x, self.weight)
        return both_ways(part, forward=partial(allreduce, self.comm), backward=same) + self.bias
        # <stub>
        # raise NotImplementedError("your code here: linear(...) without a bias, a sum over ranks, and the bias")
        # </stub>
        # </solution>


# %%
check.RowParallel(RowParallel)

# %% [markdown]
# Put the two together, and you have an MLP on several ranks. How far is it from one process, and what does it send?

# %%
team.push(
    ColumnParallel=judge.own_or_library(ColumnParallel, cut.ColumnParallel),
    RowParallel=judge.own_or_library(RowParallel, cut.RowParallel),
)

# %%
# %%ranks
from functools import partial

import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy, linear

from workshop_lib.data import mnist
from workshop_lib.lessons.model_parallelism import cut
from workshop_lib.lessons.model_parallelism.tensors import allreduce, alltoall, both_ways, counts_from_all, same
from workshop_lib.lessons.mpi_basics import ring
from workshop_lib.lessons.mpi_basics.counting import CountingComm
from workshop_lib.models import torch_cnn, vit
from workshop_lib.training import memory, rendezvous, world

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size


def largest(ours, theirs):
    """The largest difference between tensors, as a share of the largest number there."""
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs, strict=True))


# %%
# %%ranks
torch.manual_seed(1)
whole, x = vit.Mlp(64), torch.randn(64, 25, 64)  # 64 images of 25 tokens
counting = CountingComm(comm)
mine = nn.Sequential(ColumnParallel(whole.up, counting), nn.GELU(), RowParallel(whole.down, counting))
inputs = [x.clone().requires_grad_() for _ in range(2)]
outputs = mine(inputs[0]), whole(inputs[1])
forward_bytes = counting.bytes_sent
for output in outputs:
    output.square().sum().backward()
if rank == 0:
    an_allreduce = 2 * (size - 1) / size * x.nbytes
    print(f"outputs differ by {largest([outputs[0]], [outputs[1]]):.0e}", end=", ")
    print(f"gradients of x by {largest([inputs[0].grad], [inputs[1].grad]):.0e}")
    print(f"forward sends {forward_bytes / an_allreduce:.2f} allreduces of x", end=", ")
    print(f"backward {(counting.bytes_sent - forward_bytes) / an_allreduce:.2f}")

# %% [markdown]
# The differences are just rounding, and a pair of layers costs one allreduce in each direction. These carry *activations*.
# They grow with your batch, but not with the layers' inner width: the numbers between the two layers never travel.
#
# *Break it:* leave out the allreduce in your backward. Which weights of a network get wrong gradients then, those of this layer
# or those before it?
#
# ## Exercise 3 (normal): heads on ranks
#
# Attention has four linear layers, `query`, `key`, `value` and `out`. Between them, each *head* works alone, with its own
# queries, keys and values. So heads are a natural cut. In our `Attention`, the first rows of `query.weight` make the first
# head, the next rows the second, and so on. `Attention` works out how many heads it has from the shape it gets.
#
# With `cut_block` you turn the block of a transformer into one that several ranks compute. Replace its six linear layers in
# place, as in `block.mlp.up = column(block.mlp.up)`. `column(layer)` and `row(layer)` make your two kinds of layers, with the
# communicator already filled in. Which layer becomes which? (The two `LayerNorm`s are small and stay whole.)
#
# <details><summary>Hint 1</summary>
#
# Which layers read a whole token, and which read numbers that are already shared out?
#
# </details><details><summary>Hint 2</summary>
#
# The layers are `block.attention.query`, `.key`, `.value` and `.out`, `block.mlp.up` and `.down`. Two of them bring parts back
# together.
#
# </details><details><summary>Solution</summary>
#
# {solution of cut_block}
#
# </details>


# %%
def cut_block(block, column, row):
    """Replace the linear layers of a block by column(layer) or row(layer), so that a rank has whole heads."""
    # <solution>
    attention, mlp = block.attention, block.mlp
    attention.query = column(attention.query)
    attention.key = column(attention.key)
    attention.value = column(attention.value)
    attention.out = row(attention.out)
    mlp.up, mlp.down = column(mlp.up), row(mlp.down)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
cut_blocks.cut_block(cut_block)

# %% [markdown]
# ## Train it
#
# Cut every block of the vision transformer, and train on MNIST. In data parallelism each rank had its own images. Here all
# ranks *must* have the same ones, because together they are one network. For comparison, rank 0 also trains a whole one alone.

# %%
team.push(cut_block=judge.own_or_library(cut_block, cut.cut_block), steps=min(sizes.steps, 20))


# %%
# %%ranks
split = mnist.load("train")


def batch(step, rows=slice(None)):
    """These rows of a step's 64 images, and their labels."""
    images = torch_cnn.normalize(torch.tensor(split.images[64 * step : 64 * step + 64]))
    return images[rows], torch.tensor(split.labels[64 * step : 64 * step + 64]).long()[rows]


def network():
    torch.manual_seed(1)
    return vit.vit(classes=10)  # 3 blocks, 4 heads, 25 tokens of 64 numbers


def cut_model(model, comm):
    for block in model[1:-1]:  # all but the patches at the start and the logits at the end
        cut_block(block, partial(ColumnParallel, comm=comm), partial(RowParallel, comm=comm))
    return model


def train(model, steps, rows=slice(None), after_backward=lambda model: None):
    """Train with SGD, and return the optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        images, labels = batch(step, rows)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        after_backward(model)
        optimizer.step()
    return optimizer


# %%
# %%ranks --timeout 240
counting = CountingComm(comm)
alone, together = network(), cut_model(network(), counting)
if rank == 0:
    train(alone, steps)
alone.load_state_dict(comm.bcast(alone.state_dict()))
train(together, steps)
held = sum(p.numel() for p in together.parameters()) / sum(p.numel() for p in alone.parameters())
apart = largest(together.parameters(), cut_model(alone, counting).parameters())  # part by part
images, labels = batch(steps)  # which it hasn't seen
with torch.no_grad():
    logits = together(images)
if rank == 0:
    print(f"after {steps} steps, the loss on new images is {cross_entropy(logits, labels):.3f}")
    print(f"each of {size} ranks holds {held:.0%} of the parameters, and they differ from one process's by {apart:.0e}")

# %% [markdown]
# The two networks are the same except for rounding. A rank holds a bit more than its share, since patches, norms, logits and two
# biases per block aren't cut. Every rank computes these for itself, from the same numbers. So it also gets the same gradients,
# and nobody has to send them.
#
# ## PyTorch does the same
#
# With PyTorch you don't write layers. You give `parallelize_module` a *plan*, which says for each layer by name how to cut it.
# The parameters become DTensors, which know how they're laid out, as in FSDP. Here's what changes from notebook 05's script for
# DDP. The network is a plain MLP now, because PyTorch's two styles cut linear layers and embeddings, not convolutions:

# %%
take_home.diff("ddp.py", "tensor_parallel.py")

# %%
launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", 2]
options = ["--data", MNIST, "--images", sizes.sweep_samples or 60_000, "--epochs", 1, "--out", folder / "mlp.pt"]
scripts.run(*launch, SCRIPTS / "tensor_parallel.py", *options, timeout_s=sizes.timeout_s)

# %% [markdown]
# All ranks read the same images and run the same tests. Only `get_state_dict` knows that there are parts, and puts them
# together for the checkpoint.
#
# ## Data and tensors: a mesh
#
# You have 64 GPUs, 8 to a node. Would you cut every layer into 64 parts? Then every allreduce would cross the slow network, with
# little to compute in between. So people arrange the ranks in a *mesh*, in rows and columns. The ranks of a row share one copy
# of the model, as above. The ranks of a column hold the same part of different copies, so they average gradients, as in DDP.
#
# In MPI, each row and each column is a communicator of its own, which `Split` makes. Try every mesh that these ranks allow:


# %%
# %%ranks
def on_mesh(data, tensor, steps=3):
    """Train on data × tensor ranks: what a rank sent in each dimension, per step, what it held, and the model."""
    row, column = CountingComm(comm.Split(rank // tensor)), CountingComm(comm.Split(rank % tensor))
    model = cut_model(network(), row)
    for block in model[1:-1]:
        cut.sum_once(block.attention, row)  # query, key and value share an allreduce: see "three sums or one" below

    def average(model):  # over the copies of this part
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        nn.utils.vector_to_parameters(allreduce(column, flat) / data, [p.grad for p in model.parameters()])

    optimizer = train(model, steps, rows=slice(column.rank, None, data), after_backward=average)
    sent = {"tensor": row.bytes_sent / steps, "data": column.bytes_sent / steps}
    return sent, sum(memory.live_bytes(model, optimizer).values()), model


# %%
# %%ranks --timeout 240
alone, rows_of_table = network(), []
train(alone, 3)
images, labels = batch(9)
for tensor in [t for t in (1, 2, 4) if size % t == 0]:
    data = size // tensor
    sent, states, model = on_mesh(data, tensor)
    numbers = sum(p.numel() for p in model.parameters())
    logits, activations = memory.kept_for_backward(partial(model, images[::data]), model)
    row = {"mesh, data × tensor": f"{data} × {tensor}", "tensor: bytes": sent["tensor"]}
    row["tensor: formula"] = (
        3 * 4 * 2 * (tensor - 1) / tensor * 64 // data * 25 * 64 * 4
    )  # blocks, allreduces, ring, tokens
    row |= {"data: bytes": sent["data"], "data: formula": 2 * (data - 1) / data * 4 * numbers}
    row |= {"states, MiB": states / 2**20, "activations, MiB": activations / 2**20}
    rows_of_table.append(row | {"differs by": largest([logits], [alone(images[::data])])})

# %%
table = pd.DataFrame(team.pull("rows_of_table")[0]).set_index("mesh, data × tensor")
table.style.format("{:,.0f}").format("{:.2f}", subset=["states, MiB", "activations, MiB"]).format(
    "{:.0e}", subset=["differs by"]
)

# %% [markdown]
# Every mesh trains the same network. What the two dimensions send follows two different rules:
#
# - *Tensor* sends activations: two allreduces per block forward and two backward, as large as the tokens of the rank's batch.
# - *Data* sends gradients: one allreduce per step, as large as the rank's part of the model.
#
# And memory? Tensor parallelism shares out the weights, gradients and optimizer's state, and the activations inside a block.
# Data parallelism shares out only the batch.
#
# ## Which dimension goes inside a node?
#
# Now take a model of serious size, and 512 GPUs as 64 × 8. Compute, don't measure:


# %%
blocks, width, tokens, data, tensor = 80, 8192, 4096, 64, 8  # bf16: 2 bytes; 12 width² weights per block
an_allreduce = 2 * (tensor - 1) / tensor * tokens * width * 2 / 1e9
gradients = 2 * (data - 1) / data * blocks * 12 * width**2 / tensor * 2 / 1e9
for m in (1, 8):
    print(f"{m} x {tokens} tokens per step: a rank sends {m * blocks * 4 * an_allreduce:.0f} GB in its row", end="")
    print(f" ({m * blocks * 4:,} allreduces), {gradients:.0f} GB in its column")

# %% [markdown]
# The tensor dimension sends as much as the data dimension, or far more. And *when* can all those bytes travel? Gradients
# travel while backward still computes, as in DDP. But the next layer needs the result of an allreduce of activations, so all
# ranks of the row wait, hundreds of times per step. (Megatron-LM and PyTorch's *async tensor parallelism* hide a part of
# that.) So the tensor dimension belongs inside a node, on the fastest links there are. The data dimension can cross the network.
#
# *Try it:* swap 64 and 8. Then `m = 8` has the same global batch as `m = 1` had before, and each row spans 8 nodes. How many
# gigabytes does a rank send in a row that crosses the slow network?
#
# ## Which one do you need?
#
# The guidelines for scientists that this workshop grew out of (L. Shao et al., below) distinguish three cases. If the model
# fits, use data parallelism. If only the data fits, use model parallelism. If neither fits, combine them. Today you'd decide
# like this:
#
# | case | today | what a rank sends | where |
# |---|---|---|---|
# | The model fits | DDP. With ZeRO or FSDP ([06](06_zero_and_fsdp.ipynb)) "fits" means that a *share* fits | gradients once per step, and for FSDP the weights twice | between nodes, if backward can hide it |
# | One layer, or its activations, is too large; or you have more GPUs than samples in a batch | tensor parallel | tokens, 4 times per block and micro-batch | inside a node |
# | The layers fit one by one, but there are too many, or the network is slow | pipeline parallel (notebook 11b) | tokens, once per cut and direction | between nodes |
# | You want far more weights, but no more work per token | expert parallel, see below | tokens, 4 times per layer of experts | a node, or a fast network |
# | All of it is too large | a mesh: tensors inside a node, then pipeline stages, then data or FSDP | all of the above | each where it fits |
#
# The size of the *data* no longer matters, because each rank reads only what it trains on
# ([09](09_feeding_the_ranks.ipynb)).
#
# ## Deeper: three sums or one
#
# A block should need two allreduces in each direction, one for attention and one for the MLP. Count what yours sends:

# %%
guess = predict("How many allreduces of the tokens does backward send per block?", low=1, high=8)
guess


# %%
# %%ranks
def allreduces(model, counting, step=0):
    """Allreduces per block in forward and in backward, from the bytes that this rank sends."""
    images, labels = batch(step)
    one = 2 * (counting.size - 1) / counting.size * len(images) * 25 * 64 * 4  # ring; images × tokens × width × bytes
    before = counting.bytes_sent
    loss = cross_entropy(model(images), labels)
    between = counting.bytes_sent
    loss.backward()
    return [sent / one / 3 for sent in (between - before, counting.bytes_sent - between)]


# %%
# %%ranks
as_written = allreduces(together, counting)
for block in together[1:-1]:
    cut.sum_once(block.attention, counting)
improved = allreduces(together, counting)

# %%
counted = {"as we wrote it": team.pull("as_written")[0], "summed once": team.pull("improved")[0]}
guess.compare(counted["as we wrote it"][1])
pd.DataFrame(counted, index=["forward", "backward"]).T.style.format("{:.2f}")

# %% [markdown]
# Did you guess two? Each column-parallel layer adds up the gradient of *its* x, and attention has three of them: query, key and
# value. But all three read the same x, so in the end their gradients are added up anyway. You can just as well add the three
# on each rank first, and then allreduce once. That's what `sum_once` does: it moves *f* from the three layers to the front of
# attention.

# %%
print(inspect.getsource(cut.sum_once))

# %% [markdown]
# So a block needs two allreduces forward and two backward. With this cut you can't get by with fewer: after attention come an
# addition and a `LayerNorm`, which need whole tokens.
#
# ## Deeper: the same numbers, the same bytes
#
# Does PyTorch really do what you did? Cut the vision transformer with a plan, over MPI with our process group, so that we can
# count its bytes the same way.

# %%
# %%ranks --timeout 240
import warnings

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from workshop_lib.lessons.mpi_basics.counting import counted

warnings.filterwarnings("ignore", message="Full backward hook")  # CommDebugMode sets one on the images' layer
rendezvous.join_process_group(world.detect(), torch.device("cpu"))
group = rendezvous.join_over_mpi(world.detect(), torch.device("cpu"))
plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
plan |= {"attention.out": RowwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
theirs = network()
for block in theirs[1:-1]:
    parallelize_module(block, DeviceMesh.from_group(group, "cpu"), plan)

# %%
# %%ranks
images, labels = batch(0)
counting = CountingComm(comm)
ours = cut_model(network(), counting)
cross_entropy(ours(images), labels).backward()
with CommDebugMode() as debug, counted(group) as sent:
    cross_entropy(theirs(images), labels).backward()
if rank == 0:
    local = [p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad for p in theirs.parameters()]
    print(f"gradients differ by {largest([p.grad for p in ours.parameters()], local):.0e}")
    print(f"PyTorch's own count: {debug.get_total_counts()} collectives in 3 blocks")
    print(f"bytes sent per rank: ours {counting.bytes_sent:,}, PyTorch's {sent.messages.bytes_sent:,}")

# %% [markdown]
# Same numbers, same bytes. And PyTorch's plan has the same flaw as our first version: query, key and value each sum their
# own gradient, so there are 6 allreduces per block. To get 4, add
# `"attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())` to the plan. It does for DTensors
# what `sum_once` does for ours. Many models make a single layer of the three instead.
#
# Two things need care in a network of your own. Dropout has to drop the same numbers on all ranks where tokens are whole, but
# different ones where they're cut. And if you clip gradients, their norm has to count the cut weights of all ranks, and the
# whole ones only once.
#
# Where did plans and meshes come from? The guidelines recommend Mesh-TensorFlow. In 2018 it introduced meshes and tensors with
# *named* dimensions, and rules that say which dimension of a tensor goes along which dimension of the mesh. A layout changes the
# speed but never the result. You'll rarely meet it today, but its idea is everywhere. GShard and GSPMD moved it into the XLA
# compiler, which works out the collectives. That's how JAX does it, with `Mesh` and `PartitionSpec`. PyTorch's `DeviceMesh` and
# DTensor work this way without a compiler.
#
# ## Deeper: sequence parallelism
#
# Between attention and the MLP, every rank still holds every token in full, and computes the same norms and sums. That's
# wasted work, and wasted memory. These parts treat each token alone. So let each rank do them for *its* tokens only.
#
# Then *f* has to gather the tokens, and *g* has to add up the parts and hand each rank its tokens. That's an allgather and a
# reduce-scatter, the two halves of an allreduce ([06](06_zero_and_fsdp.ipynb)):
#
# | | forward | backward |
# |---|---|---|
# | f | allgather of tokens | ? |
# | g | reduce-scatter of tokens | ? |
#
# ### Exercise 4 (normal): the two operations
#
# With `TokenParallel` your ranks share out the tokens between layers. Write `enter`, which is f, and `leave`, which is g. Tokens
# are dimension 1 of `[images, tokens, width]`. You have `allgather(comm, tensor, dim)` and `reduce_scatter(comm, tensor, dim)`.
#
# <details><summary>Hint</summary>
#
# Each token went to all ranks in `enter`. So its gradient is a sum over the ranks, but a rank needs it only for its own tokens.
# `leave` is the mirror image.
#
# </details><details><summary>Solution</summary>
#
# {solution of TokenParallel.enter}
# {solution of TokenParallel.leave}
#
# </details>


# %%
class TokenParallel:
    """Where tokens are cut among ranks, and where each rank sees all of them."""

    def __init__(self, comm):
        self.gather = partial(allgather, comm, dim=1)
        self.scatter_sums = partial(reduce_scatter, comm, dim=1)

    def enter(self, x):
        """This rank's tokens [n, t / p, w] become all tokens [n, t, w]."""
        # <solution>
        return both_ways(x, forward=self.gather, backward=self.scatter_sums)
        # <stub>
        # raise NotImplementedError("your code here: both_ways(x, forward=..., backward=...)")
        # </stub>
        # </solution>

    def leave(self, parts):
        """Parts of sums for all tokens [n, t, w] become whole sums for this rank's tokens [n, t / p, w]."""
        # <solution>
        return both_ways(parts, forward=self.scatter_sums, backward=self.gather)
        # <stub>
        # raise NotImplementedError("your code here: both_ways(parts, forward=..., backward=...)")
        # </stub>
        # </solution>


# %%
cut_blocks.TokenParallel(TokenParallel)

# %% [markdown]
# Now build a block with it. Our images have 25 tokens, which neither 2 nor 4 divides, so leave out the last one. One thing
# is new: norms, and the biases after `leave`, see only this rank's tokens. So their gradients are parts of sums, too, and need
# an allreduce at the end. They're small.

# %%
team.push(TokenParallel=judge.own_or_library(TokenParallel, cut.TokenParallel))


# %%
# %%ranks
class RowOfTokens(RowParallel):
    """A row-parallel layer that leaves each rank its own tokens."""

    def forward(self, x):
        return self.leave(linear(x, self.weight)) + self.bias


def share_tokens(block, comm):
    """Cut a block by heads inside attention and the MLP, and by tokens everywhere else."""
    cut_block(block, partial(ColumnParallel, comm=comm), partial(RowOfTokens, comm=comm))
    tokens = TokenParallel(comm)
    block.attention.out.leave = block.mlp.down.leave = tokens.leave
    for part, layers in ((block.attention, ("query", "key", "value")), (block.mlp, ("up",))):
        for name in layers:
            getattr(part, name).comm = MPI.COMM_SELF  # the sum in backward is `enter`'s now
        part.register_forward_pre_hook(lambda _, inputs: tokens.enter(inputs[0]))
    return [*block.norm_1.parameters(), *block.norm_2.parameters(), block.attention.out.bias, block.mlp.down.bias]


# %%
# %%ranks
model, images = network(), batch(0)[0]
tokens = model[0](images)[:, :24].detach()
ways = {}
for way in ("nothing", "tensors", "tensors and tokens"):
    block, counting, partly = network()[1], CountingComm(comm), []
    mine = slice(None)
    if way == "tensors":
        cut_block(block, partial(ColumnParallel, comm=counting), partial(RowParallel, comm=counting))
        cut.sum_once(block.attention, counting)
    elif way == "tensors and tokens":
        partly, mine = share_tokens(block, counting), ring.part(24, rank, size)
    x = tokens[:, mine].clone().requires_grad_()
    output, activations = memory.kept_for_backward(partial(block, x), block)
    output.square().sum().backward()
    sent = counting.bytes_sent
    for p in partly:
        p.grad = allreduce(counting, p.grad)
    ways[way] = output, x.grad, block.norm_1.weight.grad, sent, activations, counting.bytes_sent - sent, mine

# %%
# %%ranks
whole, rows_of_table = ways["nothing"], []
for way, (output, gradient, norm, sent, activations, small, mine) in ways.items():
    expected = whole[0][:, mine], whole[1][:, mine], whole[2]
    row = {"what is cut": way, "differs by": largest([output, gradient, norm], expected), "bytes sent": sent}
    rows_of_table.append(row | {"for norms and biases": small, "activations, MiB": activations / 2**20})

# %%
table = pd.DataFrame(team.pull("rows_of_table")[0]).set_index("what is cut")
table.style.format("{:,.0f}").format("{:.0e}", subset=["differs by"]).format("{:.2f}", subset=["activations, MiB"])

# %% [markdown]
# An allgather and a reduce-scatter together send as much as one allreduce, so the bytes are the same. But each rank keeps less
# for backward, and no token goes through a norm on two ranks. Megatron-LM calls this *sequence parallelism*, and goes one step
# further. Our layers keep all the tokens that *f* gathered. Megatron keeps only the rank's own, and gathers the rest again in
# backward, while it computes. In PyTorch's plan, the norms get `SequenceParallel()`, `out` and `down` get
# `RowwiseParallel(output_layouts=Shard(1))`, and `PrepareModuleInput` gathers the tokens for attention and the MLP.
#
# (*Context parallelism* is something else. There, attention is shared out by tokens, too, for sequences whose activations don't fit
# although the ranks share out all heads. Notebook [11c](11c_context_parallelism.ipynb) is about it.)
#
# ## Deeper: experts
#
# Each token goes through all weights of an MLP. What if you had eight MLPs, the *experts*, and each token went through only one
# of them? You'd have eight times the weights for nearly the same amount of computation. A small *router* picks the expert.
# That's a *mixture of experts*. Put the experts on different ranks, and tokens have to travel: to the rank of their expert,
# and back. Every rank sends something different to every other, so that's an all-to-all.
#
# `forward` sorts the tokens by expert and sends them off. In `through_mine`, the tokens that arrive go through this rank's
# experts. Then `forward` sends the results back and restores the old order. Gradients take the same route in reverse: in
# backward, what went *there* comes *back*.


# %%
# %%ranks
class Experts(nn.Module):
    def __init__(self, width, experts, comm):
        super().__init__()
        torch.manual_seed(2)
        self.comm, self.router = comm, nn.Linear(width, experts, bias=False)
        every = [vit.Mlp(width) for _ in range(experts)]
        self.first = experts * comm.rank // comm.size
        self.mine = nn.ModuleList(every[ring.part(experts, comm.rank, comm.size)])

    def forward(self, x):  # [n, t, w], of this rank's own images
        tokens = x.flatten(0, 1)  # [m, w]
        share, self.chosen = self.router(tokens).softmax(1).max(1)  # [m]: how sure, and which expert
        order = self.chosen.argsort(stable=True)  # by expert, so by rank
        self.going = going = (self.chosen // len(self.mine)).bincount(minlength=self.comm.size).tolist()
        self.coming = coming = counts_from_all(self.comm, going)
        there = partial(alltoall, self.comm, counts=going, counts_in=coming)
        back = partial(alltoall, self.comm, counts=coming, counts_in=going)
        arrived = both_ways(tokens[order], forward=there, backward=back)
        outputs = self.through_mine(arrived, there(self.chosen[order]) - self.first)
        home = both_ways(outputs, forward=back, backward=there)[order.argsort()]
        return (home * share[:, None]).view_as(x)

    def through_mine(self, tokens, expert_of):
        places = [(expert_of == at).nonzero().flatten() for at in range(len(self.mine))]
        outputs = [expert(tokens[place]) for expert, place in zip(self.mine, places, strict=True)]
        return torch.cat(outputs)[torch.cat(places).argsort()]


# %% [markdown]
# The rest of the network is data parallel: every rank has its own images. So gradients are averaged, as in DDP, with one
# exception. An expert gets tokens from *all* ranks, so backward has already added up its gradient. You only have to divide it
# by the number of ranks. Is that what one process with all experts gets?

# %%
# %%ranks
EXPERTS = 8


def with_experts(comm):
    model = network()
    model[2].mlp = Experts(64, EXPERTS, comm)
    return model


def average(model, comm=comm):
    """The mean gradient over the ranks; an expert's is there already, but as a sum."""
    own = {p for expert in model[2].mlp.mine for p in expert.parameters()}
    for p in model.parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad  # an expert that nobody has asked
        p.grad = (grad if p in own else allreduce(comm, grad)) / comm.size


# %%
# %%ranks --timeout 240
counting = CountingComm(comm)
alone, together = with_experts(MPI.COMM_SELF), with_experts(counting)
train(alone, 3, after_backward=partial(average, comm=MPI.COMM_SELF))
train(together, 3, rows=slice(rank, None, size), after_backward=average)
part = [p for expert in alone[2].mlp.mine[ring.part(EXPERTS, rank, size)] for p in expert.parameters()]
mine = list(together[2].mlp.mine.parameters())
print(f"my experts differ from one process's by {largest(mine, part):.0e}")
with torch.no_grad():
    images, _ = batch(3, slice(rank, None, size))
    before = counting.bytes_sent
    logits = together(images)
leave, visit = (sum(counts) - counts[rank] for counts in (together[2].mlp.going, together[2].mlp.coming))
formula = leave * (64 * 4 + 8) + visit * 64 * 4 + (size - 1) * size * 8
print(f"{leave} of {sum(together[2].mlp.going)} tokens leave, {visit} visit: ", end="")
print(f"{counting.bytes_sent - before:,} bytes sent in forward, {formula:,} by the formula")

# %% [markdown]
# For each token that leaves, a rank sends its $w$ numbers, plus 8 bytes that say which expert it wants. And for each visitor
# it sends $w$ numbers home. (A few more bytes say how many are coming.) Backward sends both again, the other way. If the
# router were fair, $(p-1)/p$ of the tokens would leave.
#
# But do they spread evenly? Nobody told the router to be fair. And every rank waits for the busiest one. Look at the load after
# a little training, and after the same training with a small *balancing loss*: the number of experts times
# $\sum_e f_e P_e$, where $f_e$ is the share of tokens that expert $e$ gets and $P_e$ is the mean probability that the router
# gives it.


# %%
# %%ranks --timeout 240
def load_after(steps, weight):
    """Tokens per expert, over all ranks, after training with this much balancing loss."""
    model = with_experts(comm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    routed = {}
    model[2].mlp.router.register_forward_hook(lambda _, inputs, scores: routed.update(scores=scores))
    for step in range(steps):
        images, labels = batch(step, slice(rank, None, size))
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        shares_of = model[2].mlp.chosen.bincount(minlength=EXPERTS) / len(model[2].mlp.chosen)
        balance = EXPERTS * (shares_of * routed["scores"].softmax(1).mean(0)).sum()
        (loss + weight * balance).backward()
        average(model)
        optimizer.step()
    load = model[2].mlp.chosen.bincount(minlength=EXPERTS)
    return allreduce(comm, load).tolist()


loads = {"free": load_after(steps, 0.0), "with balancing loss": load_after(steps, 0.1)}

# %%
figures.expert_load(team.pull("loads")[0], team.n)

# %% [markdown]
# The busiest rank sets the pace. After so few steps a small balancing loss can't do much yet. Real systems train with one for much
# longer. Some also give each expert a fixed *capacity* and drop any tokens beyond that, or adjust the router's bias as they
# go.
#
# *Try it:* train for more steps, or with a weight of 1 instead of 0.1. What happens to the load, and to the network's loss?
#
# ## Remember
#
# - Cut the first layer of a pair by columns and the second by rows. Then nothing is sent in between, and a pair needs one
#   allreduce in forward and one in backward.
# - Autograd sees only one rank, so you tell it what crosses in backward. If all ranks read a tensor, its gradient is the *sum*
#   of theirs. After an allreduce in forward, backward sends nothing.
# - Attention is cut by whole heads, so the number of heads limits the number of ranks.
# - Tensor parallelism sends activations, and everyone waits, so it stays inside a node. Data parallelism sends gradients, once
#   per step, in the background.
#
# Next: notebook 11b, on pipelines, gives each rank a few whole layers, and keeps all of them busy.
#
# **Take it home:** [scripts/tensor_parallel.py](scripts/tensor_parallel.py).
#
# **Sources.** M. Shoeybi et al., [*Megatron-LM*](https://arxiv.org/abs/1909.08053), for column and row, f and g. D. Narayanan et
# al., [*Efficient Large-Scale Language Model Training on GPU Clusters*](https://arxiv.org/abs/2104.04473), for where each
# dimension belongs. V. Korthikanti et al., [*Reducing Activation Recomputation in Large Transformer
# Models*](https://arxiv.org/abs/2205.05198), for sequence parallelism. N. Shazeer et al.,
# [*Mesh-TensorFlow*](https://arxiv.org/abs/1811.02084); D. Lepikhin et al., [*GShard*](https://arxiv.org/abs/2006.16668); Y. Xu
# et al., [*GSPMD*](https://arxiv.org/abs/2105.04663); and PyTorch's [proposal of
# DTensor](https://github.com/pytorch/pytorch/issues/88838). W. Fedus, B. Zoph and N. Shazeer, [*Switch
# Transformers*](https://arxiv.org/abs/2101.03961), for one expert per token and the balancing loss. L. Shao, V. Lee, T. Kurth, M.
# Mustafa and Prabhat, *Distributed Training*, guidelines of the Big Data Center collaboration. PyTorch's documentation of [tensor
# parallelism](https://pytorch.org/docs/stable/distributed.tensor.parallel.html).

# %%
ranks.stop()
