# %% [markdown] track="large batches"
# # Gradient noise: how large a batch is worth it?
#
# You have a hundred workers, and each can take 64 images per step. So you train with batches of 6,400, in a hundredth of the
# steps? Measure it, and you'll see that it doesn't work that way: at some batch size,
# more workers stop helping you learn, however well the training
# scales. Where is that point, and can you know it before you've paid for a hundred workers?
#
# **You will** measure how noisy gradients are, from two numbers that data-parallel training produces anyway.
# Then you'll count the steps
# that training needs at each batch size, fit the law behind them, and know what a batch of any size costs you.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first. [07](07_large_batch.ipynb) is about learning rates for large batches.

# %%
import numpy as np
import pandas as pd

from workshop_lib import judge, ranks
from workshop_lib.lessons.gradient_noise import critical_batch, figures, noise_scale, steps_to_target
from workshop_lib.lessons.gradient_noise import judge as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import ROOT
from workshop_lib.results import records
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
quick = sizes.name == "quick"
team = ranks.start(max(2, sizes.ranks))

# %% [markdown]
# ## How noisy is a gradient?
#
# Each sample has a gradient of its own. Call their mean over all samples $G$, the *true gradient*. A batch gives you the mean
# of only a few of them. Does it point in the same direction? Take 500 images and a network that hasn't been trained yet, and
# see.

# %%
# %%ranks
import numpy as np
from mpi4py import MPI

from workshop_lib.data import mnist, shard
from workshop_lib.lessons.gradient_noise import noise_scale
from workshop_lib.lessons.gradient_noise.flat import FlatNetwork

comm = MPI.COMM_WORLD
train, test = mnist.load("train"), mnist.load("test")
network = FlatNetwork(seed=1)
start = network.weights()

few, random = 500, np.random.default_rng([1, comm.rank])
single = np.stack([network.gradient(start, train.images[[i]], train.labels[[i]]) for i in range(few)])
G = single.mean(axis=0)
true, along = np.linalg.norm(G), {}
for batch in (1, 8, 64):
    means = [single[random.integers(few, size=batch)].mean(axis=0) for _ in range(20)]
    along[batch] = [(g @ G / true, np.linalg.norm(g)) for g in means]

# %%
figures.arrows(
    team.pull("true")[0],
    team.pull("along")[0],
    "MNIST, 20 batches of each size; a network that has learned nothing yet",
)

# %% [markdown]
# Each arrow is the gradient of one batch, drawn at its true angle to $G$ and with its true length. A single image pulls hard,
# and almost at a right angle to where all of them together want to go. The arrows of larger batches are shorter, and closer to
# $G$. Let's turn
# this picture into a number.
#
# Call the covariance of the samples' gradients $\Sigma$. Its trace, $\mathrm{tr}\,\Sigma$, adds up the variances of all entries.
# The gradient $G_B$ of a batch of $B$ samples is $G$ on average, and its squared length is
#
# $$\langle |G_B|^2 \rangle = |G|^2 + \frac{\mathrm{tr}\,\Sigma}{B},$$
#
# where $\langle\;\rangle$ averages over batches. The first part is signal, the second noise. They're equal at
#
# $$B_\text{simple} = \frac{\mathrm{tr}\,\Sigma}{|G|^2},$$
#
# the *simple noise scale* (McCandlish et al. 2018). Far below it, a batch is almost all noise, and doubling it makes a step
# lower the loss almost twice as far. Far above it, you know the direction already, and more samples tell you little.
#
# You know neither $G$ nor $\Sigma$. But training on several ranks gives you gradients of *two* batch sizes in every step: each
# rank's own, of $b$ samples, and their average, of $B$ samples. That gives you the equation above twice, with two unknowns.
#
# ### Exercise 1 (normal): two unknowns
#
# With this function you can measure the noise of any data-parallel training while it runs. `small_sq` is the squared norm of a
# gradient of `small_batch` samples (the mean over the ranks), and `big_sq` that of the averaged gradient of `big_batch` samples.
# Treat both as if they were exact averages, and return estimates of $|G|^2$ and of $\mathrm{tr}\,\Sigma$.
#
# <details><summary>Hint 1: what do you have?</summary>
#
# Two linear equations: `small_sq` $= |G|^2 + \mathrm{tr}\,\Sigma\,/$ `small_batch`, and the same for `big_sq`. What's left if you
# subtract one from the other?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# The difference of the two norms has no $|G|^2$ in it, only $\mathrm{tr}\,\Sigma$ times `1 / small_batch - 1 / big_batch`. And
# if you multiply each equation by its own batch size first, the difference has no $\mathrm{tr}\,\Sigma$ in it.
#
# </details><details><summary>Solution</summary>
#
# {solution of noise_estimates}
#
# </details>


