# %% [markdown] track="large models"
# # Pipelines: a rank for each part of the network
#
# Your network doesn't fit on one device, so you put the first half of its layers on rank 0 and the second half on rank 1. Now it
# fits. But a step takes as long as before, because while one rank computes, the other has nothing to do. Two devices, and the
# speed of one. How do you keep both of them busy?
#
# **You will** write a stage of a pipeline, with its messages, and the two schedules that all others build on. You'll run them on
# four emulated devices, to see what a schedule costs: how long ranks are idle, and how much they keep in memory. Then you'll
# measure what a bad cut costs.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebooks
# [01](01_mpi_basics.ipynb) and [02](02_synchronous_sgd.ipynb) first.

# %%
import itertools
from functools import partial

import pandas as pd

from workshop_lib import predict, ranks, take_home

from lessons import pipelines as lesson

machine = "ethernet-10g"
team = ranks.start(4, machine=machine)

# %% [markdown]
# ## One network on several ranks
#
# Here's a small *vision transformer*. It cuts an image into 25 patches and turns each of them into a vector of 64 numbers,
# called a *token*. Then a few *blocks*, all built alike, work on the tokens. A *stage* is a few of these parts in a row. The
# next cell cuts the network into stages with the same number of blocks.

# %%
# %%ranks
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib import emulation, mnist, torch_cnn, vit

from lessons import pipelines as lesson

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
split = mnist.load("train")
images = torch_cnn.normalize(torch.tensor(split.images[:64]))
labels = torch.tensor(split.labels[:64]).long()
batch = images, labels


# %%
# %%ranks
def network_in(stages):
    """A network with two blocks for each rank, cut into stages.

    It has the same weights wherever it's built.
    """
    torch.manual_seed(1)
    blocks = 2 * size // stages
    counts = [blocks + (stage == 0) + (stage == stages - 1) for stage in range(stages)]
    return lesson.pipeline.split(vit.vit(10, depth=2 * size), counts)


mine = network_in(size)[rank]
print(f"rank {rank} has", ", ".join(type(part).__name__ for part in mine))

# %% [markdown]
# A step goes like this. Rank 0 computes its stage and sends the result, the *activations*, to rank 1, and so on. The last rank
# knows the loss, so the backward pass begins there. It yields the gradient of the loss with respect to the activations that the
# last rank received, and the previous rank needs this gradient for its own backward pass:

# %%
# %%ranks
x = images if rank == 0 else comm.recv(source=rank - 1).requires_grad_()
y = mine(x)
if rank < size - 1:
    comm.send(y.detach(), dest=rank + 1)
    y.backward(comm.recv(source=rank + 1))
else:
    cross_entropy(y, labels).backward()
if rank > 0:
    comm.send(x.grad, dest=rank - 1)

# %% [markdown]
# `y.backward(gradient)` continues a backward pass from the gradient of the loss with respect to `y`. `requires_grad_()` asks
# for the gradient with respect to `x`, which autograd wouldn't compute otherwise. Do you get the same gradients as one process?

# %%
# %%ranks
[whole] = network_in(1)
cross_entropy(whole(images), labels).backward()
print(
    f"rank {rank}: {lesson.pipeline.difference(mine, whole):.0e} from one process, "
    "relative to the largest gradient"
)

# %% [markdown]
# The gradients are the same, apart from rounding. Each rank then updates its own parameters, with nothing to average. But only
# one rank is busy at a time.
#
# ## Micro-batches
#
# An assembly line solves this: while rank 1 works on the first part of the batch, rank 0 begins with the second. You split the
# batch into $m$ *micro-batches*, and each of them travels through the stages on its own. Their gradients add up in `p.grad`,
# and the optimizer's step comes after the last micro-batch, so it's still the same step. (With BatchNorm it wouldn't be,
# because BatchNorm would normalize over each micro-batch alone.) Here are three ranks and four micro-batches:

# %%
lesson.figures.example("GPipe", ranks=3, micro_batches=4)

