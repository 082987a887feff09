# %% [markdown] track="large batches"
# # Less communication
#
# In every step so far, every rank has sent its whole gradient, 4 bytes per parameter. For a network of 7 billion parameters
# that's 28 GB, and an allreduce at 10 Gbit/s takes about 45 seconds ([01](01_mpi_basics.ipynb)). Does the whole gradient have
# to travel? And does it have to travel in every step?
#
# **You will** implement two ways to send less: send only the largest entries of a gradient, or let the ranks train alone for a
# while before they agree on common weights again. You'll train with both, see what they do to the accuracy, and work out when
# they pay off.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebooks
# [02](02_synchronous_sgd.ipynb) and [05](05_ddp.ipynb) first.

# %%
import numpy as np
import pandas as pd

from workshop_lib import predict, profile, ranks, take_home

from lessons import less_communication as lesson

sizes = profile.current()
quick = sizes.name == "quick"
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## Fewer bytes in every step
#
# We'll compare methods by their *bytes per sample*: the bytes that a rank hands to collectives, divided by the number of
# samples that it trains on. With the workshop's 20,434 parameters and a batch of 64 per rank, that's $4 \cdot 20{,}434 / 64$,
# or 1,277 bytes per sample.
#
# DDP hands each full bucket of gradients to a *communication hook*, and a hook may send whatever it likes ([05](05_ddp.ipynb)).
# Your hook will send only the $k$ entries of largest magnitude, as values and indices. This method is called *top-k*.
#
# Top-k is an approximation. *Error feedback* makes up for what's left out: each rank keeps what it didn't send, its *residual*,
# and adds it to its next gradient. So small entries add up over the steps until they're large enough to be sent.
#
# ### Exercise 1 (normal): top-k with error feedback
#
# With this function, your ranks will train a network while they send only a small fraction of the bytes. `gradient` and
# `residual` are vectors of the same length. Choose the `k` entries of `gradient + residual` with the largest magnitude. Return
# three arrays: the chosen values, their indices, and the new residual, which is everything that isn't sent.
#
# <details><summary>Hint 1: what is sent?</summary>
#
# Everything starts from the sum of gradient and residual: which entries are the largest, which values are sent, and what is
# left over. A large negative entry counts as much as a positive one.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `np.argsort(a)` returns the indices that sort `a`, from its smallest entry to its largest, and `[-k:]` takes the last k.
# `array[indices]` reads several entries at once, and `array[indices] = 0` sets them to zero. Copy the array before you write.
#
# </details><details><summary>Solution</summary>
#
# {solution of compress}
#
# </details>


# %%
def compress(gradient, residual, k):
    """The largest entries of gradient + residual, and what is left.

    Returns (values [k], indices [k], new residual [n]).
    """
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
lesson.check.compress(compress)

# %% [markdown]
# ### Train with it
#
# `TopK` turns your function into a hook that keeps the residual between steps. Since every rank chooses different entries, each
# rank gathers the values and indices of all ranks. A value takes 4 bytes, and so does an index. All runs take the same number
# of steps.

# %%
mine = lesson.check.written(compress)
team.push(mine=mine, steps=64 if quick else 256)

# %%
# %%ranks --timeout 300
from tqdm.auto import tqdm

from lessons import less_communication as lesson

hooks = {
    "fp32": lesson.compression.ways()["fp32"],
    "yours, top 1 %": lesson.registered(lesson.TopK(0.01, mine).hook),
    "top 1 %, no feedback": lesson.registered(
        lesson.TopK(0.01, lesson.compression.forgetful).hook
    ),
}
compressed = [lesson.train(name, hook, steps) for name, hook in tqdm(hooks.items())]

# %%
compressed = lesson.runs.table(team.pull("compressed")[0])
lesson.runs.formatted(compressed)

