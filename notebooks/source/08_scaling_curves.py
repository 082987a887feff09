# %% [markdown] track="core path"
# # Scaling curves
#
# You get four times the GPUs, and your training runs 2.9 times as fast. Is that good? The person who paid for the GPUs says
# that a quarter of them sit idle. The person who wrote the code says that nobody does better. Who's right depends on what was
# measured, against what, and how often. After this notebook you can settle it.
#
# **You will** train the same network on 1, 2 and more ranks, turn the times into speed-up and efficiency yourself, and find
# out from a handful of points what keeps it from scaling.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first. It explains how several ranks train one network.

# %%
import contextlib
import time
from statistics import mean, median

import pandas as pd

from workshop_lib import ranks
from workshop_lib.lessons.scaling_curves import judge as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.figures.accuracy import accuracy_curve
from workshop_lib.notebook.figures.scaling import scaling_curve, serial_part, weak_scaling_curve
from workshop_lib.notebook.live_sweep import sweep
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD
from workshop_lib.ranks import scripts
from workshop_lib.results import curves, records
from workshop_lib.training.cores import usable_cores
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
samples, most = sizes.sweep_samples or 60_000, sizes.sweep_ranks[-1]
print(f"ranks: {sizes.sweep_ranks}, on a machine with {usable_cores()} cores; {sizes.repeats} runs of each")

# %% [markdown]
# ## Two questions
#
# What do you gain from $N$ ranks? You can ask that in two ways.
#
# - **Strong scaling:** how much sooner is the *same* work done? Here the work is an *epoch*, one pass over the training
#   images, and the number of images stays the same.
# - **Weak scaling:** how much *more* work is done in the same time? Here $N$ ranks get $N$ times the images.
#
# Write $t_N$ for the seconds of an epoch on $N$ ranks:
#
# | | ideal | speed-up | efficiency |
# |---|---|---|---|
# | strong | $t_N = t_1 / N$ | $S = t_1 / t_N$ | $S / N$ |
# | weak | $t_N = t_1$ | $N \, t_1 / t_N$ | $t_1 / t_N$ |
#
# In both, each rank takes a *batch* of the same size in every step, so the *global batch* grows with $N$. Careful: many
# papers on deep learning mean one *step*, not one epoch. They would call both of ours weak scaling, and they say "strong"
# when the global batch is fixed. So always say what you kept the same.
#
# Commit to three predictions before you measure anything.

# %%
guess = predict(
    f"Strong: by what factor will {sizes.ranks} ranks be faster than one?", low=0.5, high=2 * sizes.ranks, unit="times"
)
guess

# %%
other = sizes.oversubscribed_ranks or 2
guess_other = predict(f"Strong: and {other} ranks, on this machine?", low=0.5, high=2 * other, unit="times")
guess_other

# %%
guess_weak = predict(
    f"Weak: {most} ranks, {most} times the images. How many times as long as on 1 rank does an epoch take?",
    low=0,
    high=2 * most,
    unit="times",
)
guess_weak

# %% [markdown]
# ## Measure
#
# A machine is never quite idle, so you measure every point several times. The runs take turns, because two at once would share
# the cores that you measure them on.
# Two *backends* compete. `mpi` averages all gradients with one `Allreduce` per step, as you did in
# notebook 02, and `ddp` is PyTorch's own `DistributedDataParallel`.

# %%
per_rank = samples // sizes.ranks  # in weak scaling; on sizes.ranks ranks, the same runs serve both


def options(n):
    """What to run on n ranks."""
    runs = [("mpi", samples), ("ddp", samples)]
    if n * per_rank != samples:
        runs.append(("mpi", n * per_rank))
    return [TrainOptions(backend=name, epochs=sizes.sweep_epochs, train_samples=size) for name, size in runs]


# %% [markdown]
# How long will that take? Time one run and multiply by the number of runs. The cell times the second run, because the first
# one on fresh ranks also imports PyTorch.

# %%
team = ranks.start(1)
for _ in range(2):
    began = time.monotonic()
    team.train(options(1)[0], timeout=sizes.timeout_s, show=False)
