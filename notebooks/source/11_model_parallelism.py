# %% [markdown] track="large models"
# # Model parallelism: one layer on several ranks
#
# FSDP shares out the memory of a model, but each rank still computes every layer as a whole. What do you do when a single
# layer, or what it computes, is too large for a GPU? Several ranks have to compute that layer *together*. Where would
# you cut it, so that they have little to send each other?
#
# **You will** cut linear layers in two ways, work out what has to be sent in the forward and in the backward pass, and share out
# the tokens, too. Then four ranks train a small transformer together, and you compare it with one process.
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
# A *transformer* works on *tokens*, vectors of one width. Ours cuts an image, without its last five rows, into 20
# *patches*, small squares of pixels, and turns each patch into a token of 64 numbers. The tokens go through three *blocks*, all
# built alike. From their mean, the network computes ten *logits*, one score per digit.
#
# A block has two parts. In the first, *attention*, the tokens look at each other: each token computes a *query*, which says what
# it looks for, a *key*, which says what it offers, and a *value*, which is what it passes on. A token then receives the mean of
# all values, weighted by how well their keys match its query. Attention does this in four *heads*, each with shorter queries, keys
# and values of its own.
#
# The second part is an *MLP*, which works on each token alone: `up` makes the token four times as wide, `gelu` changes each number
# by itself, and `down` makes the token as wide as before. A *norm* (`LayerNorm`) in front of each part brings every token to mean 0
# and variance 1, and scales it with learned weights. Each part adds its result to the tokens it got.
#
# Cut the MLP in two, in one process for now:

# %%
torch.manual_seed(1)
x = torch.randn(20, 64)  # 20 tokens of 64 numbers
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
# `lesson.both_ways(x, forward, backward)` applies the function `forward` to a tensor, and in the backward pass the function
# `backward` to its gradient.
#
# Megatron-LM, NVIDIA's library for large transformers, calls the operations at the two ends of such a pair *f* and *g*. What do
# they send backward?
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
# With `ColumnParallel(layer, comm)` your ranks divide the outputs of a linear layer among them.
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
# `partial(lesson.allreduce, self.comm)` is a function of one tensor. Forward passes it to `lesson.both_ways` as `backward`, and
# then it's `linear(x, self.weight, self.bias)`.
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
# `RowParallel(layer, comm)` takes over where the first layer ends. Only the weight is cut here. What about the bias?
#
# <details><summary>Hint 1: the bias</summary>
#
# It belongs to the outputs, and these are whole on every rank: `nn.Parameter(layer.bias.detach().clone())`. If each rank added
# it to its part of the sum, how many times would the sum contain it?
#
# </details><details><summary>Hint 2: the backward pass</summary>
#
# After the allreduce all ranks do the same with the same output. So each gets the whole gradient anyway.
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
team.push(
    ColumnParallel=lesson.check.written(ColumnParallel),
    RowParallel=lesson.check.written(RowParallel),
)
lesson.check.RowParallel(RowParallel)

# %% [markdown]
# Together they are an MLP on several ranks. What does it send? (`CountingComm` counts the bytes.)

# %%
# %%ranks
from functools import partial

import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy, linear

from workshop_lib import vit

from lessons import model_parallelism as lesson

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

torch.manual_seed(1)
whole, x = vit.Mlp(64), torch.randn(64, 20, 64)  # 64 images of 20 tokens
counting = lesson.CountingComm(comm)
mine = nn.Sequential(
    ColumnParallel(whole.up, counting), nn.GELU(), RowParallel(whole.down, counting)
)
output = mine(x.requires_grad_())
forward_bytes = counting.bytes_sent
output.square().sum().backward()
an_allreduce = 2 * (size - 1) / size * x.nbytes
backward_allreduces = (counting.bytes_sent - forward_bytes) / an_allreduce
if rank == 0:
    print(f"forward sends {forward_bytes / an_allreduce:.2f} allreduces of x", end=", ")
    print(f"backward {backward_allreduces:.2f}")

# %%
guess.compare(team.pull("backward_allreduces")[0])

