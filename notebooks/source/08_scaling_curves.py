# %% [markdown] track="core path"
# # Scaling curves
#
# You get four times the GPUs, and your training runs 2.9 times as fast. Is that good? The person who paid for the GPUs says
# that a quarter of them sit idle. The person who wrote the code says that nobody does better. Who's right depends on what was
# measured, against what, and how often. After this notebook, you can settle the argument.
#
# **You will** train the same network on 1, 2 and more ranks, turn the times into speed-up and efficiency yourself, do the same
# on 16 emulated GPUs, and see what a handful of points can and can't tell you about the time you lost.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first.

# %%
from statistics import mean, median

from workshop_lib import TrainOptions, predict, profile, ranks, sweep

from lessons import scaling_curves as lesson

sizes = profile.current()
samples = sizes.sweep_samples or 60_000

# %% [markdown]
# ## Two questions
#
# What do you gain from $N$ ranks? You can ask that in two ways.
#
# - **Strong scaling:** how much sooner is the *same* work done? Here the work is an *epoch*, one pass over the training images.
#   (On a laptop, we take only 4,000 of them.)
# - **Weak scaling:** how much *more* work is done in the same time? Here $N$ ranks get $N$ times the images.
#
# Write $t_N$ for the seconds of an epoch on $N$ ranks:
#
# | | ideal | speed-up | efficiency |
# |---|---|---|---|
# | strong | $t_N = t_1 / N$ | $S = t_1 / t_N$ | $S / N$ |
# | weak | $t_N = t_1$ | $N \, t_1 / t_N$ | $t_1 / t_N$ |
#
# On your ranks you'll measure strong scaling, with a fixed batch *per rank*, so the *global batch* grows with $N$. Many
# papers on deep learning speak of strong scaling only if the global batch stays the same, as it will on the emulated GPUs
# below. (You'll see weak scaling there, too.) So always say what you kept the same.

# %%
guess = predict(
    f"Strong: by what factor will {sizes.ranks} ranks be faster than one?",
    low=0.5,
    high=2 * sizes.ranks,
    unit="times",
)
guess

# %% [markdown]
# ## Measure
#
# A machine is never quite idle, so you measure every point several times, and never two runs at once. Two *backends* take
# turns: `mpi` averages all gradients with one `Allreduce` per step, as you did in notebook 02, and `ddp` is PyTorch's
# `DistributedDataParallel`. The numbers of ranks take turns, too. If all runs on one rank came first, and your machine were
# busy just then, you'd measure an efficiency that no machine has.
#
# Watch the curve fill in. If you press *Stop* at any time after the first run, the rest of this notebook works with the runs
# that are done by then.

# %%
backends = [
    TrainOptions(backend=name, epochs=sizes.sweep_epochs, train_samples=samples)
    for name in ("mpi", "ddp")
]
strong = []
for record in sweep(
    ranks.start,
    sizes.sweep_ranks,
    backends,
    sizes.repeats,
    sizes.timeout_s,
    restart=True,
):
    strong.append(record)

# %% [markdown]
# Each run left a *record*, which says what ran, where, and what came out. Everything from here on reads these records. Pale
# marks show runs during which other programs used your cores. Don't trust these runs. Close those programs and run the cell
# again, or read on and look at the spread rather than the medians.
#
# ## Strong scaling
#
# For each number of ranks there's a list of runs, and each run is a list with the seconds of its epochs:

# %%
{
    n: [[round(seconds, 3) for seconds in run] for run in runs]
    for n, runs in lesson.tables.epoch_seconds(strong, "mpi").items()
}