run_s = time.monotonic() - began
count = sizes.repeats * sum(len(options(n)) for n in sizes.sweep_ranks)
print(f"{count} runs of about {run_s:.1f} s: {count * run_s / 60:.1f} minutes, plus a fresh start for each number of ranks")

# %% [markdown]
# Now watch the curve fill in. If you press *Stop*, the rest of this notebook works with the runs that are done by then.

# %%
file = BUILD / "08_scaling_curves.jsonl"
file.unlink(missing_ok=True)
for record in sweep(ranks.start, sizes.sweep_ranks, options, sizes.repeats, sizes.timeout_s):
    records.write(file, record)

# %% [markdown]
# Each run left a *record* in a file: what ran, where, and what came out. Everything from here on reads these records. Hollow
# marks are runs during which other programs used your cores, so don't trust them. Close those
# programs and run the cell again, or read on and look at the spread rather than the medians.

# %%
measured = records.read(file)
strong = [record for record in measured if record["what"]["train_samples"] == samples]
weak = [
    record
    for record in measured
    if record["what"]["backend"] == "mpi" and record["what"]["train_samples"] == record["what"]["world_size"] * per_rank
]
print(f"{len(measured)} runs: {len(strong)} for strong scaling, {len(weak)} for weak scaling")

# %% [markdown]
# ## Strong scaling
#
# For each number of ranks there's a list of runs, and for each run a list with the seconds of its epochs:


# %%
def epoch_seconds(chosen, backend):
    seconds = {}
    for record in chosen:
        if record["what"]["backend"] == backend:
            run = [round(epoch["seconds"], 3) for epoch in record["epochs"]]
            seconds.setdefault(record["what"]["world_size"], []).append(run)
    return seconds


epoch_seconds(strong, "mpi")

# %% [markdown]
# The first epoch of a run also pays for starting up: memory, connections, and on a GPU the choice of algorithms. In a long run
# that doesn't matter, but in a short measurement it does, so we leave it out. (Compare the first number of each run with the
# second. On a CPU the difference may drown in the noise.) From the repeats we take the *median*, because one disturbed run
# can't move it far. The fastest run may just have been lucky.
#
# ### Exercise 1 (normal): speed-up and efficiency
#
# This function turns your measurements into the table that every paper on scaling has. It gets a dictionary like the one
# above, `{ranks: [run, …]}`.
# For each run, take the mean of its epochs after the first. The median of these means is the time on $N$
# ranks.
#
# <details><summary>Hint 1: one time per number of ranks</summary>
#
# First boil the list of runs down to one number. `run[1:]` is a run without its first epoch, and `mean` and `median` are
# imported.
#
# </details><details><summary>Hint 2: then compare</summary>
#
# With `typical_s = {ranks: seconds}`, the speed-up on `n` ranks is `typical_s[1] / typical_s[n]`, no matter where the 1 comes
# in the dictionary.
#
# </details><details><summary>Solution</summary>
#
# {solution of scaling_table}
#
# </details>


# %%
def scaling_table(seconds):
    """{ranks: (speed-up, efficiency)} for strong scaling, with 1 rank in it; efficiency is a fraction.

    seconds: {ranks: [run, …]}, each run a list of seconds per epoch: at least two epochs, and the same number in every run.
    """
    # <solution>
    typical_s = {n: median(mean(run[1:]) for run in runs) for n, runs in seconds.items()}
    return {n: (typical_s[1] / s, typical_s[1] / s / n) for n, s in typical_s.items()}
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.scaling_table(scaling_table)

# %% [markdown]
# *Break it:* take the fastest of the repeats instead of the median, or keep the first epoch. By how much does your efficiency
# change? Then apply your function to both backends. (The table stays empty until you've solved the exercise.)


# %%
def speedups(backend):
    """From your table: {ranks: speed-up}, without 1 rank. Empty while the exercise is open."""
    with contextlib.suppress(NotImplementedError):
        table = scaling_table(epoch_seconds(strong, backend))
        return {n: speedup for n, (speedup, _) in sorted(table.items()) if n > 1}
    return {}


