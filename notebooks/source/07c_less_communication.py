# %% [markdown] track="large batches"
# # Less communication
#
# In every step so far, every rank has sent its whole gradient, 4 bytes per parameter. For a network of 7 billion parameters
# that's 28 GB, and an allreduce at 10 Gbit/s takes about 45 seconds ([01](01_mpi_basics.ipynb)). Does all of it have to travel?
# Does it have to travel in every step?
#
# **You will** implement two answers yourself: send only the largest entries of a gradient, and let the ranks train alone for a
# while before they agree again. You'll train with both, see what they do to the accuracy, and work out which of them pays.
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
# The price that we'll compare is *bytes per sample*: the bytes that a rank hands to collectives, divided by the number of samples
# that it trains on. With the workshop's 20,434 parameters and a batch of 64 per rank, it's $4 \cdot 20{,}434 / 64$, or 1,277
# bytes per sample.
#
# DDP hands each full bucket of gradients to a *communication hook*, and a hook may send whatever it likes
# ([05](05_ddp.ipynb)). Yours will send only the $k$ entries of largest magnitude, as values and indices. That's called *top-k*.
#
# Top-k is an approximation. What keeps it honest is *error feedback*: each rank keeps what it didn't send, its *residual*, and
# adds it to its next gradient. So a small entry just waits until it has grown large enough.
#
# ### Exercise 1 (normal): top-k with error feedback
#
# With this function you'll train a network while sending a small fraction of the bytes. `gradient` and `residual` are vectors of
# the same length. Choose the `k` entries of `gradient + residual` with the largest magnitude. Return three arrays: the chosen
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
# `TopK` turns your function into a hook, which keeps the residuals. Each rank gathers the values and indices of all ranks, since
# every rank chooses different entries. A value takes 4 bytes, and so does an index. Every run has 256 steps.

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
# Values and indices add up to 2 %, a fiftieth of what each rank *hands over*. What it *receives* is a different number, which
# you'll need in exercise 3.
#
# Now compare the last two rows. Without feedback a small entry is never sent, no matter how long it keeps pointing the same way.
#
# ## Fewer messages
#
# The second answer is to talk less often. In *local SGD*, each rank starts from common weights, takes $H$ steps alone with its
# own samples, and then the ranks average their **weights**. That's one message every $H$ steps.
#
# *DiLoCo* (Douillard et al. 2023) looks at the whole round. How far did the ranks get, on average? Treat the way back, start
# minus mean, as an *outer gradient*, and take an ordinary optimizer step with it. Plain SGD with a rate of 1 gives you local SGD
# again. The paper uses SGD with *Nesterov momentum* instead, so if several rounds agree on a direction, the weights go further:
#
# $$g = w_\text{start} - \frac{1}{N} \sum_r w_r, \qquad v \leftarrow \mu v + g, \qquad
# w \leftarrow w_\text{start} - \eta\,(g + \mu v).$$
#
# The *velocity* $v$ starts at zero. The paper's $\eta = 0.7$ and $\mu = 0.9$ have become the usual choice.
#
# ### Exercise 2 (normal): the outer step
#
# With this function, your ranks will train while hardly talking to each other. Every rank calls it at the end of a round, with
# the common weights that the round started from, its own current weights, and the velocity. It returns the new common weights
# and the new velocity.
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
# *Break it:* forget the `Allreduce`, so that each rank steps from its own weights. Which columns of the next table tell you?
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
# A single run of a few seconds can mislead you by half a point. So here are recorded runs with four ranks and three seeds each.

# %%
lesson.figures.less_communication(
    lesson.records.read(lesson.ROOT / "assets" / "results" / "less_communication.jsonl")
)