# %%
def noise_estimates(small_sq, big_sq, small_batch, big_batch):
    """Estimates of |G|² and tr(Σ), in this order, from the squared norms of gradients of two batch sizes."""
    # <solution>
    gradient_sq = (big_batch * big_sq - small_batch * small_sq) / (big_batch - small_batch)
    trace = (small_sq - big_sq) / (1 / small_batch - 1 / big_batch)
    return gradient_sq, trace
    # <stub>
    # # small_sq = |G|² + tr(Σ) / small_batch, and big_sq likewise: which combination is free of tr(Σ), which of |G|²?
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.noise_estimates(noise_estimates)

# %% [markdown]
# Both estimates are *unbiased*: right on average, though each is noisy (the estimate of $|G|^2$ can even be negative).
# Their ratio
# isn't, because you divide by something noisy. So average each over many steps first, and divide the averages. `Follower`
# does that with your function. For our 500 images we know the truth. Does your function find it?

# %%
team.push(estimates=judge.own_or_library(noise_estimates, noise_scale.estimates))

# %%
# %%ranks
if comm.rank == 0:
    print(f"by definition: |G|² {G @ G:.3f}, tr(Σ) {((single - G) ** 2).sum() / few:.1f}")

follower = noise_scale.Follower(16, 16 * comm.size, estimator=estimates)
for _ in range(200):
    rows = random.integers(few, size=16)
    gradient = network.gradient(start, train.images[rows], train.labels[rows])
    mean, norms = noise_scale.averaged(gradient, comm)
    follower.add(norms)
if comm.rank == 0:
    print(f"estimated:     |G|² {follower.gradient_sq:.3f}, tr(Σ) {follower.trace:.1f}")
    print(f"noise scale:   {follower.noise_scale:.1f} ± {follower.standard_error:.1f} (standard error)")

# %% [markdown]
# `averaged` is the `Allreduce` of [02](02_synchronous_sgd.ipynb), with one more number in the message: this rank's squared norm.
# That's all the noise scale costs you.
#
# ## The noise scale while training
#
# Now use it on a real run. At first the network learns what all images have in common, and the true gradient grows. Then the
# loss falls and $G$ shrinks, while single images still pull in all directions.