# %% [markdown]
# A pair of layers costs one allreduce in each direction. In the backward pass, it's the allreduce of *f*: *g* sends nothing there,
# because every rank already has the whole gradient of the output. These allreduces carry *activations*. They grow with your batch,
# but not with the hidden width, because the hidden activations never travel.
#
# *Break it:* leave out the allreduce in your backward pass. Which weights of a network get wrong gradients then, those of this
# layer or those before it?
#
# ## Exercise 3 (warm-up): heads on ranks
#
# Attention has four linear layers. `query`, `key` and `value` read the tokens, and `out` mixes what the heads return. Before
# `out`, each head works alone, so heads are a natural cut. In our `Attention`, the first rows of `query.weight` make the first
# head, the next rows the second, and so on.
#
# With `cut_block` you turn the block of a transformer into one that several ranks compute. Replace its six linear layers in
# place, as in `block.mlp.up = column(block.mlp.up)`. `column(layer)` and `row(layer)` make your two kinds of layers, with the
# communicator already filled in. Which layer becomes which? (The two norms are small and stay whole.)
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
# Each rank needs at least one whole head, so the number of heads limits the number of ranks.
#
# ## Sequence parallelism: share out the tokens, too
#
# In front of attention and the MLP, every rank still keeps all tokens and computes the same norms and sums. But these parts of
# a block treat each token alone, so let each rank do them for *its* tokens only. Then *f* has to gather the tokens, and *g* has
# to add up the parts and hand each rank its tokens. That's an allgather and a reduce-scatter, the two halves of an allreduce
# ([06](06_zero_and_fsdp.ipynb)). And in the backward pass?
#
# ## Exercise 4 (normal): the two operations
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
team.push(
    cut_block=lesson.check.written(cut_block),
    TokenParallel=lesson.check.written(TokenParallel),
)
lesson.check.TokenParallel(TokenParallel)

# %% [markdown]
# ## Train it
#
# Now build whole networks from your layers. Query, key and value read the same tokens, so one *f* in front of attention is enough:
# its allreduce carries the sum of three gradients. That's why `Column` has no *f* of its own, and the block calls `enter` instead.
# `Row` calls `leave` where *g* was.

# %%
# %%ranks
class Column(ColumnParallel):
    def forward(self, x):
        return linear(x, self.weight, self.bias)


class Row(RowParallel):
    def __init__(self, layer, comm, leave):
        super().__init__(layer, comm)
        self.leave = leave

    def forward(self, x):
        return self.leave(linear(x, self.weight)) + self.bias


class CutBlock(nn.Module):
    def __init__(self, block, comm, ends):
        super().__init__()
        row = partial(Row, comm=comm, leave=ends.leave)
        cut_block(block, partial(Column, comm=comm), row)
        self.norm_1, self.attention = block.norm_1, block.attention
        self.norm_2, self.mlp = block.norm_2, block.mlp
        self.enter = ends.enter

    def forward(self, x):
        x = x + self.attention(self.enter(self.norm_1(x)))
        return x + self.mlp(self.enter(self.norm_2(x)))


class TensorsOnly:
    """f and g, as in exercises 1 and 2: between layers, each rank has all tokens."""

    def __init__(self, comm):
        self.sum = partial(lesson.allreduce, comm)

    def enter(self, x):
        return lesson.both_ways(x, forward=lesson.same, backward=self.sum)

    def leave(self, parts):
        return lesson.both_ways(parts, forward=self.sum, backward=lesson.same)


others = lesson.CountingComm(comm)  # for what is sent outside the blocks


def cut_model(network, comm, way):
    """The network with the `way` (TensorsOnly or TokenParallel) at its parts' ends."""
    patches, *blocks, logits = network
    blocks = [CutBlock(block, comm, way(comm)) for block in blocks]
    if way is TokenParallel:  # each rank takes its tokens, and in the end gets all
        ends = lesson.study.OwnTokens(others), lesson.study.AllTokens(others)
        blocks = [ends[0], *blocks, ends[1]]
    return nn.Sequential(patches, *blocks, logits)


# %% [markdown]
# Norms, and the biases after `leave`, see only this rank's tokens. So their small gradients are parts of sums, too, and need an
# allreduce before the step of the optimizer.
#
# All ranks train on the same images here, because together they are one network. Is the result the same as that of one process?

# %%
# %%ranks --timeout 240
def add_up(model):
    for block in model[2:-2]:
        in_parts = [*block.norm_1.parameters(), *block.norm_2.parameters()]
        for p in [*in_parts, block.attention.out.bias, block.mlp.down.bias]:
            p.grad = lesson.allreduce(others, p.grad)


