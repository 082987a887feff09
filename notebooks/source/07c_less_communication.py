# %% [markdown] track="large batches"
# # Less communication
#
# In every step so far, every rank has sent its whole gradient, 4 bytes per parameter. For a network of 7 billion parameters
# that's 28 GB. An allreduce among many ranks has each of them send almost twice as much ([01](01_mpi_basics.ipynb)), so over a
# link of 10 Gbit/s a step waits about 45 seconds. Does all of it have to travel? Does it have to travel in every step?
#
# **You will** implement two answers yourself: send only the largest entries of a gradient, and let the ranks train alone for a
# while before they agree again. You'll train with both, and see how much accuracy is left for the bytes that you still send.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebooks
# [02](02_synchronous_sgd.ipynb) and [05](05_ddp.ipynb) first.

# %%
import numpy as np
import pandas as pd

from workshop_lib import judge, ranks
from workshop_lib.lessons.less_communication import compression, figures
from workshop_lib.lessons.less_communication import judge as check
from workshop_lib.lessons.less_communication import trainings as less_communication
from workshop_lib.notebook import profile, take_home
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import ROOT
from workshop_lib.results import records
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
quick = sizes.name == "quick"
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## Bytes per sample
#
# This is the price that we'll compare: the bytes that a rank hands to collectives, divided by the number of samples that it
# trains on. It doesn't depend on how fast the machine is, and it shows why a large batch is the oldest way to communicate
# less.

# %%
parameters = 20_434  # of the workshop's network
for batch in (16, 64, 256):
    print(f"batch {batch:3} per rank: {4 * parameters / batch:8,.0f} bytes per sample")

# %% [markdown]
# But the batch can't grow forever, as [07b](07b_gradient_noise.ipynb) shows. So keep it at 64, and send less.
#
# ## Fewer bytes in every step
#
# DDP hands each full bucket of gradients to a *communication hook*, and a hook may send whatever it likes
# ([05](05_ddp.ipynb)). There are three families of hooks:
#
# - **16 bits** halve the bytes. fp16 loses small numbers; bf16 has the range of fp32, but only two to three digits.
# - **Low rank**: PowerSGD (Vogels et al. 2019) sends each matrix of gradients as two thin ones.
# - **Top-k**: send only the $k$ entries of largest magnitude, as values and indices.
#
# The last two send an approximation. What keeps them honest is *error feedback*: each rank keeps what it didn't send, its
# *residual*, and adds it to its next gradient. So nothing is lost: a small entry just waits until it has grown large enough,
# and arrives late.
#
# ### Exercise 1 (normal): top-k with error feedback
#
# With this function you'll train a network while sending a small fraction of the bytes.
# `gradient` and `residual` are vectors of the
# same length. Choose the `k` entries of `gradient + residual` with the largest magnitude. Return three arrays: the chosen
# values, their indices, and the new residual, which is everything that isn't sent.
#
# <details><summary>Hint 1: what is sent?</summary>
#
# Everything starts from the sum of gradient and residual: which entries are the largest, which values you send, and what is
# left over. A large negative entry counts as much as a positive one.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `np.argsort(a)` gives the indices of a's entries, from the smallest to the largest, and `[-k:]` takes the last k.
# `array[indices]` reads several entries at once, and `array[indices] = 0` writes them. Copy the array before you write.
#
# </details><details><summary>Solution</summary>
#
# {solution of compress}
#
# </details>


# %%
def compress(gradient, residual, k):
    """(values [k], indices [k], new residual [n]): the largest entries of gradient + residual, and what is left."""
    # <solution>
    total = gradient + residual
    indices = np.argsort(np.abs(total))[-k:]
    kept = total.copy()
    kept[indices] = 0
    return total[indices], indices, kept
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.compress(compress)

# %% [markdown]
# *Break it:* return zeros as the new residual. The check complains, but would you notice while training?
# You'll see in a moment.
#
# ### Train with it
#
# `compression.TopK` turns your function into a hook. It keeps the residuals, one per parameter tensor, and has every rank
# gather the values and indices of all ranks.
# (An allreduce can't add them up, because ranks choose different entries.) A value takes 4
# bytes, and so does an index.

# %%
guess = predict("You send the top 1 % of the entries. What share of fp32's bytes is that?", low=0, high=10, unit="%")
guess