# %%
steps = 150 if quick else min(900, 60_000 // (32 * team.n))
question = f"By what factor does the noise scale grow, from its lowest value to the one after {steps} steps?"
guess = predict(question, low=1, high=100, unit="times")
guess

# %%
team.push(steps=steps, memory=25 if quick else 100)


# %%
# %%ranks --timeout 180
def follow(labels, batch=32, lr=0.05):
    """Train, and return [step, noise scale, standard error] after every tenth step; the weights stay in `network`."""
    follower = noise_scale.Follower(batch, batch * comm.size, memory, estimates)
    weights, curve = start.copy(), []
    batches = shard.epoch_batches(len(labels), batch, comm.rank, comm.size, seed=1, epoch=1)
    for step, (rows, _) in zip(range(1, steps + 1), batches, strict=False):
        own = network.gradient(weights, train.images[rows], labels[rows])
        gradient, norms = noise_scale.averaged(own, comm)
        weights -= lr * gradient
        follower.add(norms)
        if step % 10 == 0:
            curve.append((step, follower.noise_scale, follower.standard_error))
    network.set(weights)
    return curve


curve = follow(train.labels)
if comm.rank == 0:
    print(f"after {steps} steps, test accuracy {network.accuracy(test.images, test.labels):.1%}")

# %%
curve = np.array(team.pull("curve")[0])
known = curve[np.isfinite(curve[:, 1])]
guess.compare(known[-1, 1] / known[:, 1].min())

# %%
figures.noise(*curve.T, f"MNIST, {team.n} ranks with batches of 32, plain SGD; exponential average over steps")

# %% [markdown]
# The gray lines are the published simple noise scale of MNIST: 50 at the start, and 900 on average over a whole run.
# Expect the same order of magnitude, not the same number: the noise scale depends on the network, on how far it's trained
# and on what you average over. The band is wide because with two ranks, the two batch sizes differ only by a factor of two.
# With more ranks the
# estimate gets better for free.
#
# *Try it:* change the learning rate. Which of $|G|^2$ and $\mathrm{tr}\,\Sigma$ changes with it?
#
# ## Steps to target
#
# The noise scale is a forecast. What counts is how many steps training really needs at each batch size.
# Theory and measurements
# agree on the shape (McCandlish et al. 2018, Shallue et al. 2019): first *perfect scaling*, where twice the batch needs half the
# steps; then *diminishing returns*; and finally a *plateau*, where no larger batch helps. Say training takes $S$ steps and
# $E = S \cdot B$ samples. Let $S_\text{min}$ be the fewest steps that are enough, with batches
# as large as you like, and $E_\text{min}$ the
# fewest samples, with batches as small as you like. Then
#
# $$\left(\frac{S}{S_\text{min}} - 1\right)\left(\frac{E}{E_\text{min}} - 1\right) = 1
# \quad\Longleftrightarrow\quad S = S_\text{min} + \frac{E_\text{min}}{B}.$$
#
# At the *critical batch size* $B_\text{crit} = E_\text{min} / S_\text{min}$ you need twice as many samples as the minimum, and
# also twice as many steps.
#
# ### Exercise 2 (normal): fit the law
#
# You'll fit your own training runs with this function, and 126 recorded ones.
# `batches` and `steps` are arrays of the same length, and each
# pair is one measurement. Return the $S_\text{min}$ and $E_\text{min}$ that fit them best. Any reasonable method passes.
#
# <details><summary>Hint 1: find a straight line</summary>
#
# Read the law on the right as $y = a + c\,x$. What's $x$? And where on that line are $S_\text{min}$ and $E_\text{min}$?
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
    """(S_min, E_min) of the law S = S_min + E_min / B, fitted to measured pairs of B and S."""
    # <solution>
    e_min, s_min = np.polyfit(1 / batches, steps, 1, w=1 / steps)
    return s_min, e_min
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.fit_law(fit_law)

# %% [markdown]
# Now measure it. You have to tune the learning rate at each batch size, or you'd only measure how well one rate happens to
# suit it.
# No clock is involved, so each rank can train alone, with its own batch sizes, and it doesn't matter if the machine is busy.

# %%
target = 0.8 if quick else 0.9
question = f"The critical batch size for this network on MNIST, to {target:.0%} test accuracy?"
guess = predict(question, low=0, high=1000, unit="samples")
guess

# %%
job = {
    "batches": [16, 64, 256] if quick else [8, 16, 32, 64, 128, 256, 512, 1024],
    "lrs": [0.05, 0.2] if quick else [0.025, 0.05, 0.1, 0.2, 0.4],
    "seeds": [1] if quick else [1, 2],
    "how": {"target": target, "test_samples": 500},
}
team.push(job=job)

# %% [markdown]
# How long will that take? Time one training run, then use the law we fitted to 126 earlier runs to estimate how many samples
# the remaining ones need.

# %%
# %%ranks
import time

from workshop_lib.lessons.gradient_noise import steps_to_target

began = time.perf_counter()
steps_to_target.measure(64, 0.1, **job["how"])
one_s = time.perf_counter() - began

# %%
long_run = records.read(ROOT / "assets" / "results" / "steps_to_target.jsonl")
law = critical_batch.fit(*steps_to_target.pairs(long_run))
of_ranks = [
    law.samples(job["batches"][rank :: team.n]).sum() for rank in range(team.n)
]  # each rank has its batch sizes
per_batch = len(job["lrs"]) * len(job["seeds"])
seconds = per_batch * max(of_ranks) / law.samples(64) * max(team.pull("one_s"))
print(f"{per_batch * len(job['batches'])} training runs on {team.n} ranks: about {seconds:.0f} s.")
print("Stop ends them early, and keeps the finished ones.")

# %%
# %%ranks --timeout 900
from tqdm.auto import tqdm

from workshop_lib.ranks.engine import stop_asked

mine = job["batches"][comm.rank :: comm.size]
trainings = steps_to_target.tune(mine, job["lrs"], job["seeds"], **job["how"], stop=stop_asked)
runs = list(tqdm(trainings, total=len(mine) * len(job["lrs"]) * len(job["seeds"]), unit="training"))

# %%
runs = [run for of_rank in team.pull("runs") for run in of_rank]
best = steps_to_target.best_rates(runs)
pd.DataFrame.from_dict(best, orient="index", columns=["lr", "steps", "at_edge"]).rename_axis("batch")

# %% [markdown]
# `at_edge` means that the best rate was the smallest or the largest we tried. A better one may lie beyond, so treat such a row
# with caution. Now comes your fit, and next to it the library's, which is repeated with resampled errors to tell you how far
# you can trust it.

# %%
here = f"here, to {target:.0%}"
pairs = {here: steps_to_target.pairs(runs), "long run, to 97%": steps_to_target.pairs(long_run)}
pairs = {name: pair for name, pair in pairs.items() if pair[0]}  # nothing reached the target, if you stopped early
mine, fits = judge.own_or_library(fit_law, critical_batch.least_squares), {}
for name, (batches, counted) in pairs.items():
    try:
        fits[name] = critical_batch.fit(batches, counted)
        s_min, e_min = mine(np.array(batches), np.array(counted))
        low, high = fits[name].intervals["b_crit"]
        print(f"{name}: critical batch {e_min / s_min:.0f}; 95 % interval {low:.0f} to {high:.0f}")
    except ValueError as error:
        print(f"{name}: no fit. {error}")

# %%
if here in fits:
    display(guess.compare(fits[here].b_crit))
figures.steps_to_target(pairs, fits, "MNIST, plain SGD, learning rate tuned at each batch size")

# %% [markdown]
# The left panel shows steps against batch size, with perfect scaling as a dotted line. The right panel shows the same points
# as a *Pareto frontier*: steps stand for the time that training takes if you have enough workers, and samples for the compute
# that somebody pays for.
# Apart from the scatter of single runs, no batch size gets you below and to the left of the curve. The far right is
# slow and cheap,
# the far left is quick and wasteful, and the critical batch sits at the knee.
#
# A few points give only a rough fit, as the interval shows. The long run, which trained 126 times with three seeds, came
# from this command:
#
#     .venv/bin/python -m workshop_lib.lessons.gradient_noise.steps_to_target --out build/steps_to_target.jsonl
#
# It tried rates a factor of two apart, and the best ones hardly change with the batch size. They follow neither the linear
# rule nor the square-root rule. On the way to this target, curvature seems to be what limits them
# ([07](07_large_batch.ipynb)).
#
# ### Next to what was published

# %%
batches = {
    "published: critical batch, at the start of training": 20,
    "published: critical batch, mean over training": 200,
    "published: simple noise scale, at the start": figures.PUBLISHED["at the start"],
    "published: simple noise scale, mean over training": figures.PUBLISHED["mean over training"],
    "rule of thumb: square root of the 60,000 images": 60_000**0.5,
    "the documents' job: 128 workers with 64 each": 128 * 64,
    "here: simple noise scale, at its lowest": known[:, 1].min(),
    f"here: simple noise scale, after {steps} steps": known[-1, 1],
}
batches |= {f"critical batch {name}": fit.b_crit for name, fit in fits.items()}
beside = pd.Series(batches, name="batch (samples)").to_frame()
beside["steps / fewest"] = law.steps(beside["batch (samples)"]) / law.s_min
beside["samples / fewest"] = law.samples(beside["batch (samples)"]) / law.e_min
beside.style.format("{:.1f}").format("{:.0f}", subset="batch (samples)")

# %% [markdown]
# (Published: McCandlish et al. 2018, table 1; the rule of thumb: Shao et al.) The last two columns say what training takes
# with such a batch, according to the law fitted to the long run. Three things stand out:
#
# - **The slides' condition isn't enough.** They promise that the time to a given accuracy scales, as long as there are far
#   fewer workers than training examples and the learning rate is right. 128 workers *are* far fewer than 60,000 images, and
#   our rate was tuned. Yet their batch is a hundred times the critical one. It only halves the steps of the critical batch,
#   and costs a hundred times the minimum number of samples. Compare your batch to the noise, not to the data set.
# - **Nor is the rule of thumb**, which knows nothing about the task. Here the square root of the number of images asks for
#   three times the critical batch: about a third more steps than the minimum, and four times the minimum number of samples.
#   For ImageNet it says about 1,130, yet 8,192 lost nothing (see the table further down).
# - **The noise scale gets the order of magnitude right.** It would *be* the critical batch if all directions curved alike.
#   They don't, so what really counts is $\mathrm{tr}(H\Sigma) / (G^T H G)$, where the *Hessian* $H$, the matrix of second
#   derivatives, gives more weight to directions of large curvature. Both scales grow during training,
#   so a harder target has a larger critical batch.
#
# Use the noise scale before an expensive run, and measure steps to target when you have to be sure. *Try it:* set a higher
# target. Where does
# the critical batch go?
#
# ## Deeper: are harder tasks noisier?
#
# The guidelines on distributed training (see the sources) say that they are, and that they can therefore use larger batches.
# Let's turn the same images into an easier task, which only asks whether a digit is a one, and into a harder one, where a
# fifth of the labels are replaced by random ones.

# %%
guess = predict(
    "After the same steps, how many times as noisy is 'which digit?' as 'is it a one?'", 0, 10, unit="times"
)
guess

# %%
team.push(steps=90 if quick else 300)

# %%
# %%ranks --timeout 180
random = np.random.default_rng(7)  # the same wrong labels on all ranks
wrong = np.where(random.random(train.total) < 0.2, random.integers(10, size=train.total), train.labels)
tasks = {"is it a one?": train.labels == 1, "which digit?": train.labels, "a fifth of the labels wrong": wrong}
tasks = {name: follow(labels.astype(train.labels.dtype)) for name, labels in tasks.items()}

# %%
tasks = team.pull("tasks")[0]
shown = {}
for name, curve in tasks.items():
    third = len(curve) // 3
    shown[name] = {step: f"{scale:.0f} ± {error:.0f}" for step, scale, error in curve[third - 1 :: third]}
last = {name: [scale for _, scale, _ in curve if scale > 0][-1] for name, curve in tasks.items()}
guess.compare(last["which digit?"] / last["is it a one?"])

# %%
pd.DataFrame(shown).T.rename_axis(columns="noise scale after step")

# %% [markdown]
# Harder tasks are noisier here too, at least in the first few hundred steps. Across fields the differences are far larger.
# McCandlish et al. (2018) find critical batches of 20 to 200 for MNIST, of tens of thousands for ImageNet, and of millions for agents
# that play Dota 2. In each of these fields the simple noise scale gets the order of magnitude right.
#
# ## Deeper: does a large batch generalize worse?
#
# The *generalization gap* is training accuracy minus test accuracy. Keskar et al. (2017) found that large batches end up with
# a wider one. Here we train with two batch sizes for the same number of *epochs*, on so few images that a gap is easy to see.

# %%
gap_samples, gap_epochs = 2000, 3 if quick else 20
rows = []
for batch, lr in ((16, 0.02), (500, 0.02), (500, 0.04)):
    recipe = {"batch_size": batch, "lr": lr, "decay": "none", "warmup_epochs": 0.5}
    options = TrainOptions(**recipe, epochs=gap_epochs, train_samples=gap_samples)
    last = team.train(options, timeout=sizes.timeout_s)["epochs"][-1]
    updates = gap_epochs * -(-gap_samples // (batch * team.n))
    row = {"global batch": batch * team.n, "learning rate": lr, "steps": updates}
    row |= {f"{kind} accuracy": last[f"{kind}_accuracy"] for kind in ("train", "test")}
    rows.append(row | {"gap": last["train_accuracy"] - last["test_accuracy"]})
percent = dict.fromkeys(("train accuracy", "test accuracy", "gap"), "{:.1%}")
pd.DataFrame(rows).style.format(percent | {"learning rate": "{:g}"}).hide()

# %% [markdown]
# (Training accuracy is measured on the fly, in the course of the last epoch, so it lags behind while the network is still
# improving.)
# Compare the rows before you explain them. The large batch took far fewer steps and simply isn't done: it's worse on
# the training images too. You can only compare the gaps of two runs once both have made the same progress. Twice the rate
# makes up for part of it.
# Hoffer et al. (2017) closed the gap by training longer, and Shallue et al. (2019) found no loss of quality at any batch
# size once the learning rate and its schedule were tuned and the steps weren't cut short.
# A fixed number of epochs handicaps the large batch.
#
# *Try it:* use ten times the rate. Then raise `gap_epochs` until the large batch takes the same number of steps as the small
# one.
#
# ## Deeper: ImageNet in X minutes
#
# This is the race that large batches were meant to win: train ResNet-50 on ImageNet, mostly for 90 epochs.
#
# | who | hardware | software | batch | time | top-1 | what was new |
# |---|---|---|---|---|---|---|
# | He et al. 2015 (1512.03385) | 8 P100 | Caffe | 256 | 29 h | 75.3 % | the network |
# | Goyal et al. 2017 (1706.02677) | 256 P100 | Caffe2 | 8,192 | 1 h | 76.3 % | linear scaling, warm-up |
# | Codreanu et al. 2017 (1711.04291) | 720 KNL | Intel Caffe | 11,520 | 62 min | 75.0 % | CPUs, learning-rate schedule |
# | You et al. 2017 (1709.05011) | 1,600 Xeon | Intel Caffe | 16,000 | 31 min | 75.3 % | LARS |
# | Smith et al. 2017 (1711.00489) | a TPU pod | TensorFlow | 8,192, then 16,384 | 30 min | 76.1 % | the batch grows, and the rate doesn't have to decay |
# | Akiba et al. 2017 (1711.04325) | 1,024 P100 | Chainer | 32,768 | 15 min | 74.9 % | RMSProp first, then SGD |
# | Jia et al. 2018 (1807.11205) | 2,048 P40 | TensorFlow | 65,536 | 6.6 min | 75.8 % | mixed precision with LARS |
# | Mikami et al. 2018 (1811.05233) | 3,456 V100 | NNL | 55,296 | 2.0 min | 75.29 % | 2-D torus allreduce, batch-size control |
# | Ying et al. 2018 (1811.06992) | 1,024 TPU v3 | TensorFlow | 65,536 | 1.8 min | 75.2 % | distributed batch normalization, 2-D torus |
# | Yamazaki et al. 2019 (1903.12650) | 2,048 V100 | MXNet | 81,920 | 1.2 min | 75.08 % | 1.73 million images per second |
# | MLPerf 3.0, 2023 (entry 3.0-2002) | 3,584 H100 | MXNet | | 0.183 min | 75.9 % | the same race under common rules |
#
# (The numbers in parentheses are arXiv's. Times and accuracies are those collected by Akiba et al. and in the ALCF's course of
# 2022. The last row is from NVIDIA's table of MLPerf results, where a run ends once it reaches 75.9 %.
# "ImageNet in 4 minutes" is AlexNet, by Jia et al. too.)

# %%
first_min, documents_min, mlperf_min = 29 * 60, 1.2, 0.183
print(f"29 h to 1.2 min:   {first_min / documents_min:,.0f} times as fast, with {81_920 / 256:.0f} times the batch")
print(f"29 h to 0.183 min: {first_min / mlperf_min:,.0f} times as fast")

# %% [markdown]
# The batch grew by a factor of 320 and accuracy hardly moved, so ImageNet's critical batch must be far above MNIST's. The rest
# of the speed-up comes from faster chips and better software.
# Goyal et al. also show where their recipe stops working: top-1 error is 23.7 % at 8,192,
# 24.8 % at 16k, 27.6 % at 32k, and 34.0 % at 64k. Then the race moved on: MLPerf lists ResNet-50 up to version 4.1, and has
# turned to language models since.
#
# ## Remember
#
# - $B_\text{simple} = \mathrm{tr}\,\Sigma / |G|^2$ comes for free with data-parallel training. Average both parts, then divide.
# - Steps fall as $1/B$ up to about the critical batch, and hardly fall beyond it. At the critical batch, time and compute are
#   both twice their minimum.
# - Noise scale and critical batch grow during training, and differ between tasks by orders of magnitude. Neither "far fewer
#   workers than samples" nor the square root of the data set can replace measuring them.
# - The noise scale is a hint, because it assumes a curvature that's the same in all directions. Before an expensive run, measure
#   the critical batch itself: train branches of the run with larger and larger batches for a while, and see from which on the
#   loss suffers (Merrill et al. 2025).
# - When you compare batch sizes, tune the learning rate at each, and don't fix the number of epochs.
#
# When the batch can't grow any more, you can still make each step cheaper to communicate:
# [07c_less_communication](07c_less_communication.ipynb).
#
# **Sources.** S. McCandlish, J. Kaplan, D. Amodei et al., *An Empirical Model of Large-Batch Training* (arXiv:1812.06162): the noise
# scale, its estimators in appendix A.1, values in table 1. C. Shallue et al., *Measuring the Effects of Data Parallelism on
# Neural Network Training* (arXiv:1811.03600). N. Keskar et al., *On Large-Batch Training for Deep Learning* (arXiv:1609.04836).
# E. Hoffer, I. Hubara and D. Soudry, *Train longer, generalize better* (arXiv:1705.08741). W. Merrill et al., *Critical Batch
# Size Revisited* (arXiv:2505.23971). L. Shao, V. Lee, T. Kurth, M. Mustafa
# and Prabhat, guidelines on distributed training: $\sqrt{N}$. The slides of V. Vishwanath (ALCF, 2018): the condition for strong
# scaling, and the first rows of the table.

# %%
ranks.stop()