# %% [markdown]
# Values and indices add up to 2 %: each rank *hands over* a fiftieth of what it hands over with fp32. How much it *receives* is
# a different number, which you'll need in exercise 3.
#
# Now compare the last two rows. Without feedback a small entry is never sent, no matter how many steps in a row it has the same
# sign.
#
# ## Fewer messages
#
# The second way is to communicate less often. In *local SGD*, each rank starts from common weights, and takes $H$ steps alone
# with its own samples. Then the ranks average their **weights**, so they need only one allreduce every $H$ steps.
#
# *DiLoCo* (Douillard et al. 2023) looks at the whole round. How far did the ranks move, on average? Treat the difference, the
# start minus the mean, as an *outer gradient*, and take an ordinary optimizer step with it. Plain SGD with a rate of 1 gives
# you local SGD again. The paper uses SGD with *Nesterov momentum* instead, so if several rounds agree on a direction, the
# weights move further:
#
# $$g = w_\text{start} - \frac{1}{N} \sum_r w_r, \qquad v \leftarrow \mu v + g, \qquad
# w \leftarrow w_\text{start} - \eta\,(g + \mu v).$$
#
# The *velocity* $v$ starts at zero. The paper's $\eta = 0.7$ and $\mu = 0.9$ have become the usual choice.
#
# ### Exercise 2 (normal): the outer step
#
# With this function, your ranks will train while hardly talking to each other. At the end of each round, every rank calls it
# with the common weights that the round started from, its own current weights, and the velocity. The function returns the new
# common weights and the new velocity.
#
# <details><summary>Hint 1: what do the ranks have to tell each other?</summary>
#
# Only where each of them ended up. `comm.Allreduce(array, total)` puts the sum over the ranks into `total`. Everything else is
# the same on all ranks.
#
# </details><details><summary>Hint 2: the order</summary>
#
# Compute the mean and the outer gradient first, then the new velocity from the old one, and then take the step. Nesterov's step
# uses the *new* velocity, and the gradient once more.
#
# </details><details><summary>Solution</summary>
#
# {solution of outer_step}
#
# </details>


# %%
def outer_step(comm, start, mine, velocity, lr=0.7, momentum=0.9):
    """(weights [n], velocity [n]) after a round from `start` to `mine`.

    They are the same on all ranks. Called on every rank.
    """
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
lesson.check.outer_step(outer_step)

# %% [markdown]
# *Break it:* leave out the `Allreduce`, so that each rank uses its own weights instead of the mean. Which columns of the next
# table give the mistake away?
#
# ### Train with it
#
# `lesson.Rounds(64, f)` lets each rank take 64 steps of plain SGD, and then calls your `f`.

# %%
team.push(outer=lesson.check.written(outer_step))

# %%
# %%ranks --timeout 300
from functools import partial

averaged = partial(outer, lr=1.0, momentum=0.0)
rounds = {
    "local SGD, 8 steps alone": lesson.Rounds(8, averaged),
    "local SGD, 64 steps alone": lesson.Rounds(64, averaged),
    "yours, DiLoCo, 64 steps alone": lesson.Rounds(64, outer),
}
in_rounds = [lesson.train(name, way, steps) for name, way in tqdm(rounds.items())]

# %%
in_rounds = lesson.runs.table(team.pull("in_rounds")[0])
lesson.runs.formatted(in_rounds)

# %% [markdown]
# ## What does a byte buy?
#
# With a single run of a few seconds, the accuracy can be off by half a point. So here are recorded runs with four ranks and
# three seeds each.

# %%
lesson.figures.less_communication(
    lesson.records.read(lesson.ROOT / "assets" / "results" / "less_communication.jsonl")
)

# %% [markdown]
# The figure lets you check what the papers say:
#
# | they say | we see |
# |---|---|
# | compressed gradients only train well with error feedback (Seide et al. 2014, Stich et al. 2018) | yes: without feedback, the accuracy is the lowest of all |
# | 270 to 600 times fewer bytes without loss (Lin et al. 2018) | no: top 0.1 %, which is 500 times fewer, loses more than a point of accuracy. But we use neither their momentum correction nor their gradual start |
# | averaging weights every $H$ steps is as good as synchronous SGD, for $H$ up to about $\sqrt{\text{steps}}$ (Stich 2019, proved for strongly convex losses) | yes, and beyond: $\sqrt{256} = 16$, but even rounds of 64 steps lose nothing |
# | DiLoCo matches synchronous training with 500 times fewer bytes (Douillard et al. 2023; 8 workers, rounds of 500 AdamW steps) | with rounds of 64 SGD steps, DiLoCo is about level with fp32, and with rounds of 8 it's clearly ahead |
#
# How can less communication be *better*? If many rounds agree on a direction, the outer step goes $\eta / (1 - \mu) = 7$ times
# as far as the ranks went on their own. So DiLoCo has momentum, and fp32 has none. With momentum and a rate that suits it (the
# last entry of the legend), fp32 comes within 0.2 points of the better DiLoCo run. So whenever you read such a comparison, ask
# whether every method got a recipe that suits it. Local SGD has the same recipe as fp32 without momentum, and loses nothing,
# with a sixty-fourth of the messages.
#
# *Beat it:* which outer rate and momentum work best? Replace `outer` in `rounds` by `partial(outer, lr=…, momentum=…)`.
#
# ## When does it pay?
#
# Sending fewer bytes only helps if training has to wait for them, and compressing takes time, too. Let's work out when your
# top-k pays, and then see whether emulated ranks agree.
#
# ### Exercise 3 (warm-up): does compressing pay?
#
# With this function you'll find the bandwidth below which compressing pays, and come back to the network of 7 billion
# parameters. A step waits for the gradients of all ranks. In a ring allreduce, a rank receives $2\,(p-1)/p$ times the size of
# its gradient, where $p$ is the number of ranks. With top-k, each rank first has to compress its own gradient, and then
# receives the values and indices of all *other* ranks. By how many seconds does top-k shorten the step? (Leave latencies out.)
#
# <details><summary>Hint</summary>
#
# An index takes as many bytes as a value, so a rank sends `2 * share * gradient_bytes`, and receives as much from each of the
# `ranks - 1` others.
#
# </details><details><summary>Solution</summary>
#
# {solution of pays}
#
# </details>


