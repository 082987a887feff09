# %% [markdown] track="large batches"
# # Gradient noise: how large a batch is worth it?
#
# You have a hundred workers, and each can take 64 images per step. So you train with batches of 6,400, and need only a
# hundredth of the steps? It doesn't work that way. From some batch size on, extra workers no longer help the network learn, no
# matter how well the training scales. Where is that point, and can you find it before you've paid for a hundred workers?
#
# **You will** measure how noisy gradients are, from two numbers that data-parallel training produces anyway. Then you'll count
# the steps that training needs at each batch size, fit the law behind them, and work out what a batch of any size costs you.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first. [07](07_large_batch.ipynb) is about learning rates for large batches.

# %%
import numpy as np
import pandas as pd

from workshop_lib import predict, profile, ranks

from lessons import gradient_noise as lesson

sizes = profile.current()
quick = sizes.name == "quick"
team = ranks.start(max(2, sizes.ranks))

# %% [markdown]
# ## How noisy is a gradient?
#
# Each sample has a gradient of its own. Call their mean over all samples $G$, the *true gradient*. A batch gives you the mean
# of only a few of them. Does that mean point in the same direction as $G$? Let's see, with 500 images and a network that hasn't
# been trained yet.

# %%
# %%ranks
import numpy as np
from mpi4py import MPI

from workshop_lib import mnist

from lessons import gradient_noise as lesson

comm = MPI.COMM_WORLD
train, test = mnist.load("train"), mnist.load("test")
network = lesson.FlatNetwork(seed=1)
start = network.weights()

few = 500
single = np.stack(
    [network.gradient(start, train.images[[i]], train.labels[[i]]) for i in range(few)]
)
G = single.mean(axis=0)
true, by_batch = lesson.noise_scale.beside_the_mean(single, batches=(1, 8, 64))

# %%
lesson.figures.arrows(
    team.pull("true")[0],
    team.pull("by_batch")[0],
    "MNIST, 20 batches of each size; an untrained network",
)

# %% [markdown]
# Each arrow is the gradient of one batch, drawn with its true length and at its true angle to $G$. The gradient of a single
# image is long, and almost at a right angle to $G$. The arrows of larger batches are shorter and closer to $G$. Let's turn this
# picture into a number.
#
# Call the covariance of the samples' gradients $\Sigma$. Its trace, $\mathrm{tr}\,\Sigma$, adds up the variances of all entries
# of such a gradient. The gradient $G_B$ of a batch of $B$ samples is $G$ on average, and its squared length is
#
# $$\langle |G_B|^2 \rangle = |G|^2 + \frac{\mathrm{tr}\,\Sigma}{B},$$
#
# where $\langle\;\rangle$ averages over batches. The first part is signal, and the second is noise. They're equal at
#
# $$B_\text{simple} = \frac{\mathrm{tr}\,\Sigma}{|G|^2},$$
#
# the *simple noise scale* (McCandlish et al. 2018). Far below this scale, the gradient of a batch is almost all noise. If you
# double the batch there, the best step you can take lowers the loss almost twice as much. Far above the noise scale, you know
# the direction already, and more samples add little.
#
# You know neither $G$ nor $\Sigma$. But training on several ranks gives you gradients of *two* batch sizes in every step: each
# rank's own gradient, of $b$ samples, and their average, of $B$ samples. So you have the equation above twice, with two unknowns.
#
# ### Exercise 1 (normal): two unknowns
#
# With this function you can measure the gradient noise of any data-parallel run while it trains. `small_sq` is the squared norm
# of a gradient of `small_batch` samples (its mean over the ranks), and `big_sq` is the squared norm of the averaged gradient,
# of `big_batch` samples. Treat both as if they were exact averages, and return estimates of $|G|^2$ and $\mathrm{tr}\,\Sigma$.
#
# <details><summary>Hint 1: what do you have?</summary>
#
# You have two linear equations: `small_sq` $= |G|^2 + \mathrm{tr}\,\Sigma\,/$ `small_batch`, and the same for `big_sq`. What's
# left if you subtract one from the other?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# The difference of the two equations has no $|G|^2$ in it, only $\mathrm{tr}\,\Sigma$ times `1 / small_batch - 1 / big_batch`.
# And if you multiply each equation by its own batch size first, the difference has no $\mathrm{tr}\,\Sigma$ in it.
#
# </details><details><summary>Solution</summary>
#
# {solution of noise_estimates}
#
# </details>


