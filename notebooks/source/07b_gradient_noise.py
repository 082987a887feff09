# %% [markdown]
# # Large batches: noise and limits
#
# **You will** measure how noisy gradients are, from numbers that data-parallel training has anyway; find out from it, and from
# counted steps, how large a batch can usefully be; make ranks wait less for each other, and see what that costs; and send
# gradients in a fiftieth of their bytes.
#
# **Time** about 60 minutes. **Needs** two cores; no GPU, no network. Notebooks [02](02_synchronous_sgd.ipynb) and
# [05](05_ddp.ipynb) first; [07](07_large_batch.ipynb) is about learning rates for large batches.

# %%
import numpy as np
import pandas as pd

from workshop_lib import ranks
from workshop_lib.exercises import gradient_noise as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.figures import learning
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import ROOT
from workshop_lib.scaling import critical_batch, records, steps_to_target
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
quick = sizes.name == "quick"
team = ranks.start(max(2, sizes.ranks))

# %% [markdown]
# ## How noisy is a gradient?
#
# Each sample has a gradient of its own. Call their mean $G$, the *true gradient*, and their covariance $\Sigma$; its trace
# $\mathrm{tr}\,\Sigma$ is the variance of the gradient's entries, all added up. A batch of $B$ samples has the mean of $B$ of these
# gradients, $G_B$. It points to $G$ on average; how far it is off depends on $B$:
#
# $$\langle |G_B|^2 \rangle = |G|^2 + \frac{\mathrm{tr}\,\Sigma}{B},$$
#
# with $\langle\;\rangle$ for the average over batches. The first part is signal, the second is noise. They are equal when $B$ is
#
# $$B_\text{simple} = \frac{\mathrm{tr}\,\Sigma}{|G|^2},$$
#
# the *simple noise scale* (McCandlish et al. 2018). A batch far below it is nearly all noise: twice the batch, nearly twice as
# good a step. A batch far above it knows the direction already, and more samples tell it little.
#
# Neither $G$ nor $\Sigma$ is known. But training on several ranks has gradients of *two* sizes of batch in every step: each
# rank's own, with batch $b$, and their average, with batch $B$. That is the equation above twice, for two unknowns.
#
# ## Exercise 1: two unknowns
#
# `small_sq` is the squared norm of a gradient of `small_batch` samples (the mean over the ranks), `big_sq` that of the averaged
# gradient of `big_batch` samples. Take both for what they are on average, and return estimates of $|G|^2$ and of
# $\mathrm{tr}\,\Sigma$.


# %%
def noise_estimates(small_sq, big_sq, small_batch, big_batch):
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
# Both estimates are *unbiased*: right on average, though each is noisy (that of $|G|^2$ may even be negative). Their ratio is
# not, since it is divided by something noisy. So average each over many steps first, and divide the averages.
#
# Does it work? Where the weights stand still and the data are few, we can do without estimates: compute the gradient of every
# single image, and from them $|G|^2$ and $\mathrm{tr}\,\Sigma$ as they are defined.

# %%
# %%ranks
import numpy as np
from mpi4py import MPI

from workshop_lib.data import mnist, shard
from workshop_lib.models.flat import FlatNetwork
from workshop_lib.scaling import noise_scale

comm = MPI.COMM_WORLD
train, test = mnist.load("train"), mnist.load("test")
network = FlatNetwork(seed=1)
start = network.weights()

few = 500
if comm.rank == 0:
    single = np.stack([network.gradient(start, train.images[[i]], train.labels[[i]]) for i in range(few)])
    G = single.mean(axis=0)
    print(f"by definition: |G|² {G @ G:.3f}, tr(Σ) {((single - G) ** 2).sum() / few:.1f}")

random = np.random.default_rng([1, comm.rank])
follower = noise_scale.Follower(16, 16 * comm.size)
for _ in range(200):
    rows = random.integers(few, size=16)
    gradient = network.gradient(start, train.images[rows], train.labels[rows])
    mean, norms = noise_scale.averaged(gradient, comm)
    follower.add(norms)
if comm.rank == 0:
    print(f"estimated:     |G|² {follower.gradient_sq:.3f}, tr(Σ) {follower.trace:.1f}")
    print(f"noise scale:   {follower.noise_scale:.1f} ± {follower.standard_error:.1f} (standard error)")

# %% [markdown]
# `averaged` is the `Allreduce` of [02](02_synchronous_sgd.ipynb) with one number more in the message, this rank's squared norm.
# `Follower` sums up what your exercise computes.
#
# ## The noise scale while training
#
# At first the network learns what all images have in common, and the true gradient grows. Then the loss falls and it shrinks, while
# single images still pull in all directions.