# %% [markdown]
# The first epoch of a run also pays for starting up: memory, connections, and on a GPU the choice of algorithms. In a short
# measurement that can matter, so we leave the first epoch out. (On a laptop, a run has two epochs, so one is left.) From the
# repeats we take the *median*, because one disturbed run can't move it far. (The fastest run shows what's possible, and the
# median what's typical. Say which one you use, and use it for every point.)
#
# ### Exercise 1 (normal): speed-up and efficiency
#
# Turn your measurements into the table that every paper on scaling has. The function gets a dictionary like the one above,
# `{ranks: [run, …]}`. For each run, take the mean of its epochs after the first. The median of these means is the time on $N$
# ranks.
#
# <details><summary>Hint 1: one time per number of ranks</summary>
#
# First reduce each list of runs to one number. `run[1:]` is a run without its first epoch, and `mean` and `median` are
# imported.
#
# </details><details><summary>Hint 2: then compare</summary>
#
# With `typical_s = {ranks: seconds}`, the speed-up on `n` ranks is `typical_s[1] / typical_s[n]`, whatever the order of the
# keys.
#
# </details><details><summary>Solution</summary>
#
# {solution of scaling_table}
#
# </details>


# %%
def scaling_table(seconds):
    """{ranks: (speed-up, efficiency)} for strong scaling, with 1 rank in it.

    Efficiency is a fraction.

    seconds: {ranks: [run, …]}, each run a list of seconds per epoch. Every run has the
    same number of epochs, at least two.
    """
    # <solution>
    typical_s = {
        n: median(mean(run[1:]) for run in runs) for n, runs in seconds.items()
    }
    return {n: (typical_s[1] / s, typical_s[1] / s / n) for n, s in typical_s.items()}
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.scaling_table(scaling_table)

# %% [markdown]
# Here is your table. One column is the *absolute* speed, in samples/s per rank, because slow code scales best: the longer a
# step computes, the smaller the share of its time that goes to sending. The last column is the *spread*: the speed-ups of the
# slowest and of the fastest run, both against the median run on one rank. If the ranges of two rows overlap, don't read
# anything into their difference. A star marks rows with more ranks than cores.

# %%
lesson.tables.speedups(strong, scaling_table)

# %% [markdown]
# *Break it:* take the fastest of the repeats instead of the median, or keep the first epoch. By how much does your efficiency
# change?

# %%
guess.compare(lesson.tables.speedups_of_runs(strong, "mpi", sizes.ranks))

# %%
lesson.scaling_curve(strong)

# %% [markdown]
# Both axes are logarithmic, so points equally far below the dotted line have the same efficiency, which is written next to
# each point. *Hollow* points are *oversubscribed*: there are more ranks than cores, so the ranks take turns, and the point
# says nothing about a machine with enough cores. Crosses are first epochs, which don't belong to the curve. Both backends
# compute the same gradients, up to rounding. So their curves differ only because of the communication and the work around it.
#
# A speed-up above $N$ usually means that something slowed down the run on one rank. (Notebook
# [08b](08b_where_the_time_goes.ipynb) produces such a speed-up on purpose.) It can also be real: with more devices, each one
# holds less data, which may then fit into its cache.
#
# *Beat it:* add `batch_size=256` to the `TrainOptions` and measure again. What does that do to the efficiency, and to the
# accuracy?
#
# ## What keeps it from scaling?
#
# Suppose a fraction $f$ of the work is *serial*, which means that it can't be shared out, while the rest divides perfectly.
# Then
#
# $$S = \frac{1}{f + (1 - f)/N} \quad \text{(Amdahl 1967)}, \qquad S \le \frac{1}{f} \text{ for any number of ranks.}$$
#
# Gustafson (1988) objected that people with more processors solve *larger* problems. If $f$ is a share of the time on $N$
# ranks (Amdahl's is a share of the time on one), then $S = N - f\,(N - 1)$ grows without limit. That's weak scaling.

# %%
lesson.serial_part(0.05)

# %% [markdown]
# *Try it:* how small must the serial part be for an efficiency of one half on 1,024 ranks, if the work is fixed?
#
# ### Exercise 2 (warm-up): the serial fraction of a measurement
#
# Karp and Flatt (1990) turned Amdahl's law around: given a *measured* speed-up, which $f$ would explain it? If a serial part is
# all that limits you, you get the same $f$ for every $N$. If $f$ *grows* with $N$, something else grows too: communication, or
# waiting.
#
# <details><summary>Hint 1</summary>
#
# Start from $1/S = f + (1 - f)/N$. Which terms have $f$ in them?
#
# </details><details><summary>Hint 2</summary>
#
# $1/S - 1/N = f\,(1 - 1/N)$.
#
# </details><details><summary>Solution</summary>
#
# {solution of serial_fraction}
#
# </details>


