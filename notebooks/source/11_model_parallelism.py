# %% [markdown] track="large models"
# # Model parallelism: one layer on several ranks
#
# FSDP shares out the memory of a model, but each rank still computes every layer as a whole. What do you do when a single
# layer, or what it computes, is too large for a GPU? Several ranks have to compute that layer *together*. Where would
# you cut it, so that they have little to send each other?
#
# **You will** cut linear layers in two ways, work out what has to be sent in the forward and in the backward pass, and build a
# whole transformer block from them. You'll train it on MNIST, check it against one process, and count every byte. Then you'll
# share out the tokens, too, and decide which ranks of a mesh should share a layer.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebooks
# [02](02_synchronous_sgd.ipynb) and [06](06_zero_and_fsdp.ipynb) first.

# %%
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import gelu, linear

from workshop_lib import picture, predict, ranks, take_home, vit

from lessons import model_parallelism as lesson

# The ranks take turns if there are more of them than cores. That's slow, but this
# notebook counts bytes, not seconds.
team = ranks.start(4)
team

# %% [markdown]
# ## Where to cut
#
# A *transformer* works on *tokens*, vectors of one width. Ours cuts an image into 25 *patches* and turns each of them into a token
# of 64 numbers. Then come a few *blocks*, all built alike. In each, *attention* first lets the tokens look at each other, in
# several *heads* with queries, keys and values of their own. Then an *MLP* works on each token alone: `up` makes it four times as
# wide, `gelu` changes each number by itself, and `down` makes it as wide as before. Cut the MLP in two, in one process for now:

# %%
torch.manual_seed(1)
x = torch.randn(25, 64)  # 25 tokens of 64 numbers
mlp = vit.Mlp(64)
up, down = mlp.up, mlp.down  # 64 to 256 numbers, and back
parts = []
for rank in range(2):
    mine = slice(128 * rank, 128 * (rank + 1))
    # Half of the hidden activations, from the whole x
    hidden = gelu(linear(x, up.weight[mine], up.bias[mine]))
    parts.append(linear(hidden, down.weight[:, mine]))  # what they add to every output
together = sum(parts) + down.bias
print(f"largest difference to the whole MLP: {(together - mlp(x)).abs().max():.0e}")

# %% [markdown]
# `up` is cut by its outputs, and `down` by its inputs. So the half of the *hidden activations* that a rank computes is exactly the
# half that its part of `down` needs, and nothing has to be sent in between. Each rank ends up with *part of the sum* for every
# output, and one allreduce adds up the parts.

# %%
picture("mlp_in_parts")

# %% [markdown]
# The first kind is called *column-parallel* and the second *row-parallel*, after the columns and rows of $A$ in $y = xA$. But
# `nn.Linear` stores the transpose, a weight of shape `[outputs, inputs]`.
#
# Why not rows first? Then each rank would have a part of each sum *before* `gelu`, and `gelu` of a sum isn't the sum of the
# `gelu`s.
#
# ## And backward?
#
# Autograd knows nothing about other ranks, so you have to say what crosses between them in the backward pass.
# `lesson.both_ways(x, forward, backward)` applies one function to a tensor in the forward pass, and another one to its gradient in the
# backward pass.
#
# Megatron-LM, where this comes from, has an operation at each end of such a pair, *f* and *g*. What do they send backward?
#
# | | forward | backward |
# |---|---|---|
# | f, at the entrance: all ranks read the same x | nothing | ? |
# | g, at the exit: every rank gets the whole sum | allreduce | ? |

# %%
guess = predict(
    "How many allreduces do f and g send in the backward pass, together?", low=0, high=4
)
guess

# %% [markdown]
# ## Exercise 1 (normal): a column-parallel layer
#
# With `ColumnParallel(layer, comm)` your ranks divide the outputs of a linear layer among them. Every rank passes in the same
# x, and gets the outputs of its part.
#
# `lesson.shard(tensor, dim, comm)` makes a parameter with this rank's part of a tensor along a dimension, or returns None if there's
# no tensor. `lesson.allreduce(comm, tensor)` returns the sum over the ranks as a new tensor, and `lesson.same(tensor)` returns the tensor as
# it is.
#
# <details><summary>Hint 1: which parts?</summary>
#
# The weight has the shape `[outputs, inputs]`, and there's one number in the bias for each output.
#
# </details><details><summary>Hint 2: the backward pass</summary>
#
# x has an effect on the outputs of all ranks, but autograd sees only yours.
#
# </details><details><summary>Hint 3: the pieces</summary>
#
# `partial(lesson.allreduce, self.comm)` is a function of one tensor. So forward starts with
# `x = lesson.both_ways(x, forward=lesson.same, backward=partial(lesson.allreduce, self.comm))`, and then it's `linear(x, self.weight, self.bias)`.
#
# </details><details><summary>Solution</summary>
#
# {solution of ColumnParallel.__init__}
# {solution of ColumnParallel.forward}
#
# </details>