# %%
steps = 150 if quick else 900
guess = predict(
    f"By what factor does the noise scale grow, from its lowest value to that after {steps} steps?",
    low=1,
    high=100,
    unit="times",
)
guess

# %%
team.push(steps=steps, memory=25 if quick else 100)

# %%
# %%ranks --timeout 180
batch, lr = 32, 0.05
follower = noise_scale.Follower(batch, batch * comm.size, memory_steps=memory)
weights, curve = start.copy(), []
batches = shard.epoch_batches(train.total, batch, comm.rank, comm.size, seed=1, epoch=1)
for step, (rows, _) in enumerate(batches, 1):
    gradient, norms = noise_scale.averaged(
        network.gradient(weights, train.images[rows], train.labels[rows]), comm
    )
    weights -= lr * gradient
    follower.add(norms)
    if step % 10 == 0:
        curve.append((step, follower.noise_scale, follower.standard_error))
    if step == steps:
        break
network.set(weights)
if comm.rank == 0:
    print(f"after {step} steps, test accuracy {network.accuracy(test.images, test.labels):.1%}")

# %%
curve = np.array(team.pull("curve")[0])
known = curve[np.isfinite(curve[:, 1])]
guess.compare(known[-1, 1] / known[:, 1].min())

# %%
learning.noise(*curve.T, f"MNIST, {team.n} ranks with batches of 32, plain SGD; exponential average over steps")

# %% [markdown]
# The dotted lines are the published simple noise scale of MNIST, 50 at the start and 900 as the mean over a whole training.
# Expect the order of magnitude, not the number: the noise scale depends on the network, on how far it is trained and on what
# counts as the mean. The band is wide because two ranks make two batches that differ by a factor of two only; with more ranks the
# estimate becomes better, for free.
#
# *Try it:* more steps, or another learning rate. Which of $|G|^2$ and $\mathrm{tr}\,\Sigma$ changes?
#
# ## Steps to target
#
# The noise scale is a forecast. What counts is how many steps a training needs at each batch size. Theory and measurements
# agree on the shape (McCandlish et al. 2018, Shallue et al. 2019): first *perfect scaling*, twice the batch and half the steps;
# then *diminishing returns*; at last a *plateau*, where no batch helps. A training takes $S$ steps on $E = S \cdot B$ samples. Let
# $S_\text{min}$ be the fewest steps that suffice, with batches as large as you like, and $E_\text{min}$ the fewest samples, with
# batches as small as you like. Then
#
# $$\left(\frac{S}{S_\text{min}} - 1\right)\left(\frac{E}{E_\text{min}} - 1\right) = 1
# \quad\Longleftrightarrow\quad S = S_\text{min} + \frac{E_\text{min}}{B},$$
#
# and the *critical batch size* $B_\text{crit} = E_\text{min} / S_\text{min}$ is where training takes twice the fewest steps on
# twice the fewest samples. The learning rate has to be tuned at each batch size: with one rate for all we would measure how
# well that rate fits. Clocks play no part, so each rank can measure batch sizes of its own.

# %%
target = 0.8 if quick else 0.9
guess = predict(
    f"The critical batch size for this network on MNIST, to {target:.0%} test accuracy?",
    low=0,
    high=1000,
    unit="samples",
)
guess

# %%
job = {
    "batches": [8, 64, 512] if quick else [8, 16, 32, 64, 128, 256, 512, 1024],
    "lrs": [0.05, 0.2] if quick else [0.025, 0.05, 0.1, 0.2, 0.4],
    "seeds": [1] if quick else [1, 2],
    "how": {"target": target, "test_samples": 500},
}
team.push(job=job)

# %%
# %%ranks --timeout 600
from workshop_lib.scaling import steps_to_target

mine = job["batches"][comm.rank :: comm.size]
found = list(steps_to_target.tune(mine, job["lrs"], job["seeds"], **job["how"]))

# %%
found = [record for of_rank in team.pull("found") for record in of_rank]
best = steps_to_target.best_rates(found)
pd.DataFrame.from_dict(best, orient="index", columns=["lr", "steps", "at_edge"]).rename_axis("batch")

# %% [markdown]
# `at_edge` says that the best rate was the smallest or the largest that was tried, so a better one may lie beyond: take such a row
# with care.

# %%
pairs = {f"here, to {target:.0%}": steps_to_target.pairs(found)}
committed = ROOT / "assets" / "results" / "steps_to_target.jsonl"
if committed.exists():  # measured at leisure, with more batch sizes, learning rates and seeds
    long_run = records.read(committed)
    pairs["long run, to 97%"] = steps_to_target.pairs(long_run)
    rates = {batch: best.lr for batch, best in steps_to_target.best_rates(long_run).items()}
    print("long run, the best rate of each batch:", rates)