# %%
def noise_estimates(small_sq, big_sq, small_batch, big_batch):
    """Estimates of |G|² and tr(Σ), in this order.

    They come from the squared norms of gradients of two batch sizes.
    """
    # <solution>
    gradient_sq = (
        (big_batch * big_sq - small_batch * small_sq) / (big_batch - small_batch)
    )
    trace = (small_sq - big_sq) / (1 / small_batch - 1 / big_batch)
    return gradient_sq, trace
    # <stub>
    # # small_sq = |G|² + tr(Σ) / small_batch, and big_sq likewise.
    # # Which combination is free of tr(Σ), and which of |G|²?
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.noise_estimates(noise_estimates)

# %% [markdown]
# Both estimates are right on average, but noisy. So average each of them over many steps before you divide. `Follower` calls
# your function and does this averaging. For our 500 images we can compute $|G|^2$ and $\mathrm{tr}\,\Sigma$ exactly. Does your
# function find them?

# %%
team.push(estimates=lesson.check.written(noise_estimates))

# %%
# %%ranks
if comm.rank == 0:
    trace = ((single - G) ** 2).sum() / few
    print(f"by definition: |G|² {G @ G:.3f}, tr(Σ) {trace:.1f}")
    print(f"noise scale:   {trace / (G @ G):.1f}")

random = np.random.default_rng([1, comm.rank])
follower = lesson.noise_scale.Follower(16, 16 * comm.size, estimates)
for _ in range(200):
    rows = random.integers(few, size=16)
    gradient = network.gradient(start, train.images[rows], train.labels[rows])
    mean, norms = lesson.noise_scale.averaged(gradient, comm)
    follower.add(norms)
if comm.rank == 0:
    print(f"estimated:     |G|² {follower.gradient_sq:.3f}, tr(Σ) {follower.trace:.1f}")
    print(
        f"noise scale:   {follower.noise_scale:.1f} ± {follower.standard_error:.1f} "
        "(standard error)"
    )

# %% [markdown]
# `averaged` does the `Allreduce` of notebook [02](02_synchronous_sgd.ipynb), with one more number in the message: this rank's
# squared norm. So measuring the noise scale costs you almost nothing.
#
# ## The noise scale while training
#
# Now follow the noise scale through a real run. At first the network learns what all images have in common, and the true gradient
# grows. Then the loss falls and $G$ shrinks, while single images still pull in all directions.