# %%
class ColumnParallel(nn.Module):
    """A linear layer whose outputs are shared out.

    Every rank reads the same x, and rank r has the r-th part of the outputs.
    """

    def __init__(self, layer, comm):
        super().__init__()
        self.comm = comm
        # <solution>
        self.weight = lesson.shard(layer.weight, 0, comm)
        self.bias = lesson.shard(layer.bias, 0, comm)
        # <stub>
        # raise NotImplementedError("your code here: self.weight and self.bias")
        # </stub>
        # </solution>

    def forward(self, x):
        # <solution>
        x = lesson.both_ways(
            x, forward=lesson.same, backward=partial(lesson.allreduce, self.comm)
        )
        return linear(x, self.weight, self.bias)
        # <stub>
        # # linear(...) of x, which needs help on its way back
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>


# %%
lesson.check.ColumnParallel(ColumnParallel)

# %% [markdown]
# ## Exercise 2 (warm-up): a row-parallel layer
#
# `RowParallel(layer, comm)` takes over where the first one ends. Rank r passes in the r-th part of the inputs, and all ranks
# get the same outputs. Only the weight is cut here. What about the bias?
#
# <details><summary>Hint 1: the bias</summary>
#
# It belongs to the outputs, and these are whole on every rank: `nn.Parameter(layer.bias.detach().clone())`. If each rank added
# it to its part of the sum, how many times would the sum contain it?
#
# </details><details><summary>Hint 2: the backward pass</summary>
#
# After the allreduce all ranks hold the same output and do the same with it. So each gets the whole gradient anyway. If you
# added these gradients up again, they'd be too large.
#
# </details><details><summary>Solution</summary>
#
# {solution of RowParallel.__init__}
# {solution of RowParallel.forward}
#
# </details>


# %%
class RowParallel(nn.Module):
    """A linear layer whose inputs are shared out.

    Rank r passes the r-th part, and every rank has the same outputs.
    """

    def __init__(self, layer, comm):
        super().__init__()
        self.comm = comm
        # <solution>
        self.weight = lesson.shard(layer.weight, 1, comm)
        self.bias = nn.Parameter(layer.bias.detach().clone())
        # <stub>
        # raise NotImplementedError("your code here: self.weight and self.bias")
        # </stub>
        # </solution>

    def forward(self, x):
        # <solution>
        part = linear(x, self.weight)
        whole = lesson.both_ways(
            part, forward=partial(lesson.allreduce, self.comm), backward=lesson.same
        )
        return whole + self.bias
        # <stub>
        # # linear(...) without a bias, a sum over ranks, and the bias
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>


# %%
lesson.check.RowParallel(RowParallel)

# %% [markdown]
# Put the two together, and you have an MLP on several ranks. How far is it from one process, and what does it send?

# %%
team.push(
    ColumnParallel=lesson.check.written(ColumnParallel),
    RowParallel=lesson.check.written(RowParallel),
)

# %%
# %%ranks
from functools import partial

import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy

from workshop_lib import vit

from lessons import model_parallelism as lesson

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

torch.manual_seed(1)
whole, x = vit.Mlp(64), torch.randn(64, 25, 64)  # 64 images of 25 tokens
counting = lesson.CountingComm(comm)
mine = nn.Sequential(
    ColumnParallel(whole.up, counting), nn.GELU(), RowParallel(whole.down, counting)
)
inputs = [x.clone().requires_grad_() for _ in range(2)]
outputs = mine(inputs[0]), whole(inputs[1])
forward_bytes = counting.bytes_sent
for output in outputs:
    output.square().sum().backward()
an_allreduce = 2 * (size - 1) / size * x.nbytes
backward_allreduces = (counting.bytes_sent - forward_bytes) / an_allreduce
if rank == 0:
    print(
        f"outputs differ by {lesson.study.largest([outputs[0]], [outputs[1]]):.0e}",
        end=", ",
    )
    print(
        "gradients of x by "
        f"{lesson.study.largest([inputs[0].grad], [inputs[1].grad]):.0e}"
    )
    print(f"forward sends {forward_bytes / an_allreduce:.2f} allreduces of x", end=", ")
    print(f"backward {backward_allreduces:.2f}")