yours = pd.DataFrame({backend: speedups(backend) for backend in ("mpi", "ddp")}).rename_axis("ranks")
yours.join(yours.div(yours.index, axis=0).add_suffix(" efficiency")).round(2)

# %% [markdown]
# The library makes the same table, and adds what a table needs before you can believe it: the spread between the slowest and the
# fastest run. If two points differ by less than that, don't read anything into it. (It takes the median of the speeds, not of
# the times, so with
# an even number of runs the last digits may differ from yours.)

# %%
curves.summary(strong)

# %%
points = curves.strong_scaling(curves.to_frame(strong)).set_index(["backend", "world_size"])


def show_result(guess, n):
    point = points.reindex([("mpi", n)]).iloc[0]  # empty if you stopped the sweep before these runs
    return guess.compare(point["speedup"], spread=(point["speedup_min"], point["speedup_max"]))


show_result(guess, sizes.ranks)

# %%
show_result(guess_other, other)

# %%
scaling_curve(strong)

# %% [markdown]
# How to read it:
#
# - Each backend has a panel. A point is the median of its runs, its bar goes from the slowest to the fastest, and the number next
#   to it is the efficiency.
# - Both axes are logarithmic, so perfect scaling is a straight line. The further a point lies below it, the lower its efficiency.
# - *Hollow* points are *oversubscribed*: more ranks than cores, so they take turns. They say nothing about a machine that has
#   enough cores.
# - Crosses are first epochs. They don't belong to the curve.
# - Both backends compute the same gradients, up to rounding, so what separates the curves is communication and the other work
#   that DDP does around it.
#
# And what does *yours* say? The next cell reads it for you, spread included.

# %%
for (backend, n), point in points[points.index.get_level_values("world_size") > 1].iterrows():
    low, high = point["speedup_min"], point["speedup_max"]
    remark = (
        "  Slower than one rank alone!"
        if high < 1
        else "  More than perfect: look at the run on 1 rank."
        if low > n
        else ""
    )
    print(f"{backend} on {n} ranks: {low:.2f} to {high:.2f} times as fast.{remark}")
for n in sizes.sweep_ranks[1:]:
    if ("ddp", n) not in points.index:
        continue
    (low, high), (low_ddp, high_ddp) = (points.loc[name, n][["speedup_min", "speedup_max"]] for name in ("mpi", "ddp"))
    differ = low > high_ddp or low_ddp > high
    print(f"On {n} ranks, mpi and ddp {'differ by more' if differ else 'do not differ by more'} than their spread.")

# %% [markdown]
# *More than perfect*, a speed-up above $N$, usually means that something slowed down the run on one rank. Its process may have
# been bound to fewer cores, for example.
# Notebook [08b](08b_where_the_time_goes.ipynb) produces such a speed-up on purpose. But it
# isn't always a mistake.
# With more devices each one holds less, so the data may fit into a cache, or memory that frees up may allow a larger
# and more efficient batch. ZeRO's authors report such a super-linear speed-up from 64 to 400 GPUs, and explain it.
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
# Gustafson (1988) objected that people with more processors solve *larger* problems, and then the serial part matters less and
# less. Draw both with a serial part of 5 %.

# %%
serial_part(0.05)

# %% [markdown]
# *Try it:* how small must the serial part be for an efficiency of one half on 1,024 ranks, if the work is fixed?
#
# ### Exercise 2 (warm-up): the serial fraction of a measurement
#
# Karp and Flatt (1990) turned Amdahl's law around: given a *measured* speed-up, which $f$ would explain it? This is the cheapest
# diagnosis there is. If a serial part is all that limits you, you get the same $f$ for every $N$. If $f$ *grows* with $N$,
# something else grows too: communication, or waiting. And if it's negative, your baseline deserves a second look.
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
    """Amdahl's f that explains this speed-up on n ranks, n at least 2; negative if the speed-up is above n."""
    # <solution>
    return (1 / speedup - 1 / n) / (1 - 1 / n)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.serial_fraction(serial_fraction)

# %% [markdown]
# Try it on measurements that others have published: seconds of training on MNIST with 1 to 32 GPUs of the machine ThetaGPU, with a
# fixed batch per GPU. Horovod's times are those of whole runs, including start-up and tests.