fits = {}
for name, measured in pairs.items():
    try:
        fits[name] = critical_batch.fit(*measured)
        low, high = fits[name].intervals["b_crit"]
        print(f"{name}: critical batch {fits[name].b_crit:.0f}, 95 % interval {low:.0f} to {high:.0f}")
    except ValueError as error:
        print(f"{name}: no fit. {error}")

# %%
if fits:
    display(guess.compare(next(iter(fits.values())).b_crit))
learning.steps_to_target(pairs, fits, "MNIST, plain SGD, learning rate tuned at each batch size")

# %% [markdown]
# On the left the steps, with perfect scaling as a dotted line. On the right the same points as a *Pareto frontier*: steps are the
# time that a training takes when there are workers enough, samples are the compute that somebody pays for. Nobody gets below and
# left of the curve, but for the scatter of single runs. At the critical batch both cost twice their minimum; far right is slow
# and cheap, far left is quick and wasteful.
#
# A few points give a rough fit, as the interval says. The long run, kept in `assets/results/steps_to_target.jsonl`, trained 126
# times:
#
#     .venv/bin/python -m workshop_lib.scaling.steps_to_target --out build/steps_to_target.jsonl
#
# Its best rates hardly change with the batch, among rates a factor of two apart, and follow neither the linear rule nor the
# square root: on the way to this target it seems to be the curvature that limits them ([07](07_large_batch.ipynb)).
#
# ### Set beside what was published

# %%
batches = {
    "published: critical batch, at the start of training": 20,
    "published: critical batch, mean over training": 200,
    "published: simple noise scale, at the start": learning.PUBLISHED["at the start"],
    "published: simple noise scale, mean over training": learning.PUBLISHED["mean over training"],
    "rule of thumb: square root of the 60,000 training images": 60_000**0.5,
    "here: simple noise scale, at its lowest": known[:, 1].min(),
    f"here: simple noise scale, after {steps} steps": known[-1, 1],
}
batches |= {f"critical batch {name}": fit.b_crit for name, fit in fits.items()}
beside = pd.Series(batches, name="batch (samples)").to_frame()
if fits:
    fit = list(fits.values())[-1]
    beside["steps / fewest"] = fit.steps(beside["batch (samples)"]) / fit.s_min
    beside["samples / fewest"] = fit.samples(beside["batch (samples)"]) / fit.e_min
beside.style.format("{:.1f}").format("{:.0f}", subset="batch (samples)")

# %% [markdown]
# (Published: McCandlish et al. 2018; the rule of thumb: Shao et al.) The last two columns are what a training with such a batch
# takes, by the fit of the last row. Why do the rows differ?
#
# - The noise scale would be the critical batch if all directions were curved alike. They are not: where curvature is large it is
#   $\mathrm{tr}(H\Sigma) / (G^T H G)$ that counts, with the *Hessian* $H$, the matrix of second derivatives.
# - The noise scale and the critical batch grow during training. So the critical batch depends on the accuracy asked for: the
#   harder the target, the larger.
# - The published network is another one.
# - The rule of thumb knows nothing about the task. Here it asks for three times the critical batch of the long run: near the fewest
#   steps, at four times the fewest samples. For ImageNet it says 1,131, and 8,192 lost nothing (see the table at the end).
#
# The noise scale is for the order of magnitude, before an expensive run; steps to target are the measurement.
#
# *Try it:* a higher target. Where does the critical batch go?
#
# ## Does a large batch generalise worse?
#
# The *generalisation gap* is training accuracy minus test accuracy. Keskar et al. (2017) found that large batches end with a
# wider one. Here two batch sizes train on few images, which makes a gap easy to see, for the same number of *epochs*.