# %%
guess.compare(team.pull("backward_allreduces")[0])

# %% [markdown]
# A pair of layers costs one allreduce in each direction: backward, the one of *f*. After the allreduce of *g*, every rank
# already has the whole gradient of the output. These allreduces carry *activations*. They grow with your batch, but not with
# the hidden width, because the hidden activations never travel.
#
# *Break it:* leave out the allreduce in your backward pass. Which weights of a network get wrong gradients then, those of this
# layer or those before it?
#
# ## Exercise 3 (warm-up): heads on ranks
#
# Attention has four linear layers, `query`, `key`, `value` and `out`. Before `out`, each *head* works alone, with its own
# queries, keys and values. So heads are a natural cut. In our `Attention`, the first rows of `query.weight` make the first
# head, the next rows the second, and so on.
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
    """Replace a block's linear layers by column(layer) or row(layer).

    A rank then has whole heads.
    """
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
lesson.check.cut_block(cut_block)

# %% [markdown]
# Each rank needs at least one whole head, so the number of heads limits the number of ranks. In most models of today, several
# heads of queries share the keys and values of one *KV head*, and with more ranks than KV heads, ranks repeat each other's work.
#
# ## Train it
#
# In data parallelism each rank had its own images. Here all ranks must have the same ones, because together they are one network.
# For comparison, every rank also trains a whole network alone. (Query, key and value read the same x. `sum_once` lets *f* send
# one allreduce for all three, as a *Deeper* section shows.)

# %%
team.push(cut_block=lesson.check.written(cut_block))


# %%
# %%ranks
def cut_model(comm):
    model = lesson.study.network()  # 3 blocks, 4 heads, 25 tokens of 64 numbers
    # All but the patches at the start and the logits at the end
    for block in model[1:-1]:
        cut_block(
            block, partial(ColumnParallel, comm=comm), partial(RowParallel, comm=comm)
        )
    return model


def cut_model_once(comm):
    model = cut_model(comm)
    for block in model[1:-1]:
        lesson.cut.sum_once(block.attention, comm)
    return model


alone, together = lesson.study.network(), cut_model_once(comm)
lesson.study.train(alone, steps=5)
lesson.study.train(together, steps=5)
parameters = [
    sum(p.numel() for p in network.parameters()) for network in (together, alone)
]
held = parameters[0] / parameters[1]
images, labels = lesson.study.batch(5)  # which they haven't seen
with torch.no_grad():
    logits, expected = together(images), alone(images)
if rank == 0:
    print(
        f"after 5 steps, the loss on new images is {cross_entropy(logits, labels):.3f}"
    )
    print(
        f"each of {size} ranks holds {held:.0%} of the parameters, "
        f"and the logits differ by {lesson.study.largest([logits], [expected]):.0e}"
    )

# %% [markdown]
# The two networks are the same except for rounding. A rank holds a bit more than a quarter of the parameters, since patches,
# norms, logits and two biases per block aren't cut. Every rank computes these for itself, and gets the same gradients.
#
# ## Sequence parallelism: share out the tokens, too
#
# Between attention and the MLP, every rank still keeps every token in full, and computes the same norms and sums. But these
# parts treat each token alone, so let each rank do them for *its* tokens only. Then *f* has to gather the tokens, and *g* has
# to add up the parts and hand each rank its tokens. That's an allgather and a reduce-scatter, the two halves of an allreduce
# ([06](06_zero_and_fsdp.ipynb)). And in the backward pass?
#
# ### Exercise 4 (normal): the two operations
#
# With `TokenParallel` your ranks divide the tokens among them between layers. Write `enter`, which is f, and `leave`, which is
# g. Tokens are dimension 1 of `[images, tokens, width]`. You have `lesson.allgather(comm, tensor, dim)` and `lesson.reduce_scatter(comm,
# tensor, dim)`.
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
        self.gather = partial(lesson.allgather, comm, dim=1)
        self.scatter_sums = partial(lesson.reduce_scatter, comm, dim=1)

    def enter(self, x):
        """This rank's tokens [n, t / p, w] become all tokens [n, t, w]."""
        # <solution>
        return lesson.both_ways(x, forward=self.gather, backward=self.scatter_sums)
        # <stub>
        # # lesson.both_ways(x, forward=..., backward=...)
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>

    def leave(self, parts):
        """Parts of sums [n, t, w] become whole sums of its tokens [n, t / p, w]."""
        # <solution>
        return lesson.both_ways(parts, forward=self.scatter_sums, backward=self.gather)
        # <stub>
        # # lesson.both_ways(parts, forward=..., backward=...)
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>


