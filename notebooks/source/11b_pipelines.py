# %% [markdown] track="large models"
# # Pipelines: a rank for each part of the network
#
# Your network doesn't fit on one device, so you put the first half of its layers on rank 0 and the second half on rank 1. Now it
# fits. But a step takes as long as before, because while one rank computes, the other has nothing to do. Two devices, and the
# speed of one. How do you get both of them to work?
#
# **You will** write a stage of a pipeline, with its messages, and the two schedules that all others build on. Before you run a
# schedule, a simulator shows you what it'll cost: how long ranks are idle, and how much they have to keep in memory. Then
# you'll check all of it against one process, and against PyTorch's own pipelines.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebooks
# [01](01_mpi_basics.ipynb) and [02](02_synchronous_sgd.ipynb) first.

# %%
from functools import partial

import pandas as pd

from workshop_lib import ranks
from workshop_lib.judge import own_or_library
from workshop_lib.lessons.pipelines import figures, orders, pipeline
from workshop_lib.lessons.pipelines import judge as check
from workshop_lib.lessons.pipelines.judge_cuts import best_counts
from workshop_lib.notebook import profile, take_home
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, MNIST, SCRIPTS
from workshop_lib.ranks import scripts

sizes = profile.current()
p = sizes.ranks
folder = BUILD / "11b_pipelines"
folder.mkdir(parents=True, exist_ok=True)
team = ranks.start(p)
team.push(repeats=sizes.repeats)

# %% [markdown]
# ## One network on several ranks
#
# Here's a small *vision transformer*. It cuts an image into 25 patches and turns each of them into a vector, called a *token*.
# Then a few *blocks*, all built alike, work on the tokens. All you need to know for now is that its parts follow one another
# in a list, that all blocks take the same time, and that between two blocks there are 25 tokens of 64 numbers for each image.
#
# A *stage* is a few parts in a row. The next cell cuts the network into stages with the same number of blocks.

# %%
# %%ranks
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist
from workshop_lib.lessons.pipelines import pipeline
from workshop_lib.models import torch_cnn, vit

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
split = mnist.load("train")
images = torch_cnn.normalize(torch.tensor(split.images[:64]))
labels = torch.tensor(split.labels[:64]).long()


# %%
# %%ranks
def network_in(stages):
    """A network with two blocks for each rank, cut into stages; the same weights wherever it's built."""
    torch.manual_seed(1)
    blocks = 2 * size // stages
    counts = [blocks + (stage == 0) + (stage == stages - 1) for stage in range(stages)]
    return pipeline.split(vit.vit(10, depth=2 * size), counts)


mine = network_in(size)[rank]
print(f"rank {rank} has", ", ".join(type(part).__name__ for part in mine))

# %% [markdown]
# A step on several ranks goes like this. Rank 0 computes its stage and sends the result, the *activations*, to rank 1, which
# goes on from there. The last rank knows the loss, so backward begins there. It ends at the stage's input, with the gradient
# of the loss with respect to the activations that came in. And that's what the previous rank needs for its own backward:

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
# `y.backward(gradient)` starts a backward pass in the middle: you give autograd the gradient of the loss with respect to `y`,
# and it goes on from there. And `requires_grad_()` asks for the gradient with respect to `x`. Autograd wouldn't compute it
# otherwise, because to this rank `x` is plain data. Do you get the same gradients as one process?


# %%
# %%ranks
def gradients(layers):
    return torch.cat([p.grad.flatten() for p in layers.parameters()])


[whole] = network_in(1)
cross_entropy(whole(images), labels).backward()
names = {name: p.grad for name, p in whole.named_parameters()}


def difference(layers):
    """The largest difference to the gradients of one process, as a share of the largest gradient."""
    right = torch.cat([names[name].flatten() for name, _ in layers.named_parameters()])
    return ((gradients(layers) - right).abs().max() / right.abs().max()).item()


print(f"rank {rank}: {difference(mine):.0e}")