# %%
def pays(gradient_bytes, bytes_per_s, ranks, compress_s, share=0.01):
    """Seconds that top-k saves, against a ring allreduce. Negative if it costs time.

    gradient_bytes: one rank's gradient. bytes_per_s: what a rank receives per second.
    compress_s: how long compressing takes. share: which part of the entries is sent.
    """
    # <solution>
    whole_bytes = 2 * (ranks - 1) / ranks * gradient_bytes
    top_bytes = (ranks - 1) * 2 * share * gradient_bytes
    return (whole_bytes - top_bytes) / bytes_per_s - compress_s
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.pays(pays)

# %% [markdown]
# Now let four ranks *emulate* imagined nodes with one GPU each ([05](05_ddp.ipynb)), and change the bandwidth between these
# nodes. The neural network has four layers. Each layer has a million parameters, and takes 2 ms in the forward pass and 4 ms in
# the backward pass. These times are guesses. But `ns_per_entry`, the time that compressing takes per entry, was measured on an
# H200 for layers of this size ([record](../assets/results/gpu/one_gpu.jsonl)). If you know the time on your own GPU, use that
# instead.

# %%
guess = predict(
    "Below which bandwidth is a step with your top 1 % quicker than one with fp32?",
    0,
    30,
    unit="GB/s",
)
guess

# %%
machine = "ethernet-10g"
team = ranks.start(4, machine=machine)
ns_per_entry = {"fp32": 0, "top 1 %": 0.19}
team.push(ns_per_entry=ns_per_entry)

# %%
# %%ranks --timeout 200
from lessons import less_communication as lesson

step_ms = {
    gb_per_s: lesson.links.step_ms(gb_per_s, ns_per_entry)
    for gb_per_s in (0.1, 0.3, 1, 3, 6, 10, 30)
}

# %%
step_ms = team.pull("step_ms")[0]
gb_per_s = np.array(list(step_ms))
lost_ms = [times["top 1 %"] - times["fp32"] for times in step_ms.values()]
# Where the lines cross: between two points, times are linear in 1 / bandwidth.
crossing = 1 / np.interp(0, lost_ms, 1 / gb_per_s)
guess.compare(crossing, emulated_on=machine)

# %%
lesson.figures.step_times(step_ms, machine)

# %% [markdown]
# At 0.1 GB/s, top-k makes a step many times as fast. But from a few GB/s on, the messages hide behind the backward pass, except
# for one: the first layer's gradients are ready last, so no computation is left to hide their message. A step then waits for
# the bytes of only one layer, but it pays for compressing all four layers, about 0.2 ms each. Below which bandwidth does top-k pay
# in this case, according to your function?

# %%
pays = lesson.check.written(pays)
entries = lesson.links.WIDTH**2
compress_s = lesson.links.LAYERS * entries * 1e-9 * ns_per_entry["top 1 %"]
saved_s = {
    gb: pays(4 * entries, 1e9 * gb, ranks=4, compress_s=compress_s)
    for gb in np.geomspace(1, 30, 1000)
}
yours = max(gb for gb in saved_s if saved_s[gb] > 0)
print(f"top-k pays below {yours:.1f} GB/s by your formula, {crossing:.1f} emulated")

# %% [markdown]
# Your number should be slightly lower, because the formula leaves out latencies. With four ranks, the ring allreduce takes six
# rounds of messages, and the allgather only three, so latencies cost fp32 more.
#
# Back to the 7 billion parameters at 10 Gbit/s. Suppose that nothing hides their messages, and that compressing takes as long
# per entry as above.

# %%
parameters = 7e9
rows = {}
for p in (8, 64, 512):
    whole_s = 2 * (p - 1) / p * 4 * parameters / 1.25e9
    compress_s = parameters * 1e-9 * ns_per_entry["top 1 %"]
    rows[p] = {
        "fp32, s": whole_s,
        "your top 1 %, s": whole_s - pays(4 * parameters, 1.25e9, p, compress_s),
        "64 steps alone, s": whole_s / 64,
    }