# %%
def serial_fraction(speedup, n):
    """Amdahl's f that explains this speed-up on n ranks, n at least 2.

    It's negative if the speed-up is above n.
    """
    # <solution>
    return (1 / speedup - 1 / n) / (1 - 1 / n)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.serial_fraction(serial_fraction)

# %% [markdown]
# Look at your own measurements first. With a fixed batch per rank, hardly any of the work is serial. So here $f$ tells you
# how much longer a *step* has become: if a step takes $1 + x$ times as long as on one rank, then $f = x / (N - 1)$. (With two
# cores, you can only trust the row of 2 ranks, so you can't see whether $f$ grows.) If $f$ is above 100 %, several ranks took
# longer than a single one. The `mpi` backend also measures how long it spends inside `Allreduce`, including the wait for the
# slowest rank.

# %%
lesson.tables.losses(strong, serial_fraction)

# %% [markdown]
# Does the time in `Allreduce` account for all the efficiency you lost? If not, the computation itself became slower, because
# the ranks share memory and caches. In rows with a star, the ranks share even the cores.
#
# ## Does the lost share grow?
#
# To see a curve, you need more devices than your machine has. So let the ranks *emulate* them ([05](05_ddp.ipynb) explains
# how): they train and send for real, but each rank carries a clock of emulated time. The machine below is *imagined*. Each of
# its nodes has eight A100 GPUs, joined by NVLink, and a slow network joins the nodes: 25 Gb/s Ethernet. Our small neural
# network stands for ResNet-50, so computing takes as long as ResNet-50's, and the gradients count as 102 MB. (We assume that a
# GPU processes as many images per second in steps of 16 as in steps of 256. A real GPU doesn't: an H200 processed
# 4,690 images/s in steps of 256, and only 569 in steps of 16, because it mostly waited for Python to start its kernels
# ([record](../assets/results/gpu/one_gpu.jsonl)). So real curves fall earlier.)
#
# For *strong* scaling we keep the **global** batch at 256 images, so 16 GPUs get 16 images each.

# %%
guess_16 = predict(
    "Global batch 256: which efficiency do 16 GPUs reach?", low=0, high=100, unit="%"
)
guess_16

# %%
gpus = [1, 2, 4, 8, 16]
machine = "a100-ethernet"  # `workshop machines` in a terminal lists others
emulated = {"backend": "ddp", "epochs": 2, "stands_for": "resnet-50"}


