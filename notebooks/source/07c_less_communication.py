# %% [markdown] track="large batches"
# # Less communication
#
# In every step so far, every rank has sent its whole gradient, 4 bytes per parameter. For a network of 7 billion parameters
# that's 28 GB, and an allreduce at 10 Gbit/s takes about 45 seconds ([01](01_mpi_basics.ipynb)). Does all of it have to travel?
# Does it have to travel in every step?
#
# **You will** implement two answers yourself: send only the largest entries of a gradient, and let the ranks train alone for a
# while before they agree again. You'll train with both, and see what they do to the accuracy.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebooks
# [02](02_synchronous_sgd.ipynb) and [05](05_ddp.ipynb) first.

# %%
import numpy as np

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
# ([05](05_ddp.ipynb)). You'll try three kinds:
#
# - **16 bits** halve the bytes. (fp16 loses small numbers, and bf16 digits.)
# - **Low rank**: PowerSGD (Vogels et al. 2019) sends each matrix of gradients as two thin ones.
# - **Top-k**: send only the $k$ entries of largest magnitude, as values and indices.
#
# The last two send an approximation. What keeps them honest is *error feedback*: each rank keeps what it didn't send, its
# *residual*, and adds it to its next gradient. So a small entry just waits until it has grown
# large enough.
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
guess = predict(
    "You send the top 1 % of the entries. What share of fp32's bytes is that?",
    low=0,
    high=10,
    unit="%",
)
guess

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
compressed = lesson.trainings.table(team.pull("compressed")[0])
guess.compare(100 * compressed.loc["yours, top 1 %", "share of bytes"])

# %%
lesson.trainings.formatted(compressed)

# %% [markdown]
# Values and indices add up to 2 %, a fiftieth of what each rank *hands over*. On the wire you gain less, because in an
# allgather every rank receives the entries of all others. With four ranks that's $3 \cdot 2\,\%$ of the gradient's bytes, while
# a ring allreduce receives $2 \cdot 3/4$ times the gradient. The more ranks there are, the less you gain.
#
# Now compare the last two rows. Without feedback a small entry is never sent, no matter how long it keeps pointing the same way.
#
# ## PowerSGD, which an allreduce can add up
#
# PowerSGD treats a gradient as a matrix $M$ ($n \times m$) and looks for thin $P$ ($n \times r$) and $Q$ ($m \times r$) with $M
# \approx P Q^T$. The number $r$ is the *matrix rank* of that product, which has nothing to do with the ranks of MPI. PowerSGD
# finds both by one round of the *power method*, starting from the last step's $Q$:
#
# $$P \leftarrow \text{allreduce}(M Q), \quad \text{orthogonalize } P, \quad Q \leftarrow \text{allreduce}(M^T P).$$
#
# Both products are linear in $M$, so an allreduce can add them up. What's missing, $M - P Q^T$, goes into the residual. Our
# largest matrix has $56 \cdot 200 = 11{,}200$ entries, and the two thin ones for $r = 2$ have 512.

# %%
guess = predict(
    "PowerSGD with r = 2 sends what share of fp32's bytes?", low=0, high=100, unit="%"
)
guess

# %%
# %%ranks --timeout 300
names = "fp16", "PowerSGD, rank 2"
with_torch = [
    lesson.train(name, lesson.compression.ways()[name], steps) for name in tqdm(names)
]

# %%
with_torch = lesson.trainings.table(team.pull("with_torch")[0])
guess.compare(100 * with_torch.loc["PowerSGD, rank 2", "share of bytes"])

# %%
lesson.trainings.formatted(with_torch)

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
guess = predict(
    "What test accuracy does your DiLoCo reach, with 64 steps alone?",
    low=80,
    high=100,
    unit="%",
)
guess

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
in_rounds = lesson.trainings.table(team.pull("in_rounds")[0])
guess.compare(100 * in_rounds.loc["yours, DiLoCo, 64 steps alone", "test accuracy"])

# %%
lesson.trainings.formatted(in_rounds)

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
# ## When not to compress
#
# Fewer bytes only help if you wait for them, and compressing takes time, too. So let four ranks *emulate* imagined nodes with a GPU each
# ([05](05_ddp.ipynb)), and change the bandwidth between them. Their network has four layers, each with a million parameters, 2
# ms forward and 4 ms backward. Those times are guesses, but how many nanoseconds per entry compressing takes was measured on an
# H200 ([record](../assets/results/gpu/one_gpu.jsonl)). Put in the numbers of your own GPU.

# %%
guess = predict(
    "Below which bandwidth is a step with your top 1 % quicker than one with fp32?",
    0,
    10,
    unit="GB/s",
)
guess

# %%
machine = "ethernet-10g"
team = ranks.start(4, machine=machine)
team.push(ns_per_entry={"fp32": 0, "low rank": 0.31, "top 1 %": 0.19})

# %%
# %%ranks --timeout 200
from lessons import less_communication as lesson

step_ms = {
    gb_per_s: lesson.links.step_ms(gb_per_s, ns_per_entry)
    for gb_per_s in (0.1, 0.3, 1, 3, 10, 30)
}

# %%
step_ms = team.pull("step_ms")[0]
quicker = [
    gb_per_s for gb_per_s, times in step_ms.items() if times["top 1 %"] < times["fp32"]
]
guess.compare(max(quicker), emulated_on=machine)

# %%
lesson.figures.step_times(step_ms, machine)

# %% [markdown]
# At 0.1 GB/s everything pays. But from a few GB/s on, fp32's messages hide behind the backward pass, so there's nothing left to
# gain, while compressing still costs each layer its 0.2 or 0.3 ms. In more than 200 setups of data centers, compression beat a
# well-tuned allreduce only six times (Agarwal et al. 2021).
#
# ## Deeper: DiLoCo in PyTorch
#
# In PyTorch the outer optimizer is an ordinary `SGD` with Nesterov momentum, on a second copy of the weights, whose `.grad` you
# fill in yourself. So [scripts/diloco.py](scripts/diloco.py) is [05](05_ddp.ipynb)'s script with these lines changed:

# %%
take_home.diff("ddp.py", "diloco.py")

# %% [markdown]
# Each rank steps alone with its own optimizer, and `vector_to_parameters` writes the common weights back.
#
# ## Remember
#
# - Error feedback makes sure that what compression leaves out is sent later.
# - With top-k, every rank gathers what all ranks send, so the traffic grows with the number of ranks.
# - Compress only where sending takes longer than computing.
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