# %% [markdown]
# Each bar is an operation, and the number is its micro-batch. Dark bars are forward passes. Light ones are backward passes,
# which take twice as long. In the striped parts, called the *bubble*, a rank has nothing to do. ("On paper", all stages are
# equal, and messages take no time.)
#
# ### Exercise 1 (normal): a stage
#
# With `MyStage`, each rank can work on any micro-batch, in any order that you like. Write what a stage does with micro-batch
# `i` in its forward and in its backward pass. The class that `MyStage` inherits from has methods for the messages. Sending
# never waits, but receiving does.
#
# | what's there | |
# |---|---|
# | `self.layers`, `self.m` | this stage's layers, and the number of micro-batches |
# | `self.first`, `self.last` | whether this is the first stage, or the last one, or both |
# | `self.loss(y, i)` | the mean loss of micro-batch `i`, for the last stage |
# | `self.receive_activations(i)`, `self.send_activations(i, y)` | from the stage before, to the stage after |
# | `self.receive_gradient(i)`, `self.send_gradient(i, gradient)` | from the stage after, to the stage before |
# | `self.kept` | an empty dictionary, for what the backward pass of micro-batch `i` will need |
#
# After all micro-batches, the gradients must be those of the *mean* loss over the whole batch. Take an entry out of `kept` when
# its backward pass begins, so that its memory is freed.
#
# <details><summary>Hint 1: where's the rest?</summary>
#
# The cell that begins with `x = images if rank == 0` does all of it for a single batch. What do you have to keep until the
# backward pass, and where? And what do you get when you add up `m` mean losses?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# Forward: compute `y`, then either send it, or replace it by its loss divided by `self.m`. Keep both: `self.kept[i] = x, y`.
# Backward: `x, y = self.kept.pop(i)`, then `y.backward()` on the last stage and `y.backward(gradient)` elsewhere, then
# send `x.grad`.
#
# </details><details><summary>Solution</summary>
#
# {solution of MyStage.forward}
# {solution of MyStage.backward}
#
# </details>


# %%
class MyStage(lesson.pipeline.Stage):
    """Some layers in a row, and what they do with one micro-batch at a time."""

    def forward(self, i):
        # <solution>
        if self.first:
            x = self.images[i]
        else:
            x = self.receive_activations(i).requires_grad_()
        y = self.layers(x)
        if self.last:
            y = self.loss(y, i) / self.m
        else:
            self.send_activations(i, y)
        self.kept[i] = x, y
        # <stub>
        # if self.first:
        #     x = self.images[i]
        # else:
        #     x = self.receive_activations(i).requires_grad_()
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>

    def backward(self, i):
        # <solution>
        x, y = self.kept.pop(i)
        if self.last:
            y.backward()
        else:
            y.backward(self.receive_gradient(i))
        if not self.first:
            self.send_gradient(i, x.grad)
        # <stub>
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>


# %%
lesson.check.MyStage(MyStage)

# %% [markdown]
# *Break it:* don't divide by `self.m`. With SGD, which learning rate would give you the same steps as before?
#
# ## GPipe: all forwards first
#
# A *schedule* is a function that returns a rank's list of operations. `("F", 0)` is the forward pass of micro-batch 0, and
# `("B", 0)` its backward pass. A rank goes through its list from start to end, and if a message isn't there yet, it waits. The
# schedule in the picture is called *GPipe*.
#
# ### Exercise 2 (warm-up): GPipe
#
# Write this schedule, with the micro-batches in ascending order in both halves. It can be a single line.
#
# <details><summary>Hint</summary>
#
# `[("F", i) for i in range(m)]` is the first half. Every rank has the same list, so you don't need `rank`.
#
# </details><details><summary>Solution</summary>
#
# {solution of gpipe}
#
# </details>


# %%
def gpipe(rank, ranks, m):
    """This rank's operations with m micro-batches, in order: ("F", i) or ("B", i)."""
    # <solution>
    return [("F", i) for i in range(m)] + [("B", i) for i in range(m)]
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.gpipe(gpipe)

# %% [markdown]
# Now run your stages in this order. These ranks compute and send for real, but each carries a clock of *emulated* time, as in
# [05](05_ddp.ipynb). We say that a stage takes 80 ms forward and 160 ms backward for the whole batch, and that each operation
# costs 1 or 2 ms extra, for starting it.

# %%
guess = predict(
    "8 micro-batches on 4 ranks: for what share of the step is a rank idle?",
    0,
    100,
    unit="%",
)
guess