alone = lesson.study.network()  # 3 blocks, 4 heads, 20 tokens of 64 numbers
expected = lesson.study.train(alone, steps=5)
kept = {"one process": lesson.study.kept_in_block(alone)}
expected_weights = list(cut_model(alone, comm, TensorsOnly).parameters())
rows = {"one process": [expected, 0, 0, 0]}
ways = {"tensors": (TensorsOnly, None), "tensors and tokens": (TokenParallel, add_up)}
for name, (way, after_backward) in ways.items():
    counting = lesson.CountingComm(comm)
    together = cut_model(lesson.study.network(), counting, way)
    loss = lesson.study.train(together, steps=5, after_backward=after_backward)
    difference = lesson.study.largest(together.parameters(), expected_weights)
    rows[name] = [loss, difference, counting.bytes_sent // 5, others.bytes_sent // 5]
    kept[name] = lesson.study.kept_in_block(together)

# %%
columns = ["loss of step 5", "weights differ by"]
columns += ["bytes per step, in blocks", "and elsewhere"]
table = pd.DataFrame(team.pull("rows")[0], index=columns).T
table.style.format("{:,.7g}")

# %% [markdown]
# The three networks are the same except for rounding, so your `enter` and `leave` are right in both directions. An allgather and
# a reduce-scatter together send as much as one allreduce, so in the blocks, the bytes are the same. What's sent elsewhere are the
# gradients of norms and biases, and the tokens at both ends of the network.
#
# ## What is kept for the backward pass?
#
# One block keeps this on a rank, in multiples of all tokens of the batch:

# %%
kept = pd.DataFrame(team.pull("kept")[0])
kept.loc["together"] = kept.sum()
kept.style.format("{:.2f}")

# %% [markdown]
# The cut by tensors has divided everything inside attention and the MLP, the last three kinds. Sharing out the tokens divides
# only the first row, the inputs of the two norms. (The norms also keep a mean and a deviation per token.) The second row isn't cut at
# all: `enter` has gathered all tokens, and query, key, value and `up` keep them, because the gradient of a weight needs the whole
# input of its layer. Megatron-LM keeps only the rank's own tokens here, and gathers the others again in the backward pass. That
# divides the second row, too, for two more allgathers per block.
#
# Megatron-LM and torchtitan combine tensor parallelism with this *sequence parallelism*.
#
# ## Which one do you need?
#
# In tensor parallelism, all ranks wait for each allreduce, four times per block. So the ranks that share a layer stay inside an
# *NVLink domain*, GPUs with fast links to each other: usually a node, or a rack of 72 GPUs. For more GPUs, Megatron-LM, Llama 3 and
# torchtitan arrange the ranks in a *mesh*. The ranks of a *tensor group* share one copy of the model. The ranks of a *data
# group* hold the same part of different copies, and average gradients, as in DDP.
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
# ## Deeper: what does each dimension send?
#
# In MPI, `comm.Split(rank // tensor)` creates the tensor groups of a mesh, and `comm.Split(rank % tensor)` its data groups. The tensor
# dimension sends activations: two allreduces per block forward and two backward, each as large as all tokens of the
# group's samples. The data dimension sends gradients, as large as the rank's part of the model.
#
# How many bytes is that for a model with 64 billion weights on 512 GPUs, in 64 tensor groups of 8?


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
# running, as in DDP, so the data dimension can cross the network between nodes. Every allreduce of activations makes the group
# wait, hundreds of times per step.
#
# *Try it:* swap 64 and 8, with 64 sequences per group, so that the global batch is the same. How many gigabytes does a rank send
# in its tensor group, which now spans 8 nodes?
#
# ## Deeper: PyTorch does the same
#
# With PyTorch you don't write layers. You give `parallelize_module` a *plan*, which says for each layer by name how to cut it.
# The parameters become DTensors (PyTorch's distributed tensors), which know how they're laid out, as in FSDP. Here's what changes from notebook 05's script for
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
ours = lesson.study.network()
for block in ours[1:-1]:  # with your layers as you wrote them
    column = partial(ColumnParallel, comm=counting)
    cut_block(block, column, partial(RowParallel, comm=counting))
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
# Same numbers, same bytes. But here query, key and value each have an *f* of their own, in PyTorch's plan as in your
# `ColumnParallel`, so there are 6 allreduces per block. To get 4, as in *Train it*, add
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
# - *KV heads.* In most models of today, several heads of queries share the keys and values of one *KV head*. Llama 3 70B has 64
#   heads, but only 8 KV heads. So beyond 8 ranks, some compute the same keys and values.
#
# torchtitan and NVIDIA's Transformer Engine can also run *asynchronous* tensor parallelism, in which nobody waits for a whole
# collective: they cut each matrix product into pieces, and send one piece while they compute the next.
#
# ## Remember
#
# - Cut the first layer of a pair by columns and the second by rows. Then nothing is sent in between, and a pair needs one
#   allreduce in the forward pass and one in the backward pass.
# - Autograd sees only one rank, so you tell it what crosses in the backward pass. If all ranks read a tensor, its gradient is
#   the *sum* of the gradients on all ranks. After an allreduce in the forward pass, the backward pass sends nothing.
# - Attention is cut by whole heads.
# - Between attention and the MLP, share out the tokens: the same bytes in the blocks, less memory.
# - Tensor parallelism sends activations, and all ranks wait for them, so it stays inside an NVLink domain.
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