# %% [markdown]
# It's the same gradient, apart from rounding. After this, each rank takes its optimizer's step for its own parameters, and
# there's nothing to average. That's *model parallelism* in its simplest form. But it only ever keeps one rank busy.
#
# ## Micro-batches
#
# Factories solved this long ago, with the assembly line: while rank 1 works on the first part of the batch, rank 0 begins with
# the second. So you split the batch into $m$ *micro-batches*, and each of them travels through the stages on its own. The
# gradients add up in `p.grad`, and the optimizer's step comes after the last one, so it's still the same step. (With BatchNorm
# it wouldn't be, because it normalizes over each micro-batch alone. Our `LayerNorm` looks at one token at a time.)
#
# ### Exercise 1 (normal): a stage
#
# With `MyStage`, each rank can work on any micro-batch, in any order that you like. Write what a stage does with micro-batch
# `i`, forward and backward. You don't have to write the messages, because the library has methods for them. They know which
# stage to talk to. Sending never waits, but receiving does.
#
# | what's there | |
# |---|---|
# | `self.layers`, `self.m` | this stage's layers, and the number of micro-batches |
# | `self.first`, `self.last` | whether this is the first stage, or the last one, or both |
# | `self.images[i]` | the images of micro-batch `i`, for the first stage |
# | `self.loss(y, i)` | the mean loss of micro-batch `i`, for the last stage |
# | `self.receive_activations(i)`, `self.send_activations(i, y)` | from the stage before, to the stage after |
# | `self.receive_gradient(i)`, `self.send_gradient(i, gradient)` | from the stage after, to the stage before |
# | `self.kept` | an empty dictionary, for what backward will need of micro-batch `i` |
#
# After all micro-batches, the gradients must be those of the *mean* loss over the whole batch. Take an entry out of `kept` when
# its backward begins, so that its memory becomes free.
#
# <details><summary>Hint 1: where's the rest?</summary>
#
# The cell above does all of it for a single batch. What has to wait until backward, and where do you put it meanwhile? And
# what becomes of a mean loss when you add up `m` of them?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# Forward: get `x`, compute `y`, then either send it, or replace it by its loss divided by `self.m`. Keep both: `self.kept[i] = x, y`.
# Backward: `x, y = self.kept.pop(i)`, then `y.backward()` on the last stage and `y.backward(gradient)` elsewhere, then send `x.grad`.
#
# </details><details><summary>Solution</summary>
#
# {solution of MyStage.forward}
# {solution of MyStage.backward}
#
# </details>


# %%
class MyStage(pipeline.Stage):
    """Some layers in a row, and what they do with one micro-batch at a time."""

    def forward(self, i):
        # <solution>
        x = self.images[i] if self.first else self.receive_activations(i).requires_grad_()
        y = self.layers(x)
        if self.last:
            y = self.loss(y, i) / self.m
        else:
            self.send_activations(i, y)
        self.kept[i] = x, y
        # <stub>
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
check.MyStage(MyStage)

# %% [markdown]
# *Break it:* don't divide by `self.m`. With SGD, which learning rate would give you the same steps as before?
#
# ## GPipe: all forwards first
#
# Now each rank needs to know what to do when. That's a *schedule*: a function that returns a rank's list of operations. `("F", 0)`
# is the forward of micro-batch 0, and `("B", 0)` its backward. A rank goes through its list from start to end, and if a message
# isn't there yet, it waits. The schedule called *GPipe* is the plainest one: go forward with all micro-batches, then
# backward with all of them.
#
# ### Exercise 2 (warm-up): GPipe
#
# Write the schedule, with the micro-batches in ascending order both ways. It can be a single line.
#
# <details><summary>Hint</summary>
#
# `[("F", i) for i in range(m)]` is the first half. Every rank does the same, so you don't need `rank`.
#
# </details><details><summary>Solution</summary>
#
# {solution of gpipe}
#
# </details>


# %%
def gpipe(rank, ranks, m):
    """The operations of this rank, in order, with m micro-batches: ("F", i) or ("B", i)."""
    # <solution>
    return [("F", i) for i in range(m)] + [("B", i) for i in range(m)]
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.gpipe(gpipe)

# %% [markdown]
# Now run your stages in this order. `pipeline.step` goes through the list, calls `forward` or `backward`, and notes when each of
# them computed. (It leaves out the time that a rank waits in a receive.) First with a single "micro-batch", the
# whole batch, then with 8. How long will a rank have nothing to do?