# %%
MyStage, gpipe = lesson.check.written(MyStage), lesson.check.written(gpipe)
team.push(MyStage=MyStage, gpipe=gpipe)


# %%
# %%ranks --timeout 120
def devices(stages, m):
    """The network in this many stages, on emulated devices with equal work."""
    parts = network_in(stages)
    for part in parts:
        share = size / stages
        emulation.takes(
            part,
            forward_s=share * (80e-3 / m + 1e-3),
            backward_s=share * (160e-3 / m + 2e-3),
        )
    return parts


by_m = {}
for m in (1, 4, 8, 16, 32):
    [stage], by_m[m] = lesson.pipeline.steps(
        MyStage, devices(size, m), gpipe, m, batch, comm
    )
print(
    f"rank {rank}: "
    f"{lesson.pipeline.difference(stage.layers, whole):.0e} from one process"
)

# %%
by_rank = team.pull("by_m")
taken = {
    m: lesson.orders.fastest([of_rank[m] for of_rank in by_rank]) for m in by_rank[0]
}
lesson.figures.pipeline(
    {"GPipe, 4 micro-batches": taken[4], "GPipe, 8 micro-batches": taken[8]}, machine
)

# %%
guess.compare(100 * lesson.orders.bubble(taken[8]), emulated_on=machine)

# %% [markdown]
# The more micro-batches, the smaller the bubble. With $p$ equal stages, a rank is idle for
#
# $$\frac{p-1}{m+p-1}$$
#
# of the time. Each rank is busy for as long as its $m$ micro-batches take. The last rank starts $p - 1$ forwards late and
# finishes $p - 1$ backwards early, so it's idle for as long as $p - 1$ whole micro-batches take. The other ranks are idle for
# just as long, at other times.

# %%
pd.DataFrame(lesson.orders.idle_rows(taken)).T.rename_axis(
    f"micro-batches (emulated on {machine}, imagined)"
)

# %% [markdown]
# Your bubbles match the formula, plus a little for the messages. So why not take a hundred micro-batches? Look at the last
# column: each operation has a fixed cost, and a small micro-batch has few images to spread it over.
#
# ## 1F1B: backward as soon as you can
#
# GPipe has a problem that the picture doesn't show. Between its forward and its backward pass, a micro-batch occupies memory,
# because the backward pass needs what the forward pass computed. With GPipe, all $m$ micro-batches are in memory at once, on
# every rank. (GPipe's authors therefore recomputed each stage in the backward pass. We don't.)
#
# But the last rank could run the backward pass of micro-batch 0 right after its forward pass. As soon as the gradient arrives
# at the rank before, that rank can free micro-batch 0, too. So let every rank take turns: one forward, one backward. That's
# *1F1B*. Earlier ranks need a few forwards before their first gradient arrives, or they'd run out of work. Compare the two
# schedules on four ranks:

# %%
lesson.figures.example("GPipe", "1F1B", ranks=4, micro_batches=8)

# %% [markdown]
# On paper, the bubble is as long as before, but in smaller pieces. What differs is how many micro-batches are in memory: 8 on
# every rank with GPipe, and at most 4 on rank 0 and 1 on the last rank with 1F1B.
#
# ### Exercise 3 (normal): 1F1B
#
# With this schedule, extra micro-batches no longer cost memory. Return a rank's operations, so that
#
# - no rank keeps more than $p - r$ micro-batches, where $r$ is its number,
# - the ranks are idle no longer than with GPipe,
# - and it works with any number of micro-batches, even with fewer micro-batches than ranks.
#
# <details><summary>Hint 1: how far ahead?</summary>
#
# The last rank goes backward after its first forward. The one before it can do one more forward while it waits for the first
# gradient. And the one before that?
#
# </details><details><summary>Hint 2: three parts</summary>
#
# `ahead = min(m, ranks - 1 - rank)` forwards, then one forward and one backward for each micro-batch that's left, then the
# remaining backwards.
#
# </details><details><summary>Solution</summary>
#
# {solution of one_f_one_b}
#
# </details>