# %%
mine = judge.own_or_library(compress, compression.largest)
team.push(mine=mine, steps=64 if quick else 256)

# %%
# %%ranks --timeout 300
from tqdm.auto import tqdm

from workshop_lib.lessons.less_communication import compression
from workshop_lib.lessons.less_communication.compression import TopK, registered
from workshop_lib.lessons.less_communication.trainings import train

hooks = {
    "fp32": compression.ways()["fp32"],
    "yours, top 1 %": registered(TopK(0.01, mine).hook),
    "top 1 %, no feedback": registered(TopK(0.01, compression.forgetful).hook),
}
compressed = [train(name, hook, steps) for name, hook in tqdm(hooks.items())]


# %%
def table(runs):
    """Bytes per sample, test accuracy, and whether the ranks ended with the same weights, by way."""
    frame = pd.DataFrame([run["what"] | run for run in runs]).set_index("way")
    frame.columns = frame.columns.str.replace("_", " ")
    frame["share of bytes"] = frame["bytes per sample"] / (4 * parameters / less_communication.BATCH)
    return frame[["bytes per sample", "share of bytes", "test accuracy", "ranks identical"]]


compressed = table(team.pull("compressed")[0])
guess.compare(100 * compressed.loc["yours, top 1 %", "share of bytes"])

# %%
shown = {"bytes per sample": "{:,.1f}", "share of bytes": "{:.1%}", "test accuracy": "{:.2%}"}
compressed.style.format(shown)

# %% [markdown]
# Values and indices add up to 2 %, a fiftieth of what each rank *hands over*. On the wire it's less of a gain. An allgather
# brings every rank the entries of all others, so with four ranks each receives $3 \cdot 2\,\%$ of $n$, where a ring allreduce
# of the whole gradient sends $2 \cdot 3/4$ of $n$: 25 times as much. Compare the last two rows: they send the same number of bytes, but without
# feedback
# a small gradient is never heard, however long it keeps pointing the same way.
#
# ## PowerSGD, which an allreduce can add up
#
# Top-k has a weakness at scale. Every rank gathers the values of *all* ranks, so the more ranks there are, the more bytes
# arrive at each.
# PowerSGD keeps the allreduce. It treats a gradient as a matrix
# $M$ ($n \times m$) and looks for thin $P$ ($n \times r$) and $Q$ ($m \times r$) with $M \approx P Q^T$. The number $r$ is the
# *matrix rank* of that product, which has nothing to do with the ranks of MPI. It finds them by one round of the *power method*, starting from the last step's $Q$:
#
# $$P \leftarrow \text{allreduce}(M Q), \quad \text{orthogonalize } P, \quad Q \leftarrow \text{allreduce}(M^T P).$$
#
# Both products are linear in $M$, so if you sum the products over the ranks, you get the product of the sum. What's missing,
# $M - P Q^T$, goes into the residual. How many bytes will that take for our network? Vectors such as biases travel whole.

# %%
from math import prod

from workshop_lib.models import torch_cnn

matrix_rank = 2
shapes = [tuple(p.shape) for p in torch_cnn.build(seed=1).parameters()]
sent = [min(matrix_rank * (shape[0] + prod(shape[1:])), prod(shape)) if len(shape) > 1 else prod(shape) for shape in shapes]
for shape, values in zip(shapes, sent, strict=True):
    print(f"{shape!s:>16}: {values:6,} of {prod(shape):6,} values")
guess = predict("PowerSGD with rank 2 sends what share of fp32's bytes?", low=0, high=100, unit="%")
guess

# %%
# %%ranks --timeout 300
names = "fp16", "bf16", "PowerSGD, rank 2"
with_torch = [train(name, compression.ways()[name], steps) for name in tqdm(names)]

# %%
with_torch = table(team.pull("with_torch")[0])
guess.compare(100 * with_torch.loc["PowerSGD, rank 2", "share of bytes"])

# %%
print(f"by its shapes, {sum(sent) / sum(map(prod, shapes)):.1%}")
pd.concat([compressed, with_torch]).style.format(shown)