# %%
guess = predict(f"8 micro-batches on {p} ranks: for what share of the step is a rank idle?", 0, 100, unit="%")
guess

# %%
# Until you've solved an exercise, the library's version takes the place of yours.
MyStage, gpipe = own_or_library(MyStage, pipeline.ByHand), own_or_library(gpipe, orders.gpipe)
team.push(MyStage=MyStage, gpipe=gpipe)


# %%
# %%ranks
def run(make, schedule, m, chunks=1, **options):
    """Some steps of a fresh network, after one that warms up. Returns this rank's stages, and the steps."""
    stages = pipeline.stages_of_rank(make, network_in(size * chunks), comm)
    taken = []
    for _ in range(1 + repeats):
        for stage in stages:
            stage.layers.zero_grad()
            stage.load(images, labels, m)
        taken.append(pipeline.step(stages, schedule(rank, size, m), comm, **options))
    return stages, taken[1:]


by_m = {}
for m in (1, 2, 4, 8):
    stages, by_m[m] = run(MyStage, gpipe, m)
print(f"rank {rank}: {difference(stages[0].layers):.0e} from one process")

# %%
by_rank = team.pull("by_m")
measured = {m: orders.fastest([of_rank[m] for of_rank in by_rank]) for m in by_rank[0]}
figures.pipeline({"The whole batch, measured": measured[1], "8 micro-batches, measured": measured[8]})

# %%
guess.compare(100 * orders.bubble(measured[8]))

# %% [markdown]
# The number in a bar is its micro-batch. Dark bars go forward, light ones backward, and backward takes about twice as long. (Each
# picture shows the fastest of a few steps, the one that other programs disturbed least.) The striped part is the *bubble*: at
# first rank 1 has no activations yet, and in the middle rank 0 has no gradient yet. On two ranks, it's as
# long as one micro-batch takes. So the smaller the micro-batches, the smaller the bubble. With $p$ equal stages, a rank is idle for
#
# $$\frac{p-1}{m+p-1}$$
#
# of the time. Count in micro-batches: each rank works for $m$ of them, and the last rank starts $p - 1$ late.

# %%
rows = {
    m: {
        "formula": orders.bubble_formula(p, m),
        "simulated, with these stages' times": orders.bubble(
            orders.simulate([gpipe(rank, p, m) for rank in range(p)], *orders.typical_times(spans)).spans
        ),
        "measured": orders.bubble(spans),
    }
    for m, spans in measured.items()
}
pd.DataFrame(rows).T.rename_axis("micro-batches").style.format("{:.0%}")

# %% [markdown]
# The column in the middle comes from a *simulator*. It only knows how long a forward and a backward took on each stage, and
# lets every rank go through its list, with messages that take no time. You measure more than that, because messages do
# take time, and no two micro-batches take equally long.
#
# So why not take a hundred micro-batches? Because each operation has a fixed cost, and a small micro-batch has few
# images to spread it over. See how long the step itself took:

# %%
for m, spans in measured.items():
    print(f"{m} micro-batches of {64 // m:2}: {1000 * max(of_rank[-1].end for of_rank in spans):.0f} ms")

# %% [markdown]
# ## 1F1B: backward as soon as you can
#
# GPipe has a problem that the picture doesn't show. From its forward until its backward, a micro-batch occupies memory, because
# backward needs what forward computed. With GPipe, all $m$ micro-batches are in memory at once, on every rank. So smaller
# micro-batches don't save any memory, and if you add more of the same size, soon there's no room for them. (That's why GPipe's
# authors kept only each stage's inputs, and computed the rest a second time in backward. Our GPipe is just the order.)
#
# But the last rank could go backward with micro-batch 0 right after its forward. And as soon as that gradient arrives, the rank
# before can free the memory of micro-batch 0, too. So let every rank take turns: one forward, one backward. That's *1F1B*. The
# ranks in front have to go forward a few times before their first gradient comes, or they'd run out of work.
#
# ### Exercise 3 (hard): 1F1B
#
# With this schedule, extra micro-batches no longer cost memory. Return the operations of a rank, so that
#
# - no rank keeps more than $p - r$ micro-batches, where $r$ is its number,
# - the ranks are idle no longer than with GPipe,
# - and it works with any number of micro-batches, even if there are fewer than ranks.
#
# <details><summary>Hint 1: how far ahead?</summary>
#
# The last rank goes backward after its first forward. The one before it can do one more forward while it waits for the first
# gradient. And the one before that?
#
# </details><details><summary>Hint 2: three parts</summary>
#
# `ahead = min(m, ranks - 1 - rank)` forwards, then for each micro-batch that's left one forward and one backward, then the
# backwards that are left.
#
# </details><details><summary>Solution</summary>
#
# {solution of one_f_one_b}
#
# </details>