pd.DataFrame(rows).T.rename_axis("ranks").round(1)

# %% [markdown]
# With 512 ranks, fp32 takes the 45 seconds of the opening. With 8 ranks, your top 1 % takes less than five seconds. But each
# rank receives what all others send, so with 64 ranks top-k saves only a third of the time, and with 512 ranks it takes five
# times as long as fp32. Sending the top 1 % can't pay with more than 100 ranks, however slow the network is. (In your formula,
# top-k receives fewer bytes only if the share is below $1/p$.) Rounds of 64 steps cut the time by a factor of 64, whatever the
# number of ranks. Agarwal et al. (2021) compared more than 200 setups that are typical of data centers, and compression beat a
# well-tuned allreduce in only six of them.
#
# ## Deeper: DiLoCo in PyTorch
#
# In PyTorch the outer optimizer is an ordinary `SGD` with Nesterov momentum, on a second copy of the weights, whose `.grad` you
# fill in yourself. These are the lines of a round in [scripts/diloco.py](scripts/diloco.py):

# %%
take_home.marked("diloco.py", r"common|outer =|outer\.step|args\.alone|mean\b", 0)

# %% [markdown]
# Each rank steps alone with its own optimizer, and `vector_to_parameters` writes the common weights back. The rest of the
# script is that of notebook [05](05_ddp.ipynb), with a checkpoint that also keeps the outer optimizer and every rank's
# momentum.
#
# ## Deeper: PowerSGD, which an allreduce can add up
#
# PyTorch comes with hooks of its own. Sending **16 bits** per entry halves the bytes. (With fp16, very small numbers become
# zero, and bf16 keeps fewer digits.) **PowerSGD** (Vogels et al. 2019) sends each matrix of gradients as two thin matrices,
# also with error feedback. It takes a layer's gradient as a matrix $M$ ($n \times m$), and looks for thin matrices $P$ ($n
# \times r$) and $Q$ ($m \times r$) with $M \approx P Q^T$. The number $r$ is the *matrix rank* of that product, which has
# nothing to do with the ranks of MPI. PowerSGD finds $P$ and $Q$ by one round of the *power method*, starting from the last
# step's $Q$:
#
# $$P \leftarrow \text{allreduce}(M Q), \quad \text{orthogonalize } P, \quad Q \leftarrow \text{allreduce}(M^T P).$$
#
# Both products are linear in $M$, so an allreduce can add them up. What this approximation misses, $M - P Q^T$, goes into the
# residual. Our largest matrix has $56 \cdot 200 = 11{,}200$ entries, while the two thin matrices for $r = 2$ have 512 entries
# together.

# %%
team = ranks.start(sizes.ranks)
team.push(steps=64 if quick else 256)
guess = predict(
    "PowerSGD with r = 2 sends what share of fp32's bytes?", low=0, high=100, unit="%"
)
guess

# %%
# %%ranks --timeout 300
from tqdm.auto import tqdm

from lessons import less_communication as lesson

names = "fp16", "PowerSGD, rank 2"
with_torch = [
    lesson.train(name, lesson.compression.ways()[name], steps) for name in tqdm(names)
]

# %%
with_torch = lesson.runs.table(team.pull("with_torch")[0])
guess.compare(100 * with_torch.loc["PowerSGD, rank 2", "share of bytes"])

# %%
lesson.runs.formatted(with_torch)

# %% [markdown]
# Low rank pays off for matrices that are large in both directions. Our last layer's matrix isn't, and biases aren't compressed
# at all, so a step sends 12 % of the bytes. The first ten steps send whole gradients, so the average over 256 steps is 15 %. In
# your own script:
#
# ```python
# from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
#
# state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=10)
# model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
# ```
#
# ## Remember
#
# - With error feedback, what compression leaves out of one step is sent in a later one.
# - With top-k, every rank gathers what all ranks send, so the traffic grows with the number of ranks.
# - Compress only where a step waits for its messages, and count what each rank receives.
# - Local SGD averages the weights once per round. DiLoCo treats the ranks' mean progress in a round as a gradient, and adds
#   momentum.
#
# However little you send, every rank still waits for the slowest rank. That's the subject of
# [07e_waiting_less](07e_waiting_less.ipynb).
#
# **Sources.** Error feedback: F. Seide et al., Interspeech 2014, and S. Stich et al., arXiv:1809.07599. With momentum: Y. Lin
# et al., arXiv:1712.01887. PowerSGD: T. Vogels et al., arXiv:1905.13727. When compressing pays: S. Agarwal et al.,
# arXiv:2103.00543. Local SGD: S. Stich, arXiv:1805.09767. DiLoCo: A. Douillard et al., arXiv:2311.08105.

# %%
ranks.stop()