# %% [markdown]
# PowerSGD sends more than the shapes suggest, because gradients are hard to approximate at first, and PyTorch sends them whole
# in the first steps (ten, as we set it up).
# In your own script it's two lines, and the first thing to try where layers are large matrices:
#
# ```python
# state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=10)
# model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
# ```
#
# ## Fewer messages
#
# The other way is to talk less often. In *local SGD*, each rank starts from common weights, takes $H$ steps alone with its own
# samples, and then the ranks average their **weights**. That's one message every $H$ steps. With $H = 64$, only 1.6 % of the
# bytes are left.
#
# *DiLoCo* (Douillard et al. 2023) looks at the same round from above. How far did the ranks get, on average? Treat the way
# back, start minus mean, as an *outer gradient*, and take an ordinary optimizer step with it. Plain SGD with a rate of 1 gives
# you local SGD again. The paper uses SGD with *Nesterov momentum* instead, so that rounds that agree on a direction go
# further:
#
# $$g = w_\text{start} - \frac{1}{N} \sum_r w_r, \qquad v \leftarrow \mu v + g, \qquad
# w \leftarrow w_\text{start} - \eta\,(g + \mu v).$$
#
# The *velocity* $v$ starts at zero. The paper's $\eta = 0.7$ and $\mu = 0.9$ have become the usual choice.
#
# ### Exercise 2 (normal): the outer step
#
# With this function, your ranks will train while hardly talking to each other. Every rank calls it at the end of a round, with
# the common weights that the round started from, its own current weights, and the velocity.
# It returns the new common weights and the new velocity.
#
# <details><summary>Hint 1: what do the ranks have to tell each other?</summary>
#
# Only where each of them ended up.
# `comm.Allreduce(array, total)` puts the sum over the ranks into `total`. Everything else is the same on all of them.
#
# </details><details><summary>Hint 2: the order</summary>
#
# First the mean and the outer gradient, then the new velocity from the old one, then the step. Nesterov's step uses the *new*
# velocity, and the gradient once more.
#
# </details><details><summary>Solution</summary>
#
# {solution of outer_step}
#
# </details>


# %%
def outer_step(comm, start, mine, velocity, lr=0.7, momentum=0.9):
    """(weights [n], velocity [n]) after a round from `start` to `mine`, same on all ranks. Called on every rank."""
    # <solution>
    total = np.empty_like(mine)
    comm.Allreduce(mine, total)
    gradient = start - total / comm.size
    velocity = momentum * velocity + gradient
    weights = start - lr * (gradient + momentum * velocity)
    return weights, velocity
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.outer_step(outer_step)

# %% [markdown]
# *Break it:* forget the `allreduce`, so that each rank steps from its own weights. Which column of the next table would tell
# you?
#
# ### Train with it
#
# `Rounds(64, f)` lets each rank take 64 steps of plain SGD, and calls `f` at the end of the round: your function.

# %%
guess = predict("What test accuracy does your DiLoCo reach, with 64 steps alone?", low=80, high=100, unit="%")
guess

# %%
team.push(outer=judge.own_or_library(outer_step, less_communication.outer_step))

# %%
# %%ranks --timeout 300
from functools import partial

from workshop_lib.lessons.less_communication.trainings import Rounds

averaged = partial(outer, lr=1.0, momentum=0.0)
rounds = {
    "local SGD, 8 steps alone": Rounds(8, averaged),
    "local SGD, 64 steps alone": Rounds(64, averaged),
    "yours, DiLoCo, 64 steps alone": Rounds(64, outer),
}
in_rounds = [train(name, way, steps) for name, way in tqdm(rounds.items())]

# %%
in_rounds = table(team.pull("in_rounds")[0])
guess.compare(100 * in_rounds.loc["yours, DiLoCo, 64 steps alone", "test accuracy"])

# %%
pd.concat([compressed, with_torch, in_rounds]).style.format(shown)

# %% [markdown]
# ## What does a byte buy?
#
# A single run of a few seconds can mislead you by half a point. So here are recorded runs with four ranks, three seeds for
# each method (`assets/results/less_communication.jsonl`). The bars reach from the worst seed to the best.

# %%
kept = records.read(ROOT / "assets" / "results" / "less_communication.jsonl")
figures.less_communication(kept)