# %% [markdown]
# The figure lets you check what the papers say:
#
# | they say | we see |
# |---|---|
# | error feedback is what makes compressed gradients train (Seide et al. 2014, Stich et al. 2018) | yes: without feedback, accuracy is the worst of all |
# | 270 to 600 times fewer bytes without loss (Lin et al. 2018) | no: top 0.1 %, which is 500 times fewer, loses more than a point. But we have neither their momentum correction nor their slow start |
# | averaging weights every $H$ steps is as good as synchronous SGD, for $H$ up to about $\sqrt{\text{steps}}$ (Stich 2019, proved for strongly convex losses) | it holds for our network, too: $\sqrt{256} = 16$, and even 64 steps alone lose nothing |
# | DiLoCo matches synchronous training with 500 times fewer bytes (Douillard et al. 2023; 8 workers, 500 steps of AdamW alone) | with 64 steps of SGD alone it's about level, and with 8 clearly ahead |
#
# How can less communication be *better*? If many rounds agree on a direction, the outer step goes $\eta / (1 - \mu) = 7$ times
# as far as the ranks went on their own. So DiLoCo has momentum, and fp32 has none. Give fp32 momentum, with a rate that suits
# it (the last entry of the legend), and it comes within 0.2 points of the better DiLoCo run. So whenever you read such a
# comparison, ask whether every method got the recipe that suits it. And local SGD, with a sixty-fourth of the messages, loses
# nothing against fp32 with the same recipe.
#
# *Beat it:* which outer rate and momentum work best? Replace `outer` in `rounds` by `partial(outer, lr=…, momentum=…)`.
#
# ## When does it pay?
#
# Fewer bytes only help if you wait for them, and compressing takes time, too. Let's work out when your top-k pays, and then see
# whether emulated ranks agree.
#
# ### Exercise 3 (warm-up): does compressing pay?
#
# With this function you'll find the bandwidth below which compressing pays, and answer the question about 7 billion parameters.
# A step waits for the gradients of all ranks. In a ring allreduce, a rank receives $2\,(p-1)/p$ times its gradient, $p$ being
# the number of ranks. With top-k, it receives the values and the indices of all *other* ranks, but first it has to compress its
# own gradient. By how many seconds does top-k shorten the step? (Leave latencies out.)
#
# <details><summary>Hint</summary>
#
# An index is as large as a value, so a rank sends `2 * share * gradient_bytes`, and receives that from `ranks - 1` others.
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
# Now let four ranks *emulate* imagined nodes with a GPU each ([05](05_ddp.ipynb)), and change the bandwidth between them. Their
# network has four layers, each with a million parameters, 2 ms forward and 4 ms backward. Those times are guesses, but how
# many nanoseconds per entry compressing takes was measured on an H200 ([record](../assets/results/gpu/one_gpu.jsonl)). Put in
# the numbers of your own GPU.

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
# for one: the first layer's gradients are ready last, so nothing is left to hide their message. So a step waits for the bytes of
# one layer, while compressing costs all four layers their 0.2 ms. What does your function say about that?

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
# Your number should be slightly lower, because the formula leaves out latencies: the ring takes six rounds, and the allgather
# only three.
#
# Back to the 7 billion parameters at 10 Gbit/s. Say that nothing hides their messages, and that compressing is as fast as on the
# H200.

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
# With 512 ranks, fp32 takes the 45 seconds of the opening. With 8 ranks, your top 1 % takes less than five. But each rank receives
# what all others send, so with 64 ranks it saves only a third of the time, and with 512 it takes five times as long as fp32.
# Sending the top 1 % can't pay with more than 100 ranks, however slow the network is. (Put $s$ for the share into your formula: it
# needs $s < 1/p$.) Steps alone keep their factor of 64 with any number of ranks. In more than 200 setups of data centers,
# compression beat a well-tuned allreduce only six times (Agarwal et al. 2021).
#
# ## Deeper: DiLoCo in PyTorch
#
# In PyTorch the outer optimizer is an ordinary `SGD` with Nesterov momentum, on a second copy of the weights, whose `.grad` you
# fill in yourself. This is the round in [scripts/diloco.py](scripts/diloco.py):

# %%
take_home.marked("diloco.py", r"common|outer =|outer\.step|args\.alone|mean\b", 0)

# %% [markdown]
# Each rank steps alone with its own optimizer, and `vector_to_parameters` writes the common weights back. The rest of the script
# is [05](05_ddp.ipynb)'s, with a checkpoint that also keeps the outer optimizer and every rank's momentum.
#
# ## Deeper: PowerSGD, which an allreduce can add up
#
# There are other hooks. Sending **16 bits** halves the bytes. (fp16 loses small numbers, and bf16 digits.) **PowerSGD** (Vogels
# et al. 2019) sends each matrix of gradients as two thin ones, also with error feedback. It treats a gradient as a matrix $M$
# ($n \times m$) and looks for thin $P$ ($n \times r$) and $Q$ ($m \times r$) with $M \approx P Q^T$. The number $r$ is the
# *matrix rank* of that product, which has nothing to do with the ranks of MPI. PowerSGD finds both by one round of the *power
# method*, starting from the last step's $Q$:
#
# $$P \leftarrow \text{allreduce}(M Q), \quad \text{orthogonalize } P, \quad Q \leftarrow \text{allreduce}(M^T P).$$
#
# Both products are linear in $M$, so an allreduce can add them up. What's missing, $M - P Q^T$, goes into the residual. Our
# largest matrix has $56 \cdot 200 = 11{,}200$ entries, and the two thin ones for $r = 2$ have 512.

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
# Low rank pays off for matrices that are large in both directions. Our last layer isn't, so with all layers and biases, a step
# sends 12 % of the bytes. The first ten steps send whole gradients, which makes 15 % of 256 steps. In your own script:
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
# - Error feedback makes sure that what compression leaves out is sent later.
# - With top-k, every rank gathers what all ranks send, so the traffic grows with the number of ranks.
# - Compress only where a step waits for its messages, and count what each rank receives.
# - Local SGD averages weights once per round. DiLoCo treats the mean progress of a round as a gradient, and adds momentum.
#
# However little you send, every rank still waits for the slowest. [07e_waiting_less](07e_waiting_less.ipynb) is about that.
#
# **Sources.** Error feedback: F. Seide et al., Interspeech 2014, and S. Stich et al., arXiv:1809.07599. With momentum: Y. Lin et
# al., arXiv:1712.01887. PowerSGD: T. Vogels et al., arXiv:1905.13727. When it pays: S.
# Agarwal et al., arXiv:2103.00543. Local SGD: S. Stich, arXiv:1805.09767. DiLoCo: A. Douillard
# et al., arXiv:2311.08105.

# %%
ranks.stop()