# %%
def one_f_one_b(rank, ranks, m):
    """The operations of this rank, in order, with m micro-batches: ("F", i) or ("B", i)."""
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
check.one_f_one_b(one_f_one_b)

# %% [markdown]
# Here are both schedules on four ranks. They're simulated, because four ranks on two cores would only get in each other's way.

# %%
one_f_one_b = own_or_library(one_f_one_b, orders.one_f_one_b)


def simulated(schedule, ranks, m):
    return orders.simulate([schedule(rank, ranks, m) for rank in range(ranks)]).spans


four = {"GPipe, simulated": simulated(gpipe, 4, 8), "1F1B, simulated": simulated(one_f_one_b, 4, 8)}
figures.pipeline(four, unit="1: a forward")

# %% [markdown]
# The bubble is as long as before, it's just in smaller pieces. The difference is how many micro-batches are in memory: with
# GPipe all 8, with 1F1B at most 4 on rank 0, and only 1 on the last rank. Now run it for real. How much memory do you save?

# %%
guess = predict("How many times as much does GPipe keep for backward as 1F1B, on rank 0?", 0, 10)
guess

# %%
team.push(one_f_one_b=one_f_one_b)

# %%
# %%ranks
keeps = {}
for name, schedule in (("GPipe", gpipe), ("1F1B", one_f_one_b)):
    stages, taken = run(MyStage, schedule, 8, count_bytes=True)
    row = {"most micro-batches kept": taken[0].most_kept, "MiB kept by autograd": taken[0].saved_bytes / 2**20}
    keeps[name, f"rank {rank}"] = row | {"distance to one process": difference(stages[0].layers)}
_, turns = run(MyStage, one_f_one_b, 8)

# %%
kept = pd.DataFrame({name: row for of_rank in team.pull("keeps") for name, row in of_rank.items()}).T.sort_index()
mebibytes = kept["MiB kept by autograd"]
guess.compare(mebibytes["GPipe", "rank 0"] / mebibytes["1F1B", "rank 0"])

# %%
kept.style.format("{:.2g}")

# %% [markdown]
# The bytes are measured: everything that autograd holds on to for backward, apart from the weights. They follow the count. With 1F1B
# the ranks in front keep the most, so in a long pipeline, rank 0 is the one that runs out of memory.
#
# Here's your 1F1B on this machine. Above it is what the simulator expects, from the times of GPipe's operations:

# %%
measured_1f1b = orders.fastest(team.pull("turns"))
times = orders.typical_times(measured[8])
predicted = orders.simulate([one_f_one_b(rank, p, 8) for rank in range(p)], *times).spans
figures.pipeline({"1F1B, simulated": predicted, "1F1B, measured": measured_1f1b})

# %% [markdown]
# *Break it:* start with one more forward on each rank. The check rejects that. What does it cost, and what would it be good
# for if messages took as long as a forward?
#
# ## PyTorch's pipelines
#
# PyTorch has all of this in `torch.distributed.pipelining`. You wrap this rank's layers in a `PipelineStage`, and pass it to a
# schedule. Then `schedule.step` does the whole step: it splits the batch, sends, receives, and divides the gradients by the
# number of micro-batches. The first rank needs the images,
# and the last one the labels. `Recorded` notes what PyTorch does, so that you can compare it with your list.

# %%
# %%ranks
from torch.distributed import pipelining

from workshop_lib.training import rendezvous, world

rendezvous.join_process_group(world.detect(), torch.device("cpu"))