# %%
runs = pd.DataFrame([run["what"] | run for run in kept]).groupby(["way", "lr", "momentum"], sort=False)
summary = runs["test_accuracy"].agg(["min", "median", "max"])
summary.insert(0, "times fewer bytes", runs["bytes_per_sample"].first().max() / runs["bytes_per_sample"].first())
summary.style.format("{:.2%}").format("{:.1f}", subset="times fewer bytes").format_index("{:g}", level=[1, 2])

# %% [markdown]
# Now compare this with what the papers say:
#
# | they say | we see |
# |---|---|
# | error feedback is what makes sparse gradients train (Seide et al. 2014, Stich et al. 2018) | yes: with the same bytes but without feedback, accuracy is the worst of all |
# | 270 to 600 times fewer bytes without loss (Lin et al. 2018) | no: top 1 % loses nothing, but top 0.1 %, 500 times fewer, loses more than a point. We have neither their momentum correction nor their slow start |
# | PowerSGD trains as well as SGD (Vogels et al. 2019) | yes, though our matrices are small, so there is less to save |
# | averaging weights every $H$ steps is as good as synchronous SGD, for $H$ up to about $\sqrt{\text{steps}}$ (Stich 2019) | yes, and even beyond: $\sqrt{256} = 16$, and 64 steps alone still lose nothing |
# | DiLoCo matches synchronous training with 500 times fewer bytes (Douillard et al. 2023; 8 workers, 500 steps of AdamW alone) | with 64 steps of SGD alone it's even a little ahead, with 8 clearly. But read on |
#
# How can less communication be *better*? Look at the outer step again. Over many rounds that agree on a direction, it goes
# $\eta / (1 - \mu) = 7$ times as far as the ranks did. So DiLoCo has momentum, and our fp32 had none.
# In the last row, fp32 gets momentum in every step too, with a rate that suits it. It ends up ahead of DiLoCo with 64 steps
# alone, and level with DiLoCo with 8. The advantage came from momentum, not from sending less. Before you believe a comparison of
# this kind, ask whether every method got the recipe that suits it, as in [07b](07b_gradient_noise.ipynb). What remains is
# remarkable enough: local SGD, with a sixty-fourth of the messages, loses nothing against fp32 with the same recipe.
#
# *Beat it:* which outer rate and momentum work best for rounds of 64 steps? You have the function.
#
# ## Deeper: momentum, and the outer step in PyTorch
#
# Top-k and momentum don't mix well. Momentum repeats every gradient in the steps that follow, even one that arrived late. Lin
# et al. (2018) fix this by applying momentum first: what a rank holds back is then its velocity, not its bare gradient.
#
# DiLoCo needs no such fix, because its momentum acts once per round. In PyTorch the outer optimizer is plain `SGD` on a second
# copy of the weights, whose `.grad` you fill in yourself. Does that give you the formula that you wrote?

# %%
import torch

random = np.random.default_rng(1)
start, velocity = random.normal(size=5), np.zeros(5)
copy = torch.nn.Parameter(torch.tensor(start))
outer = torch.optim.SGD([copy], lr=0.7, momentum=0.9, nesterov=True)
for _ in range(3):
    mean = start + random.normal(size=5)  # where the ranks got to in this round
    copy.grad = copy.detach() - torch.tensor(mean)
    outer.step()
    velocity = 0.9 * velocity + (start - mean)
    start = start - 0.7 * (start - mean + 0.9 * velocity)
    print("after this round they differ by", np.abs(start - copy.detach().numpy()).max())

# %% [markdown]
# It does. So [scripts/diloco.py](scripts/diloco.py) is [05](05_ddp.ipynb)'s script with these lines changed. It goes on from
# its checkpoint, which therefore has both momenta, the common one and that of each rank:

# %%
take_home.diff("ddp.py", "diloco.py")

# %% [markdown]
# Each rank steps alone with its own optimizer, and `vector_to_parameters` writes the common weights back. PyTorch has ready-made
# parts for local SGD, too: `post_localSGD_hook` and `torch.distributed.optim.PostLocalSGDOptimizer`, which together average
# the gradients in every step at first, and later only the weights, every few steps. `torchft` ships DiLoCo itself, and a version
# that sends the weights in pieces while training goes on (Streaming DiLoCo, Douillard et al. 2025).
#
# ## Deeper: computing in 16 bits
#
# Smaller numbers can also save work inside a rank. With bf16 *autocast*,
# matrix products and convolutions compute with 16-bit copies of the weights.