# %%
published_s = {
    "Horovod, 32 epochs": {1: 499.8, 2: 283.9, 4: 100.4, 8: 58.8, 16: 63.8, 32: 55.7},
    "DDP, one epoch": {1: 11.7, 4: 2.64, 8: 1.37, 16: 0.80, 32: 0.49},
}


def show_fractions(title, speedups):
    print(title)
    for n, speedup in speedups.items():
        fraction = "not written yet"
        with contextlib.suppress(NotImplementedError):
            fraction = f"{serial_fraction(speedup, n):6.1%}"
        print(f"  {n:>2} ranks: speed-up {speedup:5.2f}, efficiency {speedup / n:4.0%}, serial fraction {fraction}")


for title, times in published_s.items():
    show_fractions(title, {n: times[1] / s for n, s in times.items() if n > 1})

# %% [markdown]
# Where $f$ is *negative*, the speed-up is larger than the number of GPUs. Each GPU had the same batch, so more GPUs freed no
# memory and saved no work. The run on one GPU must have been slower than necessary.
# Every other number in the table is compared with that
# run, so it looks too good.
#
# Horovod's *time* rises from 8 GPUs to 16. No serial part can do that. Maybe it's overhead, because from 16 GPUs on, messages
# have to leave the eight-GPU machine. Or maybe it's chance: nobody published the spread.
#
# DDP's $f$ grows as well. Before you blame communication, *try it* with a baseline of 10.1 s instead of 11.7.
# Then $f$ is between 1
# and 2 % for every $N$. A baseline that's too slow makes a constant $f$ look as if it grew.
#
# Now look at your own measurements. With a fixed batch per rank, hardly anything is serial.
# So here $f$ tells you how much longer a
# *step* has become: if it takes $1 + x$ times as long as on one rank, then $f = x / (N - 1)$.

# %%
for backend, chosen in points.groupby(level="backend", sort=False):
    chosen = chosen.droplevel("backend")
    show_fractions(f"{backend}, measured here", dict(chosen.loc[chosen.index > 1, "speedup"]))
    above = [str(n) for n, over in chosen["oversubscribed"].items() if over]
    if above:
        print(f"  oversubscribed: {', '.join(above)}; there, waiting for a core is in the fraction")

# %% [markdown]
# The `mpi` backend also measures how long it spends inside `Allreduce`, including the wait for the slowest rank.
# Does that account for
# the efficiency you lost? If you lost more than that, computing itself became slower, because ranks share memory and caches,
# and if they're oversubscribed, even cores.

# %%
share = curves.to_frame(strong).groupby(["backend", "world_size"])["communication_share"].median()
for n, part in share["mpi"].items():
    lost = 1 - points.loc[("mpi", n), "efficiency"]
    print(f"N = {n}: {part:.1%} of the time in Allreduce, {lost:.1%} of the efficiency lost")

# %% [markdown]
# ## Weak scaling
#
# Now look at the runs in which every rank has the same number of images, however many ranks there are.

# %%
weak_points = curves.weak_scaling(curves.to_frame(weak)).set_index("world_size")
times_as_long = weak_points[["epoch_s", "epoch_s_min", "epoch_s_max"]] / weak_points.loc[1, "epoch_s"]
middle, low, high = times_as_long.reindex([most]).iloc[0]
guess_weak.compare(middle, spread=(low, high))

# %%
weak_scaling_curve(weak)

# %% [markdown]
# Perfect weak scaling is the flat dotted line. Once the ranks outnumber the cores, the measured line has to
# bend upwards, because the work has grown and the machine hasn't.
#
# With a fixed batch per rank, a single step is the same here as in strong scaling and costs the same; only the number of steps
# differs. So these efficiencies should agree with those of `mpi` above, up to their spread. A fixed *global* batch is harder,
# because each rank computes less and less per step but sends the same messages.
#
# *Beat it:* predict the efficiency with a fixed global batch of 64, then measure it.
#
# ```python
# def fixed_global_batch(n):
#     return [TrainOptions(batch_size=64 // n, epochs=sizes.sweep_epochs, train_samples=samples)]
#
# fixed = list(sweep(ranks.start, sizes.sweep_ranks, fixed_global_batch))
# scaling_curve(fixed, same="global_batch")
# ```
#
# ## Accuracy is the other half
#
# Throughput is worth nothing if the network learns less. With a fixed batch per rank, more ranks take fewer steps in the same
# number of epochs, each with a larger global batch. Below, each backend has a panel with one line per number of ranks, and
# a point at the end of each epoch.