class Recorded(pipelining.PipelineStage):
    """A stage that notes in `done` what PyTorch does with it."""

    def __init__(self, layers, number, stages, done, *chunk):
        super().__init__(layers, number, stages, torch.device("cpu"))
        self.done, self.chunk = done, chunk

    def forward_one_chunk(self, i, *rest, **options):
        self.done.append(("F", i, *self.chunk))
        return super().forward_one_chunk(i, *rest, **options)

    def backward_one_chunk(self, i, *rest, **options):
        self.done.append(("B", i, *self.chunk))
        return super().backward_one_chunk(i, *rest, **options)


# %%
# %%ranks --timeout 120
inputs = [images] if rank == 0 else []
for make, mine in ((pipelining.ScheduleGPipe, gpipe), (pipelining.Schedule1F1B, one_f_one_b)):
    layers, losses, done = network_in(size)[rank], [], []
    schedule = make(Recorded(layers, rank, size, done), n_microbatches=8, loss_fn=cross_entropy)
    schedule.step(*inputs, target=labels, losses=losses)
    stages, taken = run(MyStage, mine, 8)
    apart = (gradients(layers) - gradients(stages[0].layers)).abs().max() / gradients(layers).abs().max()
    print(f"{make.__name__}: gradients differ from yours by {apart:.0e}, from one process by {difference(layers):.0e}")
    if rank == size - 1:
        print(f"    loss {sum(losses).item() / 8:.6f}, and yours {taken[0].loss:.6f}")
    print("    same order as yours:", done == mine(rank, size, 8))

# %% [markdown]
# The loss and the gradients are the same, and PyTorch did the same things in the same order as you.
#
# And here's a whole training run. Compared with the script for one process from notebook [05](05_ddp.ipynb), this is what changes:

# %%
take_home.diff("one_process.py", "pipeline.py")

# %% [markdown]
# | change | why |
# |---|---|
# | `part = (model[:3], model[3:])[rank]` | every rank builds the network, which is small, and keeps its stage |
# | `generator=…manual_seed(1)` | all ranks go through the same batches, because this is one model and not several copies |
# | `optimizer` of `part.parameters()` | each rank updates its own layers, and nothing has to be averaged |
# | `pipeline.step` | forward, backward and all messages of a step; the first rank has the images, the last one the labels |
# | `all_gather_object` | collects the layers, so that rank 0 can test and save the whole network |

# %%
launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", 2]
options = ["--data", MNIST, "--images", sizes.sweep_samples or 60_000, "--epochs", 1, "--out", folder / "cnn.pt"]
scripts.run(*launch, SCRIPTS / "pipeline.py", *options, timeout_s=sizes.timeout_s)

# %% [markdown]
# ## When to use one
#
# A pipeline sends little: the activations at each cut, and their gradients, however many weights a stage has. So people use
# it *between* nodes, where the network is slow, with tensor parallelism inside each node and data parallelism around
# both. The price is the bubble, and you pay it in every step. To keep it small you need several times as many micro-batches as
# stages, and that takes a large batch, which has limits of its own ([07](07_large_batch.ipynb)). And you have to cut the network well,
# as the next section shows.
#
# ## Deeper: a cut that looks even
#
# You cut a network because its parameters don't fit, so why not give each rank half of them? Here's a convolutional network
# with 17 layers, in the style of VGG: each time the image shrinks, the number of channels doubles. The first twelve layers
# have 42 % of the parameters, and no other cut comes closer to half.

# %%
team.push(counts=[12, 5])

# %%
# %%ranks
from torch import nn


def vgg():
    """Three times two convolutions and a pool, then a linear layer; the same weights wherever it's built."""
    torch.manual_seed(1)
    layers, before = [], 1
    for channels in (8, 16, 32):
        for _ in range(2):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(9 * 32, 10))


# %%
# %%ranks
pair = comm.Split(rank < 2)  # two ranks are enough, should there be more
many = torch_cnn.normalize(torch.tensor(split.images[:256]))
answers = torch.tensor(split.labels[:256]).long()


def vgg_steps(counts, m=8):
    """Steps of 1F1B on two ranks, with `counts` layers on each."""
    [stage] = pipeline.stages_of_rank(MyStage, pipeline.split(vgg(), counts), pair)
    taken = []
    for _ in range(1 + repeats):
        stage.load(many, answers, m)
        taken.append(pipeline.step([stage], one_f_one_b(pair.rank, 2, m), pair))
    return taken[1:]