def strong_scaling_on(machine, gpus):
    def fixed_global_batch(n):
        batch = {"batch_size": 256 // n, "train_samples": 1024}
        return [TrainOptions(machine=machine, **batch, **emulated)]

    timeout_s = 5 * sizes.timeout_s
    return list(sweep(ranks.start, gpus, fixed_global_batch, timeout_s=timeout_s))


strong_on_gpus = strong_scaling_on(machine, gpus)

# %%
efficiencies = [
    100 * speedup / 16
    for speedup in lesson.tables.speedups_of_runs(strong_on_gpus, "ddp", 16)
]
guess_16.compare(efficiencies, emulated_on=machine)

# %%
lesson.scaling_curve(strong_on_gpus, same="global_batch")

# %% [markdown]
# Now apply your `serial_fraction` to these runs. Does $f$ grow? And where?

# %%
lesson.tables.losses(strong_on_gpus, serial_fraction)

# %% [markdown]
# For comparison, here's *weak* scaling: every GPU gets 64 images per step, however many GPUs there are.


# %%
def fixed_per_gpu(n):
    batch = {"batch_size": 64, "train_samples": 256 * n}
    return [TrainOptions(machine=machine, **batch, **emulated)]


weak_on_gpus = list(
    sweep(ranks.start, [1, 8, 16], fixed_per_gpu, timeout_s=5 * sizes.timeout_s)
)
lesson.weak_scaling_curve(weak_on_gpus)

# %% [markdown]
# So no fixed serial part explains the curve of strong scaling. Up to 8 GPUs, $f$ falls: all messages stay inside a node, where
# DDP hides nearly all of them, because it sends gradients while the backward pass computes the next ones. You lose time
# because everyone waits for the slowest GPU, and each added GPU makes this wait only a little longer. (The wait is part of the
# emulation: each GPU's time varies by 3.6 %, a value fitted to published curves.) From 8 GPUs to 16, $f$ jumps, because the
# messages now cross the slow network and take longer than the step's computing. With 64 images per GPU, 16 GPUs compute four
# times as long for the same messages, and the efficiency is about three times as high.
#
# ### Was it the network?
#
# So far, that's only a story about a machine that nobody has. But you can test the story. ThetaGPU was a real machine, whose
# nodes had the same GPUs and the same NVLink. Between two nodes, it had 200 GB/s instead of 3 GB/s. You keep everything else
# as it was. If the network caused the drop from 8 GPUs to 16, most of that drop should disappear.

# %%
guess_real = predict(
    "Global batch 256 on ThetaGPU: which efficiency do 16 GPUs reach?",
    low=0,
    high=100,
    unit="%",
)
guess_real

# %%
on_thetagpu = strong_scaling_on("thetagpu", [1, 8, 16])
guess_real.compare(
    [100 * s / 16 for s in lesson.tables.speedups_of_runs(on_thetagpu, "ddp", 16)],
    emulated_on="thetagpu",
)

# %%
lesson.scaling_curve(on_thetagpu, same="global_batch")

# %% [markdown]
# With the same GPUs, the same batch and the same bytes, 16 GPUs are now nearly twice as fast as 8. So it was the network. You
# still lose some efficiency, because everyone waits for the slowest GPU, and computing 16 images is too short to hide all
# messages.
#
# A trained network that only answers requests needs no gradients. If it fits on one GPU, no messages are needed, and it
# scales nearly perfectly until reading the input becomes the limit ([09](09_feeding_the_ranks.ipynb)).
#
# ## Published curves
#
# Here's how many seconds training on MNIST took with 1 to 32 GPUs of ThetaGPU, with a fixed batch per GPU. Horovod's times
# cover whole runs, including start-up and tests.

# %%
published_s = {
    "Horovod, 32 epochs": {1: 499.8, 2: 283.9, 4: 100.4, 8: 58.8, 16: 63.8, 32: 55.7},
    "DDP, one epoch": {1: 11.7, 4: 2.64, 8: 1.37, 16: 0.80, 32: 0.49},
}
lesson.tables.serial_fractions(published_s, serial_fraction)

# %% [markdown]
# Where $f$ is *negative*, the speed-up is larger than the number of GPUs. But the work of an epoch is the same on any number
# of GPUs. So the run on one GPU was probably slower than it had to be, and so was Horovod's run on two GPUs. Next to a slow
# baseline, all other numbers look too good.
#
# Horovod's *time* rises from 8 GPUs to 16, which no serial part can explain. The reason may be overhead, because from 16 GPUs
# on, messages have to leave the eight-GPU node. Or it may be chance: nobody published the spread.
#
# DDP's $f$ grows as well. Before you blame communication, suppose that DDP's run on one GPU was slow, too, and change its
# 11.7 s to 10.1 s (a guess; nobody measured it again). Then $f$ is between 1 and 2 % for every $N$. A baseline that's too slow
# makes a constant $f$ look as if it grew.
#
# As on your ranks, the batch per rank is fixed here, so $f$ is $x / (N - 1)$ if a step takes $1 + x$ times as long as on one
# rank. That's why a constant $f$ can hide an overhead that grows: with the baseline of 10.1 s, a step takes 5 % longer on 4
# GPUs than on one, and 55 % longer on 32.
#
# ## Accuracy is the other half
#
# Throughput is worth nothing if the network learns less, and more ranks take fewer steps per epoch. Below, each number of ranks
# has a line, with a point after each epoch.

# %%
lesson.accuracy_curve(strong)

# %% [markdown]
# How bad can it get? This table shows how Horovod's MNIST example ran on the supercomputer Theta, for 32 epochs and with a
# learning rate proportional to the number of ranks. One rank would have taken eight hours, so the speed-up is relative to 8
# ranks.
#
# | ranks | 8 | 16 | 32 | 64 | 128 | 256 |
# |---|---|---|---|---|---|---|
# | seconds | 3550 | 1800 | 900 | 460 | 255 | 135 |
# | speed-up | 1 | 2.0 | 3.9 | 7.7 | 13.9 | 26.3 |
# | training accuracy, % | 96 | 96 | 96 | 93 | 11 | 11 |
#
# Even on 256 ranks the efficiency is 82 %, but from 128 ranks on, the network is only guessing. Notebook
# [07](07_large_batch.ipynb) explains why and what to do about it, and [07b](07b_gradient_noise.ipynb) measures how large a
# batch is useful. What counts is the *time to a given accuracy*, and only a table with both speed and accuracy can show it.
#
# ## So who's right?
#
# Four GPUs are 2.9 times as fast: with a fair baseline and little spread, that's 73 % efficiency. But do a quarter of the GPUs
# sit idle? If serial work were the only reason (`serial_fraction(2.9, 4)` is 12.6 %), no number of GPUs would be more than
# about 8 times as fast as one. If each step is 38 % longer because of an overhead that doesn't grow, a hundred GPUs are 72
# times as fast. A single point can't tell you which of the two it is. And does nobody do better? Your 16 emulated GPUs look
# bad or good depending on the batch that you gave them. So ask both people for the same thing: a curve that includes 2 and 8
# GPUs, what was kept the same, and the accuracy.
#
# ## Take it home
#
# [scripts/scaling_table.py](scripts/scaling_table.py) makes a scaling table for any training script that prints its images per
# second after each epoch. Each repeat goes through all numbers of ranks. Try it in a terminal, in the workshop's folder:
#
# ```
# source .venv/bin/activate
# cd notebooks/scripts
# python scaling_table.py --ranks 1 2 4 -- torchrun --standalone --nproc-per-node {n} ddp.py --epochs 3
# ```
#
# ## What you can do now
#
# This is the end of the core path. The table at the end of [00](00_start_here.ipynb) counts the exercises you've solved in each
# notebook, and the map above it shows where you can go from here.
#
# ## Remember
#
# - Strong scaling: the same work, sooner. Weak scaling: more work in the same time. Say which of the two you measured, and
#   what you kept the same.
# - Report the baseline, the absolute speed and the spread, and leave the first epoch out.
# - Never time two jobs on the same cores at once, and mark points with more ranks than cores.
# - Work that can't be shared out gives the same serial fraction for any number of ranks. With a fixed batch per rank, look at
#   $f\,(N - 1)$ instead: the fraction by which a step has become longer.
# - Time and accuracy belong in the same table.
#
# Next: [08b](08b_where_the_time_goes.ipynb) looks inside a step for the time you lost, and [08c](08c_forecasting.ipynb)
# predicts runs that nobody has done yet.
#
# **Sources.** G. Amdahl, *Validity of the Single Processor Approach to Achieving Large Scale Computing Capabilities* (AFIPS
# Spring Joint Computer Conference, 1967). J. Gustafson, *Reevaluating Amdahl's Law* (Communications of the ACM 31, 1988). A.
# Karp and H. Flatt, *Measuring Parallel Processor Performance* (Communications of the ACM 33, 1990). T. Hoefler and R. Belli,
# *Scientific Benchmarking of Parallel Computing Systems* (SC 2015). ThetaGPU's times: github.com/argonne-lcf/sdl_ai_workshop,
# in 01_distributedDeepLearning. Theta's times: read off a figure in the ALCF's hands-on session of 2021 on Horovod.

# %%
ranks.stop()