# %%
lesson.check.TokenParallel(TokenParallel)

# %% [markdown]
# Now compare a block that is whole, one cut by tensors, and one cut by tensors and tokens. One thing is new: norms, and the
# biases after `leave`, see only this rank's tokens. So their small gradients are parts of sums, too, and need an allreduce at
# the end.

# %%
team.push(TokenParallel=lesson.check.written(TokenParallel))

# %%
# %%ranks
ways = lesson.study.ways_to_cut(ColumnParallel, RowParallel, TokenParallel, comm)

# %%
columns = ["what is cut", "differs by", "bytes sent", "for norms and biases"]
columns += ["bytes kept for the backward pass"]
table = pd.DataFrame(team.pull("ways")[0], columns=columns).set_index("what is cut")
table.style.format("{:,.0f}").format("{:.0e}", subset=["differs by"])

# %% [markdown]
# An allgather and a reduce-scatter together send as much as one allreduce, so the bytes are the same. But each rank keeps less
# for the backward pass, and no token goes through a norm on two ranks. This is *sequence parallelism*, and Megatron-LM and
# torchtitan usually run tensor parallelism with it.
#
# ## Data and tensors: a mesh
#
# You have 64 GPUs, 8 to a node. Would you cut every layer into 64 parts? Then every allreduce would cross the slow network, with
# little to compute in between. So people arrange the ranks in a *mesh*. The ranks of a *tensor group* share one copy of the model,
# as above. The ranks of a *data group* hold the same part of different copies, so they average gradients, as in DDP.
#
# The two dimensions save different memory, and send different things:
#
# - *Tensor* cuts weights, gradients, optimizer state, and the activations inside attention and inside the MLP. It sends the
#   activations between these: two allreduces per block forward and two backward, each as large as all tokens of the group's images.
# - *Data* cuts the batch, so all activations, but no weights. It sends gradients, as large as the rank's part of the model.
#
# ## Which dimension goes inside a node?
#
# How many bytes are that for a model with 64 billion weights on 512 GPUs, in 64 tensor groups of 8?


# %%
blocks = 80
width = 8192
tokens = 8 * 4096  # 8 sequences of 4,096 tokens per tensor group
data = 64
tensor = 8
token_gb = tokens * width * 2 / 1e9  # bf16: 2 bytes per number
gradient_gb = blocks * 12 * width**2 / tensor * 2 / 1e9  # 12 width² weights per block
print(
    f"a rank sends {4 * blocks * 2 * (tensor - 1) / tensor * token_gb:.0f} GB "
    "per step for tensors",
    end=", ",
)
print(
    f"in {4 * blocks} allreduces, "
    f"and {2 * (data - 1) / data * gradient_gb:.0f} GB for data"
)

# %% [markdown]
# With 8 sequences per group, the tensor dimension sends nearly ten times as much as the data dimension. With one, it would send
# about as much. What decides is *when* the bytes can travel. Gradients can travel in buckets while the backward pass is
# running, as in DDP. But the next layer needs the result of an allreduce of activations, so all ranks of the group wait,
# hundreds of times per step. So the tensor dimension stays inside an NVLink domain, usually a node, or a rack of 72 GPUs. The data
# dimension can cross the network.
#
# *Try it:* swap 64 and 8, with 64 sequences per group, so that the global batch is the same. How many gigabytes does a rank send
# in its tensor group, which now spans 8 nodes?
#
# ## Which one do you need?
#
# [06](06_zero_and_fsdp.ipynb) says when DDP or FSDP is enough. If neither is:
#
# | case | use | what a rank sends | where |
# |---|---|---|---|
# | One layer, or its activations, is too large; or you have more GPUs than samples in a batch | tensor parallel | 4 allreduces of the tokens per block: on 8 ranks, 7 times the tokens | inside an NVLink domain |
# | The layers fit one by one, but there are too many, or the network is slow | pipeline parallel ([11b](11b_pipelines.ipynb)) | tokens, once per cut and direction | between nodes |
# | The sequence is so long that its activations don't fit | context parallel ([11c](11c_context_parallelism.ipynb)) | keys and values, in attention only | a node, or a fast network |
# | You want far more weights, but no more work per token | expert parallel ([11d](11d_experts.ipynb)) | tokens, to their experts and back | a node, or a fast network |
# | All of it is too large | a mesh: tensors inside an NVLink domain, then pipeline stages, then data or FSDP | all of the above | each where it fits |
#
# ## Deeper: three sums or one
#
# A block should need two allreduces in each direction, one for attention and one for the MLP. Count them without `sum_once`:

# %%
guess = predict(
    "How many allreduces of the tokens does the backward pass send per block?",
    low=1,
    high=8,
)
guess

# %%
# %%ranks
counting = lesson.CountingComm(comm)
model = cut_model(counting)
as_written = lesson.study.allreduces(model, counting)
for block in model[1:-1]:
    lesson.cut.sum_once(block.attention, counting)
summed_once = lesson.study.allreduces(model, counting)

# %%
counted = {
    "as we wrote it": team.pull("as_written")[0],
    "summed once": team.pull("summed_once")[0],
}
guess.compare(counted["as we wrote it"][1])
pd.DataFrame(counted, index=["forward", "backward"]).T.style.format("{:.2f}")

# %% [markdown]
# Did you guess two? Each column-parallel layer adds up the gradient of *its* x, and attention has three of them. But these three
# read the same x. So you can just as well add their gradients on each rank first, and then allreduce once. `sum_once` does that by
# moving *f* to the front of attention:

# %%
import inspect

print(inspect.getsource(lesson.cut.sum_once))

# %% [markdown]
# Now a block sends two allreduces forward and two backward.
#
# ## Deeper: every mesh of four ranks
#
# In MPI, all ranks call `comm.Split(number)`, and those that pass the same number get a communicator of their own. Here
# `rank // tensor` is the number of the tensor group, and `rank % tensor` that of the data group. Try every mesh of four ranks, and
# compare the bytes with the formulas:


# %%
# %%ranks
def on_mesh(data, tensor, steps=3):
    """Train on data × tensor ranks.

    Returns the model, and the bytes that a rank sent per step in its tensor group and
    in its data group.
    """
    tensor_group = lesson.CountingComm(comm.Split(rank // tensor))
    data_group = lesson.CountingComm(comm.Split(rank % tensor))
    model = cut_model_once(tensor_group)

    def average(model):  # over the copies of this part
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        mean = lesson.allreduce(data_group, flat) / data
        nn.utils.vector_to_parameters(mean, [p.grad for p in model.parameters()])

    lesson.study.train(
        model, steps, images=slice(data_group.rank, None, data), after_backward=average
    )
    return model, tensor_group.bytes_sent / steps, data_group.bytes_sent / steps


# %%
# %%ranks --timeout 240
meshes = []
for tensor in (1, 2, 4):
    data = size // tensor
    model, for_tensors, for_data = on_mesh(data, tensor)
    parameters = sum(p.numel() for p in model.parameters())
    allreduces = 3 * 4  # blocks, times two forward and two backward
    token_bytes = 64 // data * 25 * 64 * 4  # images, tokens, width, bytes per number
    tensor_formula = allreduces * 2 * (tensor - 1) / tensor * token_bytes
    data_formula = 2 * (data - 1) / data * 4 * parameters
    row = [f"{data} × {tensor}", for_tensors, tensor_formula]
    meshes.append([*row, for_data, data_formula, parameters])

# %%
columns = ["data × tensor", "tensor group, bytes", "formula"]
columns += ["data group, bytes", "formula ", "parameters"]
table = pd.DataFrame(team.pull("meshes")[0], columns=columns)
table.set_index("data × tensor").style.format("{:,.0f}")

# %% [markdown]
# ## Deeper: PyTorch does the same
#
# With PyTorch you don't write layers. You give `parallelize_module` a *plan*, which says for each layer by name how to cut it.
# The parameters become DTensors, which know how they're laid out, as in FSDP. Here's what changes from notebook 05's script for
# DDP. The network is a plain MLP now, because a plan cuts linear layers and embeddings, not convolutions:

# %%

take_home.diff("ddp.py", "tensor_parallel.py")

# %%
take_home.train("tensor_parallel.py")

# %% [markdown]
# Does PyTorch really do what you did? Cut the vision transformer with a plan, and let PyTorch send over MPI, so that its bytes
# can be counted, too.

# %%
# %%ranks --timeout 240
import warnings

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

# CommDebugMode sets a hook on the images' layer.
warnings.filterwarnings("ignore", message="Full backward hook")
group = lesson.study.process_group_over_mpi()
plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
plan |= {
    "attention.out": RowwiseParallel(),
    "mlp.up": ColwiseParallel(),
    "mlp.down": RowwiseParallel(),
}
theirs = lesson.study.network()
for block in theirs[1:-1]:
    parallelize_module(block, DeviceMesh.from_group(group, "cpu"), plan)

# %%
# %%ranks
images, labels = lesson.study.batch(0)
counting = lesson.CountingComm(comm)
ours = cut_model(counting)
cross_entropy(ours(images), labels).backward()
with CommDebugMode() as debug, lesson.counted(group) as sent:
    cross_entropy(theirs(images), labels).backward()
if rank == 0:
    local = [
        p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
        for p in theirs.parameters()
    ]
    print(
        "gradients differ by "
        f"{lesson.study.largest([p.grad for p in ours.parameters()], local):.0e}"
    )
    print(f"PyTorch's own count: {debug.get_total_counts()} collectives in 3 blocks")
    print(
        f"bytes sent per rank: ours {counting.bytes_sent:,}, "
        f"PyTorch's {sent.messages.bytes_sent:,}"
    )

# %% [markdown]
# Same numbers, same bytes. And PyTorch's plan has the flaw of our first version: query, key and value each sum their
# own gradient, so there are 6 allreduces per block. To get 4, add
# `"attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())` to the plan. Many models make a
# single layer of the three instead. (In JAX, the compiler adds the collectives: [book/jax.md](../book/jax.md) has your two layers
# on a mesh, as a program to copy and run.)
#
# For sequence parallelism, the norms get `SequenceParallel()`, `out` and `down` get `RowwiseParallel(output_layouts=Shard(1))`,
# and `PrepareModuleInput` gathers the tokens. A language model also has its *embeddings* and the layer that computes logits, with
# a row for each word of the vocabulary. Each rank takes some of these words: the embedding gets `RowwiseParallel()`,
# and the layer of the logits `ColwiseParallel()`. Then no rank holds all logits, and within `loss_parallel()`,
# cross-entropy sends three numbers per token instead: the largest logit, the sum of exponentials, and the target's
# logit.
#
# Three things need care in a network of your own.
#
# - *Dropout.* Where every rank holds the same numbers, it has to drop the same ones on all ranks. But inside attention and the
#   MLP, each rank holds its own part and has to draw independently.
# - *Clipping.* The norm of the gradients has to count the cut weights of all ranks, and the whole ones only once.
# - *KV heads.* Llama 3 70B has 64 heads, but only 8 KV heads. So beyond 8 ranks, some compute the same keys and values.
#
# Libraries for large models go two steps further. Our sequence parallelism keeps all the tokens that *f* gathered, and Megatron
# gathers them again in the backward pass. And *asynchronous* tensor parallelism doesn't make everyone wait: it cuts each matrix
# product into pieces, and sends one while it computes the next.
#
# ## Remember
#
# - Cut the first layer of a pair by columns and the second by rows. Then nothing is sent in between, and a pair needs one
#   allreduce in the forward pass and one in the backward pass.
# - Autograd sees only one rank, so you tell it what crosses in the backward pass. If all ranks read a tensor, its gradient is the *sum*
#   of theirs. After an allreduce in the forward pass, the backward pass sends nothing.
# - Attention is cut by whole heads.
# - Between attention and the MLP, share out the tokens: as many bytes, less memory.
# - Tensor parallelism sends activations, and everyone waits, so it stays inside an NVLink domain. Data parallelism sends
#   gradients, once per step, in the background.
#
# Next: [11b](11b_pipelines.ipynb) gives each rank a few whole layers, and keeps all ranks busy.
#
# **Take it home:** [scripts/tensor_parallel.py](scripts/tensor_parallel.py), and `cut_layers` in
# [scripts/trainer.py](scripts/trainer.py), which cuts a whole GPT.
#
# **Sources.** M. Shoeybi et al., [*Megatron-LM*](https://arxiv.org/abs/1909.08053), for column and row, f and g. D. Narayanan
# et al., [*Efficient Large-Scale Language Model Training on GPU Clusters*](https://arxiv.org/abs/2104.04473), for where each
# dimension belongs. V. Korthikanti et al., [*Reducing Activation Recomputation in Large Transformer
# Models*](https://arxiv.org/abs/2205.05198), for sequence parallelism. [*Llama 3*](https://arxiv.org/abs/2407.21783), for its
# heads. PyTorch's documentation of [tensor parallelism](https://pytorch.org/docs/stable/distributed.tensor.parallel.html).

# %%
ranks.stop()