if rank < 2:
    part = pipeline.split(vgg(), counts)[rank]
    print(f"rank {rank}: {sum(p.numel() for p in part.parameters()):,} parameters")
uneven = vgg_steps(counts) if rank < 2 else []

# %%
guess = predict("For what share of the step is rank 1 idle?", 0, 100, unit="%")
guess

# %%
both = orders.fastest(team.pull("uneven")[:2])
figures.pipeline({"Half of the parameters each, measured": both})

# %%
busy_s = [sum(span.end - span.start for span in of_rank) for of_rank in both]
guess.compare(100 * (1 - busy_s[1] / max(of_rank[-1].end for of_rank in both)))

# %% [markdown]
# Rank 0 has most of the work, and rank 1 waits for it after every micro-batch. Parameters don't tell you how long a layer takes,
# because a convolution uses each of its weights once per *pixel*, and the first layers have the most pixels. More micro-batches
# don't help here. **The slowest stage sets the pace.** So measure first, and then cut.

# %%
# %%ranks
seconds = pipeline.layer_seconds(vgg(), many[:32]) if rank == 0 else []
for layer, s in zip(vgg(), seconds, strict=False):
    print(f"{1000 * s:5.2f} ms, {sum(p.numel() for p in layer.parameters()):6,} parameters: {type(layer).__name__}")

# %% [markdown]
# ### Exercise 4 (normal): cut by time
#
# With `balanced` you can cut any network, once you've measured its layers. It takes the layers' times and the number of stages.
# Return how many layers each stage gets, so that the slowest stage is as fast as possible. Every stage gets at least one
# layer.
#
# <details><summary>Hint 1</summary>
#
# You can try every cut. With 17 layers and 2 stages there are only 16. What does a cut cost?
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
import itertools


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
check.balanced(balanced)

# %%
balanced = own_or_library(balanced, best_counts)
seconds = team.pull("seconds")[0]
counts = balanced(seconds, 2)
team.push(counts=counts)
counts

# %%
# %%ranks
even = vgg_steps(counts) if rank < 2 else []

# %%
after = orders.fastest(team.pull("even")[:2])
figures.pipeline({"Half of the parameters each, measured": both, "Half of the time each, measured": after})

# %% [markdown]
# Now both ranks have something to do. Still, you can only cut between layers: if one layer takes longer than all the others
# together, there's no even cut. That's why networks made of many equal blocks, such as transformers, suit pipelines so well.
# But even these have uneven ends. In a language model, the first stage also holds the table of tokens, and the last one
# computes a score for every word there is, so people often give these stages one block fewer.
#
# *Try it:* cut into 4 stages, with `balanced(seconds, 4)`. How long is the bubble then, with 8 micro-batches? Take a third of each stage's
# time for forward and two thirds for backward, and let `orders.simulate` tell you.
#
# ## Deeper: several chunks per rank
#
# The bubble is $p - 1$ micro-batches long, because a micro-batch has to pass through $p - 1$ stages before the last rank has
# work. What if stages were half as long? Cut the network into $2p$ stages, and give each rank two *chunks* that aren't next to
# each other: rank 0 takes stages 0 and $p$, rank 1 takes 1 and $p + 1$. Then the last rank has work after half the time.
# That's *interleaved* 1F1B. With $v$ chunks per rank, ranks are idle for
#
# $$\frac{p-1}{v m+p-1}$$
#
# of the time. The price is more messages. There are $vp - 1$ cuts instead of $p - 1$, since each micro-batch goes around all
# ranks $v$ times. With many ranks that's about $v$ times the messages. With two ranks and two chunks, it's three times.
#
# ### Exercise 5 (hard): interleaved 1F1B
#
# An operation now also says which chunk: `("F", 0, 1)` is the forward of micro-batch 0 in the second chunk. The chunks take
# turns. A rank takes `ranks` micro-batches forward through chunk 0, then the same ones through chunk 1, and so on. Then it
# starts over with the next `ranks` micro-batches.
# Backward is the same, but begins with the last chunk. `m` is a multiple of `ranks`. As before, each rank starts with a few
# forwards, then alternates between one forward and one backward.
#
# <details><summary>Hint 1: the order of forwards</summary>
#
# Number a rank's forwards: the `n`-th belongs to turn `n // (ranks * chunks)`, and within it to chunk `within // ranks`.
# `divmod(a, b)` gives you quotient and remainder at once.
#
# </details><details><summary>Hint 2: how far ahead</summary>
#
# Before a rank's first backward, micro-batch 0 has to go through all of its chunks: `(chunks - 1) * ranks` forwards. Add two for each
# rank behind this one, so that messages have time to arrive.
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
check.interleaved(interleaved)