# %%
rows = []
for precision in ("fp32", "bf16"):
    options = TrainOptions(backend="ddp", precision=precision, epochs=2, train_samples=2000 if quick else 15_000)
    last = team.train(options, timeout=sizes.timeout_s)["epochs"][-1]
    speeds = {"samples/s": last["samples_per_s"], "test accuracy": last["test_accuracy"]}
    rows.append({"precision": precision} | speeds)
pd.DataFrame(rows).style.format({"samples/s": "{:,.0f}", "test accuracy": "{:.2%}"}).hide()

# %% [markdown]
# Whether that's faster depends on the processor, which needs instructions for bf16. It doesn't save memory for the weights.
# With Adam, a parameter still takes 4 bytes for the weight, 4 for its gradient and 8 for Adam's state. The bf16 copy takes 2
# more, from the forward pass until the backward pass has used it. The famous 16 bytes of mixed precision come from a different
# recipe that also adds up to 16; [06c](06c_fitting_more.ipynb) has the table, and says in which order to average,
# unscale and compute LARS's norms in 16 bits. What
# autocast does save is activations. And its gradients are fp32, so to send fewer bytes you still need a hook.
#
# ## Deeper: waiting less
#
# Even a message of zero bytes makes ranks wait for the slowest of them, the *straggler*. There are three ways to wait less.
# All of them make gradients *stale*: a rank computes them with weights that lack some updates. The number of missing updates
# is the *staleness*.
#
# - **lag-sync** applies gradients one step late. They travel while the next ones are computed, so a rank that's late *once*
#   holds nobody up. It's also the way around the one message that DDP can't hide, the first layer's ([05](05_ddp.ipynb)): that
#   gradient comes last, but now it has the whole next step to travel. This is how Kurth et al. (2018) trained a
#   network that finds cyclones in climate data, on 27,360 of Summit's V100 GPUs, at up to 1.13 exaflop/s in 16 bits.
# - **local SGD**, as above.
# - **asynchronous**: a *parameter server* holds the weights, and applies each gradient as it arrives.
#   No worker waits for another.
#
# [staleness.py](../workshop_lib/lessons/less_communication/staleness.py) has all of them, each in a dozen lines. We use three ranks. Rank 0 is the
# server of the asynchronous run, and sleeps in the runs that need none. Ranks 1 and 2 are the workers. In every step one of
# the two is 10 ms late: either always the same one (*fixed*, as on a slow node), or each in turn (*roaming*, like a
# disturbance that hits one node now and a different one later).

# %%
question = "One worker is always late. How many times as long as asynchronous SGD does synchronous SGD take?"
guess = predict(question, low=0.5, high=4, unit="times")
guess

# %%
team = ranks.start(3)
team.push(steps=60 if quick else 300)


# %%
# %%ranks
import time

import numpy as np
from mpi4py import MPI

from workshop_lib.data import mnist
from workshop_lib.lessons.gradient_noise.flat import FlatNetwork
from workshop_lib.lessons.less_communication import staleness

comm, LATE_S = MPI.COMM_WORLD, 0.01
train, test = mnist.load("train"), mnist.load("test")
network = FlatNetwork(seed=1)
start = network.weights()


def late_gradient(straggler):
    def gradient(weights, step):
        rows = np.random.default_rng([comm.rank, step]).integers(train.total, size=32)
        computed = network.gradient(weights, train.images[rows], train.labels[rows])
        if comm.rank == (2 if straggler == "fixed" else 1 + step % 2):
            time.sleep(LATE_S)
        return computed

    return gradient


# %%
# %%ranks --timeout 300
from itertools import product

from tqdm.auto import tqdm

runs, modes = [], ("synchronous", "lag_sync", "local_sgd", "asynchronous")
for straggler, mode in tqdm(list(product(("fixed", "roaming"), modes))):
    gradient = late_gradient(straggler)
    gradient(start, 0)  # warm up
    run = staleness.by_name(mode, comm, start, gradient, lr=0.1, steps=steps)
    network.set(run.weights)
    results = {"ms per step": 1000 * run.seconds / steps, "staleness": run.staleness}
    results["gradients"] = [run.workers.count(worker) for worker in range(1, comm.size)]
    results["test accuracy"] = network.accuracy(test.images[:2000], test.labels[:2000])
    runs.append({"straggler": straggler, "mode": mode.replace("_", " ")} | results)