# %%
steps = 150 if quick else min(900, 60_000 // (32 * team.n))
guess = predict(
    "By what factor does the noise scale grow, "
    f"from its lowest value to the one after {steps} steps?",
    low=1,
    high=100,
    unit="times",
)
guess

# %%
team.push(steps=steps, memory=25 if quick else 100)


# %%
# %%ranks --timeout 180
def follow(labels, batch=32, lr=0.05):
    """Train, and return [step, noise scale, standard error] after every tenth step.

    The weights stay in `network`.
    """
    follower = lesson.noise_scale.Follower(batch, batch * comm.size, estimates, memory)
    weights, curve = start.copy(), []
    batches = lesson.shard.epoch_batches(
        len(labels), batch, comm.rank, comm.size, seed=1, epoch=1
    )
    for step, (rows, _) in zip(range(1, steps + 1), batches, strict=False):
        own = network.gradient(weights, train.images[rows], labels[rows])
        gradient, norms = lesson.noise_scale.averaged(own, comm)
        weights -= lr * gradient
        follower.add(norms)
        if step % 10 == 0:
            curve.append((step, follower.noise_scale, follower.standard_error))
    network.set(weights)
    return curve


curve = follow(train.labels)
if comm.rank == 0:
    print(
        f"after {steps} steps, "
        f"test accuracy {network.accuracy(test.images, test.labels):.1%}"
    )

# %%
curve = np.array(team.pull("curve")[0])
known = curve[np.isfinite(curve[:, 1])]
guess.compare(known[-1, 1] / known[:, 1].min())

# %%
lesson.figures.noise(
    *curve.T,
    f"MNIST, {team.n} ranks with batches of 32, plain SGD; "
    "exponential average over steps",
)

# %% [markdown]
# The gray lines show what was published for MNIST. Expect the same order of magnitude, but not the same number, because the
# noise scale depends on the network and on how long it has been trained.
#
# *Try it:* are gradients less noisy if the network only has to say whether a digit is a one? Run
# `easy = follow(train.labels == 1)` in a new cell that begins with `%%ranks --timeout 180`. Then draw
# `lesson.figures.noise(*np.array(team.pull("easy")[0]).T, "is it a one?")`.
#
# ## Steps to target
#
# The noise scale is a forecast. What counts is how many steps training really needs. Theory and measurements agree on how this
# number depends on the batch size (McCandlish et al. 2018, Shallue et al. 2019): first *perfect scaling*, where twice the batch
# needs half the steps, then *diminishing returns*, and finally a *plateau*, where no larger batch helps.
#
# Say training takes $S$ steps and $E = S \cdot B$ samples. Let $S_\text{min}$ be the number of steps that even the largest batch
# needs, and $E_\text{min}$ the number of samples that even the smallest batch needs. Then
#
# $$\left(\frac{S}{S_\text{min}} - 1\right)\left(\frac{E}{E_\text{min}} - 1\right) = 1
# \quad\Longleftrightarrow\quad S = S_\text{min} + \frac{E_\text{min}}{B}.$$
#
# At the *critical batch size* $B_\text{crit} = E_\text{min} / S_\text{min}$ you need twice the minimum number of samples, and
# also twice the minimum number of steps.
#
# ### Exercise 2 (normal): fit the law
#
# With this function you'll fit the law to your own training runs, to the best of 126 recorded runs, and to results of the
# MLPerf benchmark. `batches` and `steps` are arrays of the same length, and each pair is one measurement. Return the
# $S_\text{min}$ and $E_\text{min}$ that fit these measurements best. Any reasonable method passes.
#
# <details><summary>Hint 1: find a straight line</summary>
#
# Read the law on the right as $y = a + c\,x$. What's $x$? And which of $a$ and $c$ is $S_\text{min}$, and which is
# $E_\text{min}$?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `slope, intercept = np.polyfit(x, y, 1)` fits a line. Steps span orders of magnitude, and `w=1 / steps` makes every point count
# by its *relative* error.
#
# </details><details><summary>Solution</summary>
#
# {solution of fit_law}
#
# </details>


# %%
def fit_law(batches, steps):
    """(S_min, E_min) of the law S = S_min + E_min / B, fitted to pairs of B and S."""
    # <solution>
    e_min, s_min = np.polyfit(1 / batches, steps, 1, w=1 / steps)
    return s_min, e_min
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.fit_law(fit_law)

# %% [markdown]
# Now measure the steps. You have to tune the learning rate at each batch size. Otherwise you'd only measure how well one rate
# happens to suit that batch. You only count steps, not seconds, so each rank can train alone.

# %%
target = 0.8 if quick else 0.9
question = (
    f"The critical batch size for this network on MNIST, to {target:.0%} test accuracy?"
)
guess = predict(question, low=0, high=1000, unit="samples")
guess

# %%
team.push(
    target=target,
    batches=[16, 64, 256] if quick else [8, 16, 32, 64, 128, 256, 512, 1024],
    lrs=[0.05, 0.2] if quick else [0.025, 0.05, 0.1, 0.2, 0.4],
    seeds=[1] if quick else [1, 2],
)

# %% [markdown]
# The next cell takes about a minute and a half on two cores. *Stop* ends it early and keeps the finished runs.

# %%
# %%ranks --timeout 900
from tqdm.auto import tqdm

mine = batches[comm.rank :: comm.size]
trials = lesson.steps_to_target.tune(
    mine, lrs, seeds, target, lesson.stop_asked, test_samples=500
)
runs = list(tqdm(trials, total=len(mine) * len(lrs) * len(seeds), unit="run"))

# %%
runs = [run for of_rank in team.pull("runs") for run in of_rank]
best = lesson.steps_to_target.best_rates(runs)
columns = ["lr", "steps", "at_edge"]
pd.DataFrame.from_dict(best, "index", columns=columns).rename_axis("batch")

# %% [markdown]
# `at_edge` means that the best rate was the smallest or the largest one tried, so a better rate may lie beyond it. Now fit the
# law to these runs, and to recorded runs that reached 97 % (*long run*).

# %%
here = f"here, to {target:.0%}"
long_run = lesson.records.read(
    lesson.ROOT / "assets" / "results" / "steps_to_target.jsonl"
)
pairs = {
    here: lesson.steps_to_target.pairs(runs),
    "long run, to 97%": lesson.steps_to_target.pairs(long_run),
}
law = lesson.own_or_library(fit_law, lesson.critical_batch.least_squares)
fits = lesson.critical_batch.fit_each(pairs, law)

# %%
if here in fits:
    display(guess.compare(fits[here].b_crit))
lesson.figures.steps_to_target(
    pairs, fits, "MNIST, plain SGD, learning rate tuned at each batch size"
)

# %% [markdown]
# Each printed line gives two critical batches, and your function's may be smaller than the library's. With `w=1 / steps`, a run
# that happened to need few steps counts more. The library avoids this by fitting again with weights taken from the fitted line.
# The right panel shows the points of the left one as a *Pareto frontier*: if you have enough workers, the number of steps sets
# the time that training takes, and the number of samples sets what you pay for the compute. The right end is slow and cheap,
# the left end is fast and wasteful, and the critical batch sits at the knee.
#
# *Try it:* set `target = 0.95` in the cell with the guess, and run all cells from there again, which takes longer. Where does
# the critical batch go?
#
# ## How many of the hundred workers are useful?
#
# According to the law, one worker with 64 samples per step needs $S_\text{min} \, (1 + B_\text{crit} / 64)$ steps, and a
# hundred workers need $S_\text{min} \, (1 + B_\text{crit} / 6400)$. Divide the first number by the second, and you know by what
# factor a hundred workers reduce the number of steps. If the answer is 100, all of them are useful. If it's 2, you get no more
# than two ideal workers would give you, and the other 98 are wasted.
#
# You have the critical batch of MNIST. What about larger tasks? The MLPerf benchmark publishes how many epochs ResNet-50 takes
# on ImageNet at ten batch sizes, with the optimizer LARS tuned at every size. The next cell fits the law to these points with
# your function. For language models, the cell uses a formula of Kaplan et al. (2020): a critical batch of $2\cdot10^8$ tokens,
# divided by $L^{1/0.21}$, where $L$ is the loss in nats per token.

# %%
networks = lesson.catalogue.read(lesson.catalogue.HERE / "models.toml")
mlperf = networks["resnet-50"]["target"]
large = np.array(list(mlperf["epochs"]), dtype=float)
epochs = np.array(list(mlperf["epochs"].values()))
s_min, e_min = law(large, epochs * mlperf["samples_an_epoch"] / large)

critical = {f"MNIST, {name}": fit.b_crit for name, fit in fits.items()}
critical["ResNet-50 on ImageNet"] = e_min / s_min
tokens = 2e8 / 3.0 ** (1 / 0.21)
critical["language model at a loss of 3"] = tokens / 1024  # tokens per sequence

answer = pd.DataFrame({"critical batch": critical})
batch = answer["critical batch"]
answer["useful of 100 workers"] = (1 + batch / 64) / (1 + batch / 6400)
print(f"language model at a loss of 3: a critical batch of {tokens:,.0f} tokens")
answer.round(1)

# %% [markdown]
# So the answer depends on the task. For MNIST, a single worker's batch is already about as large as the critical one, and
# almost all of the hundred workers are wasted. For ImageNet, nearly ninety are useful.
#
# For the language model, a sample is a sequence of 1,024 tokens, so each worker takes 65,536 tokens per step. At a loss of 3,
# fifteen of your hundred workers are useful. As the loss falls, more workers become useful: the largest models of Kaplan et al.
# had a critical batch of one to two million tokens by the time they converged.
#
# Can you know the critical batch before you pay for a hundred workers? The noise scale gives you a hint while you train with
# only two workers. Before an expensive run, measure the critical batch itself. You don't have to train to the end for that.
# From one checkpoint, start several branches with larger and larger batches, scale the learning rate of each, and train all of
# them on the same number of samples. Then see at which batch size the loss begins to suffer (Merrill et al. 2025).
#
# ## Deeper: where does your batch lie?
#
# Here are the noise scale and the critical batches that you measured, next to those that McCandlish et al. (2018) published.

# %%
lesson.figures.number_line(
    {
        "noise scale, lowest": known[:, 1].min(),
        f"noise scale, step {steps}": known[-1, 1],
        **{f"critical batch, {name}": fit.b_crit for name, fit in fits.items()},
    }
)

# %% [markdown]
# - **Compare your batch with the noise, not with the data set.** A batch of 8,192 images is far smaller than the data set.
#   Still, it's about a hundred times the critical batch of the long run. According to the law, it needs half the steps that the
#   critical batch needs, but about a hundred times the minimum number of samples. One rule of thumb allows batches up to the
#   square root of the number of samples in the data set. For ImageNet that's about 1,130, yet Goyal et al. (2017) lost no
#   accuracy with 8,192.
# - **The noise scale gets the order of magnitude right.** It would *be* the critical batch if the loss curved equally in all
#   directions, and if the noise scale stayed the same throughout training. Neither is true, so take the noise scale as a hint.
#
# ## Deeper: ImageNet in X minutes
#
# This is the race that large batches were meant to win: train ResNet-50 on ImageNet to an accuracy of about 75 %.
#
# | who | hardware | batch | time | what was new |
# |---|---|---|---|---|
# | the starting point | 8 P100 | 256 | 29 h | He et al.'s network of 2015 |
# | Goyal et al. 2017 | 256 P100 | 8,192 | 1 h | linear scaling, warm-up |
# | Yamazaki et al. 2019 | 2,048 V100 | 81,920 | 1.2 min | ten times the batch, with LARS (You et al. 2017) |
#
# The batch grew by a factor of 320, and the accuracy hardly changed. Goyal et al. also show where their own recipe stops
# working: the top-1 error is 23.7 % with batches of 8,192, 24.8 % with 16k, 27.6 % with 32k, and 34.0 % with 64k. So ImageNet
# tolerates batches that MNIST doesn't. But even there, a batch of 81,920 is nearly twice the critical batch, which is about
# 47,000 by your fit to MLPerf's points. According to the law, a run with this batch needs almost three times the minimum
# number of samples.
#
# ## Remember
#
# - The noise scale, $B_\text{simple} = \mathrm{tr}\,\Sigma / |G|^2$, comes almost for free with data-parallel training. Average
#   the numerator and the denominator over many steps before you divide.
# - Far below the critical batch, twice the batch needs half the steps. At the critical batch, time and compute are both twice
#   their minimum, so even the largest batch could only halve the number of steps.
# - The noise scale and the critical batch grow during training, and differ between tasks by orders of magnitude. So does the
#   number of workers worth paying for.
#
# Once the batch can't grow any more, you can still send less: [07c_less_communication](07c_less_communication.ipynb).
#
# **Sources.** S. McCandlish, J. Kaplan, D. Amodei et al., arXiv:1812.06162 (the noise scale; values in table 1). C. Shallue et
# al., arXiv:1811.03600. J. Kaplan et al., arXiv:2001.08361 (language models, section 5.1). MLPerf's points for ResNet-50:
# github.com/mlcommons/logging, `mlperf_logging/rcp_checker/training_4.0.0/rcps_resnet.json`. W. Merrill et al.,
# arXiv:2505.23971. P. Goyal et al., arXiv:1706.02677. Y. You et al., arXiv:1708.03888 (LARS). M. Yamazaki et al.,
# arXiv:1903.12650.

# %%
ranks.stop()