# %%
def one_f_one_b(rank, ranks, m):
    """This rank's operations with m micro-batches, in order: ("F", i) or ("B", i)."""
    # <solution>
    ahead = min(m, ranks - 1 - rank)
    operations = [("F", i) for i in range(ahead)]
    for i in range(m - ahead):
        operations += [("F", ahead + i), ("B", i)]
    return operations + [("B", i) for i in range(m - ahead, m)]
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.one_f_one_b(one_f_one_b)

# %% [markdown]
# Now run it. How much memory do you save?

# %%
guess = predict(
    "How many times as much does GPipe keep for backward as 1F1B, on the last rank?",
    0,
    10,
)
guess

# %%
one_f_one_b = lesson.check.written(one_f_one_b)
team.push(one_f_one_b=one_f_one_b)

# %%
# %%ranks
keeps = {}
for name, schedule in (("GPipe", gpipe), ("1F1B", one_f_one_b)):
    _, taken = lesson.pipeline.steps(
        MyStage, devices(size, 8), schedule, 8, batch, comm, count_bytes=True
    )
    keeps[name, f"rank {rank}"] = {
        "micro-batches": taken[0].most_kept,
        "MiB": taken[0].saved_bytes / 2**20,
    }

# %%
kept = pd.DataFrame(
    {name: row for of_rank in team.pull("keeps") for name, row in of_rank.items()}
).T.sort_index()
guess.compare(kept["MiB"]["GPipe", "rank 3"] / kept["MiB"]["1F1B", "rank 3"])
kept.style.format("{:.2g}")

# %% [markdown]
# The bytes are everything that autograd keeps for the backward pass, apart from the weights. Now for the bubble. Is it really
# as short as GPipe's, even if a message takes as long as a forward pass? The next cell runs both schedules on a fast and on a
# slow network, and on the slow one it also runs 1F1B with twice as many forwards before the first backward pass.

# %%
# %%ranks --timeout 120
forward_s = 80e-3 / 8 + 1e-3
message_bytes = 4 * 25 * 64 * len(images) / 8
by_network = {}
for network, bytes_per_s in (("fast", 1e9), ("slow", message_bytes / forward_s)):
    emulation.current().set_network(bytes_per_s)
    for name, schedule in (("GPipe", gpipe), ("1F1B", one_f_one_b)):
        _, by_network[f"{name}, {network} network"] = lesson.pipeline.steps(
            MyStage, devices(size, 8), schedule, 8, batch, comm
        )


def further_ahead(rank, ranks, m):
    """Your 1F1B, as if there were twice as many ranks behind this one."""
    return one_f_one_b(2 * rank, 2 * ranks - 1, m)


_, by_network["1F1B further ahead, slow network"] = lesson.pipeline.steps(
    MyStage, devices(size, 8), further_ahead, 8, batch, comm
)
emulation.current().set_network(1e9)

# %%
by_rank = team.pull("by_network")
lesson.figures.pipeline(
    {
        name: lesson.orders.fastest([each[name] for each in by_rank])
        for name in by_rank[0]
    },
    machine,
)

# %% [markdown]
# On the slow network, 1F1B loses more, because a rank waits for a gradient in every turn. With GPipe, the rank computes its
# next micro-batch meanwhile. If 1F1B goes further ahead, a rank has a micro-batch to compute, too, so it loses no more than
# GPipe. But rank 0 then keeps 7 micro-batches instead of 4, so the check would reject this order.
#
# ## What travels
#
# At every cut, the activations of the batch go forward, and just as many gradients come back. For $n$ images that's
# $n \times 25 \times 64 \times 4$ bytes in each direction, so 409,600 bytes for our 64 images. Count what rank 0 really sends:

# %%
# %%ranks
traffic = {
    f"{schedule.__name__}, {m} micro-batches": lesson.pipeline.sent(
        MyStage, network_in(size), schedule, m, batch, comm
    )
    for schedule, m in ((gpipe, 2), (one_f_one_b, 8))
}
parameters = sum(p.numel() for p in whole.parameters())
traffic["an allreduce of all gradients"] = {
    "bytes": 2 * (size - 1) / size * 4 * parameters
}

# %%
pd.DataFrame(team.pull("traffic")[0]).T.style.format("{:,.0f}", na_rep="")