# %%
runs = pd.DataFrame(team.pull("runs")[0])
runs["mean staleness"] = [sum(s * n for s, n in c.items()) / sum(c.values()) for c in runs["staleness"]]
fixed = runs[runs["straggler"] == "fixed"].set_index("mode")
guess.compare(fixed.loc["synchronous", "ms per step"] / fixed.loc["asynchronous", "ms per step"])

# %%
columns = ["straggler", "mode", "ms per step", "mean staleness", "test accuracy"]
formats = {"ms per step": "{:.1f}", "mean staleness": "{:.2f}", "test accuracy": "{:.1%}"}
runs[columns].style.format(formats).hide()

# %%
print("gradients of rank 1 and rank 2, asynchronous, rank 2 late:", fixed.loc["asynchronous", "gradients"])
figures.staleness(dict(fixed["staleness"]), "MNIST, two workers, one of them always 10 ms late")

# %% [markdown]
# All runs use the same number of gradients. What to look for:
#
# - With a *fixed* straggler, lag-sync and local SGD gain little: ranks that have to agree now and then are as slow as the
#   slowest of them. Only the asynchronous run lets the quick worker do more. But then the slow worker's gradients are staler,
#   and its *data* count for less.
# - With a *roaming* straggler, delays of different ranks can overlap instead of adding up, in all modes except synchronous.
# - Staleness can cost accuracy while the network is still learning fast: compare
#   lag-sync and local SGD with the synchronous run. (The
#   asynchronous run takes twice as many steps at half the rate, so don't compare its accuracy.) With two asynchronous workers,
#   the staleness is about one. With a hundred it's about a hundred, and the learning rate has to go down.
# - Run it again. Synchronous, lag-sync and local SGD repeat their accuracy to the last digit. Asynchronous SGD doesn't.
#
# The guidelines that this workshop grew out of recommend synchronous SGD first, since it's reproducible and converges easily.
# They recommend asynchronous SGD for algorithms that are well understood, and suggest that you consider lag-sync. They also
# mention a *hybrid*, in which ranks are synchronous within a group, but the groups are asynchronous with each other.
# Kurth et al. (2017) reached 15 petaflop/s with it on Cori.
# Our measurement agrees, with one addition: know your straggler. The cure for a *fixed* one is to repair the node, or to
# drop it.
#
# *Try it:* `LATE_S = 0.0`. Which mode costs the most when nobody is late?
#
# ## Remember
#
# - Bytes per sample is the price. You can lower it by sending fewer bytes in every step, or by taking more steps between
#   messages.
# - Error feedback makes sure that what compression leaves out is sent later. Without it, top-k drops small gradients forever.
# - Every rank has to gather top-k from all ranks, so its traffic grows with their number.
#   PowerSGD is linear, so an allreduce still adds it up.
# - Local SGD averages weights once per round. DiLoCo treats the mean progress of a round as a gradient, and adds momentum.
# - Staleness buys time when a different rank is late each time. If it's always the same one, you need asynchronous SGD, or you
#   drop the node.
#
# **Sources.** F. Seide et al., *1-Bit Stochastic Gradient Descent* (Interspeech 2014), and S. Stich et al., *Sparsified SGD with
# Memory* (arXiv:1809.07599): error feedback. Y. Lin et al., *Deep Gradient Compression* (arXiv:1712.01887): with momentum.
# T. Vogels et al., *PowerSGD* (arXiv:1905.13727). S. Stich, *Local SGD Converges Fast and Communicates Little*
# (arXiv:1805.09767). A. Douillard et al., *DiLoCo* (arXiv:2311.08105), and Z. Charles et al., its scaling laws (arXiv:2503.09799).
# T. Kurth et al., *Exascale Deep Learning for Climate Analytics* (arXiv:1810.01993): gradient lag; and *Deep Learning at 15PF*
# (arXiv:1708.05256): hybrid SGD. J. Dean et al., *Large Scale Distributed Deep Networks* (NIPS 2012): parameter servers. L. Shao, V. Lee, T. Kurth, M. Mustafa and Prabhat, guidelines on
# distributed training: when to be asynchronous.

# %%
ranks.stop()