# %%
accuracy_curve(strong)

# %% [markdown]
# A figure from a hands-on session on the supercomputer Theta shows how far that can go. It's Horovod's MNIST example, 32
# epochs on 8 to 256 ranks, with a learning rate that grows with the ranks. There's no run on one rank (it would
# have taken eight hours), so here the speed-up is relative to 8 ranks.

# %%
theta_s = {8: 3550, 16: 1800, 32: 900, 64: 460, 128: 255, 256: 135}  # read off the figure, as the accuracies are
rows = {
    n: {"seconds": s, "speed-up": f"{theta_s[8] / s:.1f} of {n / 8:g}", "accuracy, %": curves.PUBLISHED[n]}
    for n, s in theta_s.items()
}
pd.DataFrame.from_dict(rows, orient="index").rename_axis("ranks")

# %% [markdown]
# "Time to solution decreases linearly", says the hands-on, and that's nearly true: from 8 to 256, 32 times the ranks are
# 26 times as fast. But from 128 ranks on, the network is only guessing. (The authors suggest warming up the learning rate;
# notebook
# [07](07_large_batch.ipynb) tries that.) Slides from 2018 promise that the time to a given accuracy scales strongly, as long
# as there are far fewer workers than training samples and you know a good learning rate.
# And 128 workers *are* far fewer than 60,000 images.
# But that isn't enough. In notebook
# [07b](07b_gradient_noise.ipynb) you can measure the batch size beyond which more workers save fewer and
# fewer steps, and for this data it's below a hundred.
#
# So a faster epoch is only a means to an end. What counts is the *time to a given accuracy*, and only a table with both columns can
# show it.
#
# ## Deeper: inference, and how sure the answer is
#
# When a trained network only has to answer, it needs no gradients, and so no allreduce. Give each rank
# its share of the samples, and you
# get nearly perfect scaling until reading them becomes the limit. Science asks for more than an answer, though. It wants to know how
# *sure* the answer is (*uncertainty quantification*), and a simple way to find out is an ensemble: train one network on each
# rank, every one from a different seed, and let them all vote.
# The ranks don't communicate while they train, and the vote is a single allreduce.

# %%
team = ranks.start(most)
team.push(steps=4 * sizes.steps)

# %%
# %%ranks
import numpy as np
import torch
from mpi4py import MPI

from workshop_lib.data import mnist
from workshop_lib.models import torch_cnn