# %% [markdown]
# *Beat it:* the check also accepts one forward ahead for each rank behind you, instead of two, and then you keep less. What are the
# two good for?

# %%
two_chunks = partial(own_or_library(interleaved, orders.interleaved), chunks=2)
team.push(two_chunks=two_chunks)

# %%
# %%ranks
stages, chunked = run(MyStage, two_chunks, 4, chunks=2)
_, plain = run(MyStage, one_f_one_b, 4)
print(f"rank {rank} has stages {[stage.number for stage in stages]}", end=", ")
print(f"{max(difference(stage.layers) for stage in stages):.0e} from one process")

# %%
panels = {"1F1B, measured": orders.fastest(team.pull("plain"))}
panels["two chunks per rank, measured"] = orders.fastest(team.pull("chunked"))
figures.pipeline(panels)

# %%
rows = {}
for name, schedule, v, spans in zip(
    ("1F1B", "two chunks"), (one_f_one_b, two_chunks), (1, 2), panels.values(), strict=True
):
    rows[name] = {"formula": orders.bubble_formula(p, 4, v), "measured": orders.bubble(spans)}
    rows[name]["stages' activations kept by rank 0"] = orders.most_alive(schedule(0, p, 4)) / v
pd.DataFrame(rows).T.style.format("{:.2f}")

# %% [markdown]
# According to the formula, the bubble is about half as long. But rank 0 keeps more, because it goes further ahead. (A chunk is
# half a stage, so it counts half.) And you may gain less than the formula says, or nothing at all, since there are
# more messages, and the operations are shorter. PyTorch's version takes a list of stages per rank:

# %%
# %%ranks --timeout 120
layers, done = network_in(2 * size)[rank::size], []
wrapped = [Recorded(part, rank + c * size, 2 * size, done, c) for c, part in enumerate(layers)]
schedule = pipelining.ScheduleInterleaved1F1B(wrapped, n_microbatches=4, loss_fn=cross_entropy)
schedule.step(*inputs, target=labels)
print(f"{max(map(difference, layers)):.0e} from one process; same order as yours:", done == two_chunks(rank, size, 4))

# %% [markdown]
# ## Deeper: what travels
#
# At every cut, the activations of the batch go forward, and just as many gradients come back. For $n$ images that's
# $n \times 25 \times 64 \times 4$ bytes in each direction. Count what the ranks really send:

# %%
# %%ranks
from workshop_lib.lessons.mpi_basics.counting import CountingComm


def sent(schedule, m, chunks):
    counting = CountingComm(comm)
    stages = pipeline.stages_of_rank(MyStage, network_in(size * chunks), counting)
    for stage in stages:
        stage.load(images, labels, m)
    pipeline.step(stages, schedule(rank, size, m), comm)
    neighbors = sum((not stage.first) + (not stage.last) for stage in stages)
    return {"messages": counting.messages_sent, "bytes": counting.bytes_sent, "formula": neighbors * 64 * 25 * 64 * 4}


traffic = {"GPipe, 2 micro-batches": sent(gpipe, 2, 1), "1F1B, 8 micro-batches": sent(one_f_one_b, 8, 1)}
traffic["two chunks, 8 micro-batches"] = sent(two_chunks, 8, 2)
traffic["an allreduce of all gradients"] = {
    "bytes": round(2 * (size - 1) / size * 4 * sum(p.numel() for p in whole.parameters()))
}

# %%
pd.DataFrame(team.pull("traffic")[0]).T.style.format("{:,.0f}", na_rep="")