# %%
gap_samples, gap_epochs = 2000, 3 if quick else 20
rows = []
for batch, lr in ((16, 0.02), (500, 0.02), (500, 0.04)):
    options = TrainOptions(
        batch_size=batch, lr=lr, epochs=gap_epochs, train_samples=gap_samples, decay="none", warmup_epochs=0.5
    )
    record = team.train(options, show=False)
    last = record["epochs"][-1]
    steps = gap_epochs * -(-gap_samples // (batch * team.n))
    row = {"global batch": batch * team.n, "learning rate": lr, "steps": steps}
    row |= {"training accuracy": last["train_accuracy"], "test accuracy": last["test_accuracy"]}
    rows.append(row | {"gap": last["train_accuracy"] - last["test_accuracy"]})
percent = dict.fromkeys(("training accuracy", "test accuracy", "gap"), "{:.1%}")
pd.DataFrame(rows).style.format(percent | {"learning rate": "{:g}"}).hide()

# %% [markdown]
# (Training accuracy is that of the images as they were trained on, in the course of the last epoch, so it lags behind where a
# training still moves.) Compare the rows before you explain them. The large batch took far fewer steps and is simply not done: it is
# worse on the training images too, and a gap can only be compared between trainings that have come equally far. Twice the rate
# brings back part of it. Hoffer et al. (2017) closed the gap by training longer, and Shallue et al. (2019) found no loss of
# quality at any batch size once learning rate and schedule were tuned and steps were not cut short. A fixed number of epochs
# handicaps the large batch.
#
# *Try it:* ten times the rate; then as many steps as the small batch has, with `gap_epochs` in proportion.
#
# ## ImageNet in X minutes
#
# What all of this was for, in one table: ResNet-50 on ImageNet, 90 epochs.
#
# | team | hardware | batch | time | accuracy | what was new |
# |---|---|---|---|---|---|
# | He et al. 2015 (arXiv:1512.03385) | 8 P100 | 256 | 29 h | 75.3 % | the network |
# | Goyal et al. 2017 (arXiv:1706.02677) | 256 P100 | 8,192 | 1 h | 76.3 % | linear scaling and warm-up |
# | Codreanu et al. 2017 (arXiv:1711.04291) | 720 KNL | 11,520 | 62 min | 75.0 % | CPUs, learning-rate schedule |
# | You et al. 2017 (arXiv:1709.05011) | 1,600 Xeon | 16,000 | 31 min | 75.3 % | LARS |
# | Akiba et al. 2017 (arXiv:1711.04325) | 1,024 P100 | 32,768 | 15 min | 74.9 % | RMSProp first, then SGD; fp16 messages |
# | Jia et al. 2018 (arXiv:1807.11205) | 2,048 P40 | 65,536 | 6.6 min | 75.8 % | mixed precision with LARS, fused messages |
#
# (The first five as collected by Akiba et al.; "ImageNet in 4 minutes" is AlexNet, by Jia et al.) Time fell by a factor of
# 260 with 256 times the batch, and accuracy hardly moved. Goyal et al. also show where it ends, for their recipe: top-1
# error is 23.7 % at 8,192, 24.8 % at 16k, 27.6 % at 32k, 34.0 % at 64k.
#
# ## Remember
#
# - $B_\text{simple} = \mathrm{tr}\,\Sigma / |G|^2$ comes for free with data-parallel training. Average both parts, then divide.
# - Steps fall as $1/B$ up to about the critical batch, and then no longer. There, both time and compute are twice their minimum.
# - Noise scale and critical batch grow during training, and differ between tasks by orders of magnitude: the square root of the
#   number of training samples is a first guess, no more.
# - Compare batch sizes with the learning rate tuned at each, and not at a fixed number of epochs.
# - Staleness buys time: all three ways where stragglers change places, only the asynchronous one where it is always the same.
# - Error feedback sends later what compression leaves out.
#
# **Sources.** S. McCandlish, J. Kaplan, D. Amodei et al., *An Empirical Model of Large-Batch Training* (arXiv:1812.06162): the noise
# scale, its estimators in appendix A.1, values in table 1. C. Shallue et al., *Measuring the Effects of Data Parallelism on
# Neural Network Training* (arXiv:1811.03600). N. Keskar et al., *On Large-Batch Training for Deep Learning* (arXiv:1609.04836).
# E. Hoffer, I. Hubara and D. Soudry, *Train longer, generalize better* (arXiv:1705.08741). L. Shao, V. Lee, T. Kurth, M. Mustafa
# and Prabhat, guidelines on distributed training: $\sqrt{N}$, and when to be asynchronous. T. Kurth et al., *Exascale Deep Learning
# for Climate Analytics* (arXiv:1810.01993): gradient lag. J. Dean et al., *Large Scale Distributed Deep Networks* (NIPS 2012):
# parameter servers. S. Stich, *Local SGD Converges Fast and Communicates Little* (arXiv:1805.09767). T. Vogels et al., *PowerSGD*
# (arXiv:1905.13727). F. Seide et al., *1-Bit Stochastic Gradient Descent* (Interspeech 2014), and S. Stich et al., *Sparsified SGD
# with Memory* (arXiv:1809.07599): error feedback. Y. Lin et al., *Deep Gradient Compression* (arXiv:1712.01887): with momentum. The
# slides of V. Vishwanath (ALCF, 2018): the table.

# %%
ranks.stop()