# %% [markdown]
# More micro-batches make more messages, but not more bytes. Nor would more blocks change the bytes. The last row is what data
# parallelism would send for this network, and this number does grow with the parameters.
#
# ## A cut that looks even
#
# So far, all stages took equally long. Parameters have to fit in memory, so why not give each rank half of them? Here's a
# convolutional network with 17 layers, in the style of VGG: each time the image shrinks, the number of channels doubles. The
# first twelve layers have 42 % of the parameters, and no other cut is closer to half. To find out how long the layers really
# take, the ranks stop emulating, and ranks 0 and 1 run your stage and your 1F1B.

# %%
# %%ranks
many = (
    torch_cnn.normalize(torch.tensor(split.images[:256])),
    torch.tensor(split.labels[:256]).long(),
)


def measure(counts):
    """What ranks 0 and 1 did in real steps, with this many layers per stage."""
    emulation.stop()
    pair = MPI.COMM_WORLD.Split(rank // 2)
    if rank > 1:
        return []
    parts = lesson.pipeline.split(lesson.pipeline.vgg(), counts)
    return lesson.pipeline.steps(MyStage, parts, one_f_one_b, 8, many, pair)[1]


uneven = measure([12, 5])

# %%
guess = predict("For what share of the step is rank 1 idle?", 0, 100, unit="%")
guess

# %%
both = lesson.orders.fastest(team.pull("uneven")[:2])
busy_s = [sum(span.end - span.start for span in of_rank) for of_rank in both]
guess.compare(100 * (1 - busy_s[1] / max(of_rank[-1].end for of_rank in both)))
lesson.figures.pipeline({"Half of the parameters each, measured": both})

# %% [markdown]
# Rank 0 has most of the work, because a convolution uses each of its weights once per *pixel*, and the first layers have the most
# pixels. More micro-batches don't help here. **The slowest stage sets the pace.** So measure first, and then cut.

# %%
# %%ranks
emulation.stop()
seconds = []
if rank == 0:
    seconds = lesson.pipeline.layer_seconds(lesson.pipeline.vgg(), many[0][:32])
for layer, s in zip(lesson.pipeline.vgg(), seconds, strict=False):
    print(
        f"{1000 * s:5.2f} ms, {sum(p.numel() for p in layer.parameters()):6,} "
        f"parameters: {type(layer).__name__}"
    )

# %% [markdown]
# With two stages there are only 16 cuts, so try them all and keep the one whose slower stage is fastest.

# %%
seconds = team.pull("seconds")[0]
slower_s = {cut: max(sum(seconds[:cut]), sum(seconds[cut:])) for cut in range(1, 17)}
best_cut = min(slower_s, key=slower_s.get)
team.push(best_cut=best_cut)
print(f"rank 0 gets {best_cut} layers, and rank 1 gets {17 - best_cut}")

# %%
# %%ranks
even = measure([best_cut, 17 - best_cut])
comm = emulation.start("ethernet-10g").comm

# %%
after = lesson.orders.fastest(team.pull("even")[:2])
lesson.figures.pipeline(
    {
        "Half of the parameters each, measured": both,
        "Half of the time each, measured": after,
    }
)

# %% [markdown]
# Now both ranks have something to do. Networks of many equal blocks, such as transformers, are easier to cut. But even these
# have uneven ends. In a language model, the first stage also holds the embeddings, and the last stage computes a logit for
# every token of the vocabulary. That's why Llama 3's first and last stages have one block fewer than the others.
#
# ## When to use one
#
# A pipeline sends little, however many weights a stage has. So Megatron and Llama 3 use pipelines *between* nodes, where the
# network is slow, with [tensor parallelism](11_model_parallelism.ipynb) inside each node and data parallelism around both.
# The price is the bubble. To keep the bubble small, you need several times as many micro-batches as stages. So the batch has
# to be large, which has limits of its own ([07](07_large_batch.ipynb)). The data parallelism around a pipeline is usually
# ZeRO-1 ([06](06_zero_and_fsdp.ipynb)), because FSDP would gather the weights again for every micro-batch.
#
# ## Deeper: a cut into any number of stages
#
# With more than two stages, there's more than one place to cut.
#
# ### Exercise 4 (normal): cut by time
#
# With `balanced` you can cut any network into any number of stages, once you've measured its layers. Return how many layers each
# stage gets, so that the slowest stage is as fast as possible. Every stage gets at least one layer.
#
# <details><summary>Hint 1</summary>
#
# You can try every way to cut. With 17 layers and 4 stages there are 560 of them. What does each one cost?
#
# </details><details><summary>Hint 2</summary>
#
# `itertools.combinations(range(1, len(seconds)), stages - 1)` yields the places where you can cut. `[0, *places, len(seconds)]`
# are the borders of the stages, and `itertools.pairwise` of it yields where each stage starts and ends.
#
# </details><details><summary>Solution</summary>
#
# {solution of balanced}
#
# </details>



# %%
def balanced(seconds, stages):
    """How many layers each stage gets, a list; the layers stay in their order."""
    # <solution>
    best = None
    for places in itertools.combinations(range(1, len(seconds)), stages - 1):
        edges = list(itertools.pairwise([0, *places, len(seconds)]))
        slowest = max(sum(seconds[start:end]) for start, end in edges)
        if best is None or slowest < best[0]:
            best = slowest, [end - start for start, end in edges]
    return best[1]
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.balanced(balanced)

# %%
balanced = lesson.check.written(balanced)
cuts = {}
for stages in (2, 3, 4, 6):
    counts = balanced(seconds, stages)
    ends = itertools.accumulate(counts)
    stage_s = [
        sum(seconds[end - n : end]) for n, end in zip(counts, ends, strict=True)
    ]
    cuts[stages] = {
        "layers per stage": counts,
        "the slowest stage, ms": f"{1e3 * max(stage_s):.2f}",
        "at most this many times as fast": f"{sum(stage_s) / max(stage_s):.1f}",
    }
pd.DataFrame(cuts).T.rename_axis("stages")

# %% [markdown]
# The last column is the time of all layers, divided by that of the slowest stage. No stage can be faster than the slowest
# layer, so at some number of stages the last column stops growing.
#
# ## Deeper: PyTorch's pipelines
#
# In `torch.distributed.pipelining`, you wrap this rank's layers in a `PipelineStage`, and pass it to a schedule, whose `step`
# runs all forward and backward passes. The first rank needs the images, and the last one the labels. Our stage is a
# `PipelineStage` that also notes in `done` what PyTorch does with it.

# %%
# %%ranks --timeout 120
from torch.distributed import pipelining

lesson.with_pytorch.join()
inputs = [images] if rank == 0 else []
for make, own in (
    (pipelining.ScheduleGPipe, gpipe),
    (pipelining.Schedule1F1B, one_f_one_b),
):
    layers, losses, done = network_in(size)[rank], [], []
    stage = lesson.with_pytorch.RecordedStage(layers, rank, size, done)
    make(stage, n_microbatches=8, loss_fn=cross_entropy).step(
        *inputs, target=labels, losses=losses
    )
    print(
        f"{make.__name__}: gradients differ by "
        f"{lesson.pipeline.difference(layers, whole):.0e} from one process;",
        end=" ",
    )
    print("same order as yours:", done == own(rank, size, 8))

# %% [markdown]
# PyTorch ran the same operations in the same order. Now train with PyTorch's pipeline on this machine. Compared with the script
# for one process from [05](05_ddp.ipynb), this is what changes:

# %%
take_home.diff("one_process.py", "pipeline.py")

# %% [markdown]
# Every rank builds the network and keeps its stage. All ranks go through the same batches, because they are one model and not
# several copies, and each updates its own layers. At the end, rank 0 collects the layers, to test and save the whole network.

# %%
take_home.train("pipeline.py")

# %% [markdown]
# ## Deeper: several chunks per rank
#
# A micro-batch has to pass through $p - 1$ stages before the last rank has work. What if each stage took half as long? Cut
# the network into $2p$ stages, and give each rank two *chunks* that aren't next to each other: rank 0 takes stages 0 and $p$,
# rank 1 takes 1 and $p + 1$. Then the last rank has work after half the time. That's *interleaved* 1F1B. With $v$ chunks per
# rank, ranks are idle for
#
# $$\frac{p-1}{v m+p-1}$$
#
# of the time. The price is more messages: there are $vp - 1$ cuts instead of $p - 1$.
#
# ### Exercise 5 (hard): interleaved 1F1B
#
# An operation now also names its chunk: `("F", 0, 1)` is the forward pass of micro-batch 0 in the second chunk. The chunks
# take turns. A rank takes `ranks` micro-batches forward through chunk 0, then the same ones through chunk 1, and so on. Then
# it starts over with the next `ranks` micro-batches. The backward passes take turns in the same way, but begin with the last
# chunk. `m` is a multiple of `ranks`. As before, each rank starts with a few forwards, then alternates between one forward
# and one backward.
#
# <details><summary>Hint 1: the order of forwards</summary>
#
# Number a rank's forwards: the `n`-th belongs to turn `n // (ranks * chunks)`. With `within = n % (ranks * chunks)`, its chunk is
# `within // ranks`. `divmod(a, b)` gives you quotient and remainder at once.
#
# </details><details><summary>Hint 2: how far ahead</summary>
#
# `2 * (ranks - 1 - rank) + (chunks - 1) * ranks` forwards, or fewer if there aren't that many.
#
# </details><details><summary>Solution</summary>
#
# {solution of interleaved}
#
# </details>


# %%
def interleaved(rank, ranks, m, chunks):
    """The operations of this rank, in order: ("F", i, chunk) or ("B", i, chunk)."""

    # <solution>
    def nth(kind, n):
        turn, within = divmod(n, ranks * chunks)
        chunk, i = divmod(within, ranks)
        return kind, turn * ranks + i, chunk if kind == "F" else chunks - 1 - chunk

    total = m * chunks
    ahead = min(total, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)
    operations = [nth("F", n) for n in range(ahead)]
    for n in range(total - ahead):
        operations += [nth("F", ahead + n), nth("B", n)]
    return operations + [nth("B", n) for n in range(total - ahead, total)]
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.interleaved(interleaved)

# %% [markdown]
# How far ahead did you go? Before a rank's last chunk gets its first micro-batch, the rank does $(v - 1)\,p$ forwards in its
# other chunks. A rank with $k$ ranks behind it then has to wait until the micro-batch has made $k$ hops to the last rank, and
# the gradient $k$ hops back. Meanwhile, the rank can do $2k$ more forwards. If messages take no time, $k$ more forwards are
# enough and need less memory, so the check accepts both. But suppose that a message takes as long as half a forward of a chunk.
# Then 4 ranks with 8 micro-batches are idle for 33 % of the step if they do only $k$ more forwards, and for 25 % if they do
# $2k$. If they do $3k$, they wait for each other forever.

# %%
two_chunks = partial(lesson.check.written(interleaved), chunks=2)
team.push(two_chunks=two_chunks)

# %%
# %%ranks --timeout 120
stages, chunked = lesson.pipeline.steps(
    MyStage, devices(2 * size, 8), two_chunks, 8, batch, comm
)
_, plain = lesson.pipeline.steps(MyStage, devices(size, 8), one_f_one_b, 8, batch, comm)
print(f"rank {rank} has stages {[stage.number for stage in stages]}", end=", ")
print(
    f"{max(lesson.pipeline.difference(stage.layers, whole) for stage in stages):.0e} "
    "from one process"
)

# %%
panels = {
    "1F1B": lesson.orders.fastest(team.pull("plain")),
    "two chunks per rank": lesson.orders.fastest(team.pull("chunked")),
}
lesson.figures.pipeline(panels, machine)

# %% [markdown]
# The formula says 27 % and 16 %. With two chunks, rank 0 keeps more in memory, because it goes further ahead. PyTorch's
# `ScheduleInterleaved1F1B` uses the same order as the solution.
#
# *Beat it:* how slow may messages be before plain 1F1B is as good as two chunks? Call `emulation.current().set_network(…)` at
# the top of the cell that runs `two_chunks`.
#
# ## Deeper: is there a schedule without a bubble?
#
# Almost. The backward pass computes two gradients: one with respect to the input, which the previous stage is waiting for,
# and one with respect to the weights, which nobody needs before the optimizer's step. *Zero-bubble* schedules (P. Qi et al.,
# below) compute the two separately. A rank sends the gradient with respect to the input as soon as it can, and fills its gaps
# by computing the other one.
#
# | schedule | bubble, if all three parts take equally long | memory for activations | volume of messages |
# |---|---|---|---|
# | 1F1B | $(p-1)/m$ of the busy time | 1 × | 1 × |
# | ZB1P | a third of that | 1 × | 1 × |
# | ZB2P | none | 2 × | 1 × |
# | ZBV, in which each rank has two chunks, arranged in a V | none | 1 × | 2 × |
#
# *V-Half* and *V-Min* (P. Qi et al. 2024) keep half and a third of 1F1B's activations, at the price of some bubble.
# DeepSeek's *DualPipe* sends micro-batches in from both ends, so each rank holds two stages' weights. Its main purpose isn't
# a smaller bubble. It hides the experts' all-to-all ([11d](11d_experts.ipynb)) for micro-batches that go in one direction
# behind the computing for micro-batches that go in the other.
#
# If you clip by the global norm, every rank waits for all gradients before its optimizer's step, and the bubble is back. So
# zero-bubble schedules update the weights first, and undo the update in the rare step that had to be clipped. Without this,
# they'd lose about 8 % of their throughput. PyTorch has `ScheduleInterleavedZeroBubble`, `ScheduleZBVZeroBubble` and
# `ScheduleDualPipeV`.
#
# ## Deeper: blocking sends
#
# So far, sending has never waited. But if a message is large, MPI's `Send` and PyTorch's `dist.send` may wait until the
# receiver takes it. Which schedule still finishes then, GPipe or 1F1B? In the next cell, the stages send with `Issend` and
# wait. (It fails on purpose, after a few seconds.)

# %%
# %%ranks --catch --timeout 5
for schedule in (gpipe, one_f_one_b):
    [stage] = lesson.pipeline.stages_of_rank(MyStage, network_in(size), comm)
    stage.blocking = True
    stage.load(images, labels, 8)
    lesson.pipeline.step([stage], schedule(rank, size, 8), comm)
    print(f"{schedule.__name__}: done")

# %% [markdown]
# In 1F1B, two neighbors send to each other at the same moment: one sends activations, and the other a gradient. Each then
# waits for the other to receive. That's why PyTorch's 1F1B starts a send and the receive from the same neighbor together. A
# pipeline with plain `dist.send` may work in every test with small messages, and hang with the first large one.
#
# ## Remember
#
# - A stage receives activations, computes and sends. In the backward pass, it receives the gradient with respect to its output,
#   and sends the one with respect to its input.
# - With $m$ micro-batches on $p$ equal stages, ranks are idle for $(p-1)/(m+p-1)$ of the time, with GPipe and with 1F1B, if
#   messages are short. If they aren't, 1F1B has to go further ahead to hide them, which costs memory.
# - GPipe keeps $m$ micro-batches in memory, 1F1B at most $p - r$ on rank $r$. So with 1F1B, more micro-batches cost no memory.
# - What a cut sends depends on the tokens and their width, not on the number of weights.
# - Divide each micro-batch's loss by $m$. Then the step is the same as in one process.
# - The slowest stage sets the pace. Cut by measured time, not by layers or parameters.
#
# **Take it home:** [scripts/pipeline.py](scripts/pipeline.py).
#
# **Sources.** Y. Huang et al., [*GPipe*](https://arxiv.org/abs/1811.06965). D. Narayanan et al., [*Memory-Efficient
# Pipeline-Parallel DNN Training*](https://arxiv.org/abs/2006.09503), for 1F1B with one set of weights, and [*Efficient
# Large-Scale Language Model Training*](https://arxiv.org/abs/2104.04473), for interleaving. P. Qi et al., [*Zero Bubble
# Pipeline Parallelism*](https://arxiv.org/abs/2401.10241), the table in the README of [their
# code](https://github.com/sail-sg/zero-bubble-pipeline-parallelism), and [*Pipeline Parallelism with Controllable
# Memory*](https://arxiv.org/abs/2405.15362). [DualPipe](https://github.com/deepseek-ai/DualPipe)'s README. PyTorch's
# documentation of [`torch.distributed.pipelining`](https://pytorch.org/docs/stable/distributed.pipelining.html).

# %%
ranks.stop()