comm, train, test = MPI.COMM_WORLD, mnist.load("train"), mnist.load("test")
model = torch_cnn.build(seed=comm.rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
for batch in np.random.default_rng(comm.rank).integers(len(train.images), size=(steps, 64)):
    optimizer.zero_grad()
    outputs = model(torch_cnn.normalize(torch.tensor(train.images[batch])))
    torch.nn.functional.cross_entropy(outputs, torch.tensor(train.labels[batch]).long()).backward()
    optimizer.step()

# %%
# %%ranks
with torch.no_grad():
    mine = model(torch_cnn.normalize(torch.tensor(test.images[:1000]))).softmax(1).numpy()
labels, mean = test.labels[:1000], comm.allreduce(mine) / comm.size
agree = comm.allreduce((mine.argmax(1) == mean.argmax(1)).astype(int)) == comm.size
print(f"one network: {np.mean(mine.argmax(1) == labels):.1%} right")
if comm.rank == 0:
    right = mean.argmax(1) == labels
    print(f"all {comm.size} together: {right.mean():.1%}; where they agree {right[agree].mean():.1%},", end=" ")
    print(f"and on the {(~agree).mean():.1%} where they don't {right[~agree].mean() if (~agree).any() else 1:.1%}")

# %% [markdown]
# Where the networks disagree, don't trust them. That's the whole idea, and in many sciences it's worth the price.
# But you pay
# for every network of the ensemble twice: once to train it, and again each time it goes through all of your data.
# At the scale of a supercomputer that means reading millions of
# files, and then the file system decides how long you wait ([09](09_feeding_the_ranks.ipynb)).
#
# ## Deeper: Amdahl and Gustafson agree
#
# Gustafson writes $s$ for the share of the time *on $N$ ranks* that's spent on serial work. On one rank, the same
# problem would take $s + N(1 - s)$ times as long, so
#
# $$S = N - (N - 1)\,s \quad \text{(Gustafson 1988)}.$$
#
# So of the time that one rank would need, serial work takes up $f = s / (s + N(1 - s))$. Put that into Amdahl's law, and
# Gustafson's comes out:

# %%
s = 0.05
for n in (2, 32, 1024):
    f = s / (s + n * (1 - s))
    print(f"N = {n:>4}: Gustafson {n - (n - 1) * s:7.1f}, Amdahl {1 / (f + (1 - f) / n):7.1f} with f = {f:.3%}")

# %% [markdown]
# The two laws differ in what stays the same as $N$ grows. In strong scaling it's the work, and therefore $f$. In weak scaling
# it's $s$, provided that the serial part takes the same time however large the problem is.
# (The table at the top would say $S = N$ then. It counts the serial
# part $N$ times, although one rank would do it only once.)
#
# ## Take it home
#
# [scripts/scaling_table.py](scripts/scaling_table.py) makes a table of speed-up and efficiency for any training script
# that prints its images per second
# after each epoch, as all the take-home [scripts](scripts) do. It needs nothing but Python. It goes through the numbers of
# ranks in turn, once per repeat, leaves out the first epoch, and prints the spread.
# Try it in a terminal, in the folder with the scripts:
#
# ```
# python scaling_table.py --ranks 1 2 4 -- torchrun --standalone --nproc-per-node {n} ddp.py --epochs 3
# ```
#
# ## What you can do now
#
# This is the end of the core path. What can you show for it? The next cell goes through your notebooks, runs the checks of
# everything you solved once more, and writes a *record*: your own code of each exercise, on how many ranks it ran, and what
# held. It reads the files, so save your notebooks first.

# %%
scripts.run("workshop", "assess", timeout_s=600)

# %% [markdown]
# Anyone can check the record, without a network: `.venv/bin/workshop verify progress/assessment.jsonl` runs the checks again
# on the code in it. It can't tell who wrote that code. And because the code is executed, only verify records of people you
# trust.
#
# ## Remember
#
# - Strong scaling: the same work, sooner. Weak scaling: more work in the same time. Say which, and what you kept the same.
# - Report the baseline, the spread, the threads and the binding; leave the first epoch out.
# - Never time two jobs on the same cores at once, and mark points with more ranks than cores.
# - A serial fraction that grows with the ranks means overhead, if the baseline is good. A negative one means that you should
#   check the baseline.
# - Time and accuracy belong in the same table.
#
# Next: [08b](08b_where_the_time_goes.ipynb) looks inside a step for the time you lost, and
# [08c](08c_forecasting.ipynb) predicts runs that nobody has done yet.
#
# **Sources.** G. Amdahl, *Validity of the Single Processor Approach to Achieving Large Scale Computing Capabilities* (AFIPS
# Spring Joint Computer Conference, 1967). J. Gustafson, *Reevaluating Amdahl's Law* (Communications of the ACM 31, 1988). A. Karp
# and H. Flatt, *Measuring Parallel Processor Performance* (Communications of the ACM 33, 1990). T. Hoefler and R. Belli,
# *Scientific Benchmarking of Parallel Computing Systems* (SC 2015), for what goes wrong in reports of scaling. S. Rajbhandari et
# al., *ZeRO* (arXiv:1910.02054), section 10.3, for a super-linear speed-up with a reason. ThetaGPU's times:
# github.com/argonne-lcf/sdl_ai_workshop, in 01_distributedDeepLearning. Theta's: the ALCF's hands-on of 2021 on Horovod.

# %%
ranks.stop()