# %% [markdown]
# These are the bytes that rank 0 sends in a step. The number of micro-batches changes how many messages there are, but not how
# many bytes. Neither does the number of blocks: with ten times as many in each stage, a rank would send the
# same. (Only wider tokens would make the messages larger.) The last row is what data parallelism would send for the same
# network, and that does grow with the parameters. In the formula, each stage of a rank counts once for each neighbor.
#
# ## Deeper: is there a schedule without a bubble?
#
# Almost. Backward computes two gradients: one with respect to the input, which the previous stage is waiting for, and one with
# respect to the weights, which nobody needs before the optimizer's step. *Zero-bubble* schedules (P. Qi et al., below) split
# the two. A rank sends the first as soon as it can, and fills its gaps with the second. In PyTorch, they're called
# `ScheduleInterleavedZeroBubble` and `ScheduleZBVZeroBubble`, and their operations are `"I"` for the input and `"W"` for the
# weights. The price is memory: as long as the weights' half waits, everything it needs has to be kept.
#
# ## Deeper: sends that wait
#
# So far, sending has never waited. With MPI's plain `Send` or PyTorch's `dist.send` it may: if a message is too large for a
# buffer, the send ends only when the receiver takes it. Which schedule still gets to the end then, GPipe or 1F1B?

# %%
for schedule in (gpipe, one_f_one_b):
    stuck = orders.simulate([schedule(rank, p, 8) for rank in range(p)], blocking=True).stuck
    print(f"{schedule.__name__}: {'gets to the end' if not stuck else '; '.join(stuck.values())}")

# %% [markdown]
# In 1F1B two neighbors send to each other at the same moment, one activations, the other a gradient. Both wait for the other to
# receive. The simulator says so, but is it true? In the next cell, the stages send with `Issend` and wait for it. It fails
# on purpose, after a few seconds:

# %%
# %%ranks --catch --timeout 3
[stage] = pipeline.stages_of_rank(MyStage, network_in(size), comm)
stage.blocking = True
stage.load(images, labels, 8)
pipeline.step([stage], one_f_one_b(rank, size, 8), comm)
print("done")

# %% [markdown]
# Both ranks are in a send. That's why PyTorch's 1F1B starts a send and the receive from the same neighbor together, and only then
# waits for both. If you write a pipeline with `dist.send`, it may work in every test with small messages, and hang with the
# first large one.
#
# ## Remember
#
# - A stage receives activations, computes and sends. In backward, it receives the gradient with respect to its output, and
#   sends the one with respect to its input.
# - With $m$ micro-batches on $p$ equal stages, ranks are idle for $(p-1)/(m+p-1)$ of the time. GPipe and 1F1B have the same bubble.
# - GPipe keeps $m$ micro-batches in memory, 1F1B at most $p - r$ on rank $r$. So with 1F1B, more micro-batches cost no memory.
# - The slowest stage sets the pace. Cut by measured time, not by layers or parameters.
# - Several chunks per rank make the bubble $v$ times shorter, for at least $v$ times the messages.
# - Divide each micro-batch's loss by $m$. Then the step is the same as in one process.
#
# **Take it home:** [scripts/pipeline.py](scripts/pipeline.py).
#
# **Sources.** Y. Huang et al., [*GPipe*](https://arxiv.org/abs/1811.06965), for micro-batches and the size of the bubble. D. Narayanan et al.,
# [*Memory-Efficient Pipeline-Parallel DNN Training*](https://arxiv.org/abs/2006.09503), for 1F1B with one set of weights, which is called
# PipeDream-Flush there; and [*Efficient Large-Scale Language Model Training on GPU Clusters Using
# Megatron-LM*](https://arxiv.org/abs/2104.04473), for interleaving; its formula, $(p-1)/(vm)$, compares idle time with busy time. P. Qi, X. Wan, G. Huang and M. Lin,
# [*Zero Bubble Pipeline Parallelism*](https://arxiv.org/abs/2401.10241). PyTorch's documentation of
# [`torch.distributed.pipelining`](https://pytorch.org/docs/stable/distributed.pipelining.html), and its source in version 2.13 for
# the order of operations.

# %%
ranks.stop()
