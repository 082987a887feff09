# %% [markdown]
# # Scaling curves
#
# **You will** train the same network on 1, 2 and more ranks and measure what the ranks bring, in both of the ways in which
# this is done; make the table of speed-up and efficiency yourself; and find out from a few measured points what keeps a
# training from scaling.
#
# **Time** about 30 minutes. **Needs** two cores; no GPU, no network. Notebook [02](02_synchronous_sgd.ipynb) first, where
# the training on several ranks is explained.

# %%
from statistics import mean, median

import numpy as np
from matplotlib.lines import Line2D

from workshop_lib import ranks
from workshop_lib.notebook import figures, plots, profile
from workshop_lib.notebook.exercises import scaling as check
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD
from workshop_lib.scaling import curves, records
from workshop_lib.scaling.sweep import sweep
from workshop_lib.training.cores import usable_cores
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
samples, most = sizes.sweep_samples or 60_000, sizes.sweep_ranks[-1]
print(f"ranks: {sizes.sweep_ranks}, on a machine with {usable_cores()} cores; {sizes.repeats} runs of each")

# %% [markdown]
# ## Two questions
#
# A *rank* is one of the processes that train a network together. What do $N$ of them bring?
#
# - **Strong scaling:** how much sooner is the *same* work done? Here: an *epoch*, one pass over the training images, with
#   the same number of images for any number of ranks.
# - **Weak scaling:** how much *more* work is done in the same time? Here: an epoch with $N$ times the images.
#
# With $t_N$ for the seconds of an epoch on $N$ ranks:
#
# | | ideal | speed-up | efficiency |
# |---|---|---|---|
# | strong | $t_N = t_1 / N$ | $S = t_1 / t_N$ | $S / N$ |
# | weak | $t_N = t_1$ | $N \, t_1 / t_N$ | $t_1 / t_N$ |
#
# The weak speed-up takes it that one rank would need $N \, t_1$ for $N$ times the images.
#
# In both, the *batch*, the samples of one step, is fixed for each rank, so the *global batch* of all ranks grows with $N$.
# Always say what was kept the same. Many papers on deep learning mean the work of one step instead of an epoch: to them, what
# we do here is weak scaling in both cases, and strong scaling is a fixed global batch.
#
# Commit to three predictions before anything is measured.

# %%
guess = predict(
    f"Strong: by what factor will {sizes.ranks} ranks be faster than one?",
    low=0.5,
    high=2 * sizes.ranks,
    unit="times",
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
# Each point is measured several times, because machines are never quite idle. The runs follow each other; two at once would
# share the cores on which they are measured. There are two *backends*: `mpi` averages the gradients with one `Allreduce` a step,
# `ddp` is PyTorch's own. Weak scaling is measured with `mpi` alone; its number of images a rank, `per_rank`, is such that for one
# number of ranks, `sizes.ranks`, the same runs serve both.

# %%
per_rank = samples // sizes.ranks


def options(n):
    """What to run on n ranks."""
    runs = [("mpi", samples), ("ddp", samples)]
    if n * per_rank != samples:
        runs.append(("mpi", n * per_rank))
    return [TrainOptions(backend=name, epochs=sizes.sweep_epochs, train_samples=size) for name, size in runs]


file = BUILD / "08_scaling_curves.jsonl"
file.unlink(missing_ok=True)
for record in sweep(ranks.start, sizes.sweep_ranks, options, sizes.repeats, sizes.timeout_s, show=False):
    records.write(file, record)

# %% [markdown]
# Every run left a *record* in a file: what ran, where, and what came out. Everything from here on uses these records.

# %%
measured = records.read(file)
strong, weak = [], []
for record in measured:
    what = record["what"]
    if what["train_samples"] == samples:
        strong.append(record)
    if what["backend"] == "mpi" and what["train_samples"] == what["world_size"] * per_rank:
        weak.append(record)
print(f"{len(measured)} runs: {len(strong)} for strong scaling, {len(weak)} for weak scaling")

# %% [markdown]
# ## Strong scaling
#
# For each number of ranks a list of runs, and for each run the seconds of its epochs:


# %%
def epoch_seconds(chosen, backend):
    seconds = {}
    for record in chosen:
        if record["what"]["backend"] == backend:
            run = [round(epoch["seconds"], 3) for epoch in record["epochs"]]
            seconds.setdefault(record["what"]["world_size"], []).append(run)
    return seconds


seconds = epoch_seconds(strong, "mpi")
seconds

# %% [markdown]
# The first epoch of a run also pays for starting up: memory, connections, on a GPU the choice of algorithms. Compare the first
# number of each run with the others. Here the difference may be lost in the noise; elsewhere, above all on GPUs, it can be
# large. In a long training that does not matter, and in a short measurement it does, so the first epoch is left out. Of the
# repeats we take the median: of three or more, one disturbed run cannot move it far. The fastest run would be the one in which
# chance helped most.
#
# ## Exercise 1: the table
#
# `seconds` is a dictionary as above: `{ranks: [run, …]}`, where a run is a list of the seconds of its epochs, and all runs have
# the same number of epochs, at least two. Return a dictionary `{ranks: (speed-up, efficiency)}` for strong scaling, with 1 rank
# in it, and efficiency as a fraction. What to take as the time on $N$ ranks: for each run, the mean of its epochs after the
# first; and of these means, one a run, the median.


# %%
def scaling_table(seconds):
    # <solution>
    typical_s = {n: median(mean(run[1:]) for run in runs) for n, runs in seconds.items()}
    return {n: (typical_s[1] / s, typical_s[1] / s / n) for n, s in typical_s.items()}
    # <stub>
    # # first one time for each number of ranks, with `mean` and `median`; then compare each with that of 1 rank
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.scaling_table(scaling_table)

# %%
try:
    for n, (speedup, efficiency) in scaling_table(seconds).items():
        print(f"N = {n}: speed-up {speedup:.2f}, efficiency {efficiency:.0%}")
except NotImplementedError:
    print("scaling_table is not written yet")

# %% [markdown]
# The library makes the same table from the records, and adds the spread between the slowest and the fastest run: without it,
# two points cannot be compared. The last three columns tell the test accuracy, the seconds to an accuracy of 99 % (a dash: not
# reached), and whether all ranks ended with the same weights. (It takes the median of speeds instead of times. For an odd number
# of runs that is the same run; for an even number, and a large spread, the results differ.)

# %%
curves.summary(strong)

# %%
points = curves.strong_scaling(curves.to_frame(strong)).set_index(["backend", "world_size"])


def show_result(guess, n):
    point = points.loc["mpi", n]
    return guess.compare(point["speedup"], spread=(point["speedup_min"], point["speedup_max"]))


show_result(guess, sizes.ranks)

# %%
show_result(guess_other, other)

# %%
plots.scaling_curve(strong)

# %% [markdown]
# Read the picture:
#
# - On the left is the throughput, on the right the efficiency. A point is the median of its runs, and its bar goes from the
#   slowest to the fastest.
# - The dotted grey line is perfect scaling. A speed-up above it, more than $N$ on $N$ ranks, nearly always means that the run on
#   one rank was handicapped, for instance by being bound to fewer cores. That is why threads and binding are noted at the top.
# - Hollow points are *oversubscribed*: more ranks than cores, which then take turns. They say nothing about a machine that has as
#   many cores.
# - Crosses show the first epochs. They are not part of the curve.
# - `mpi` and `ddp` compute the same gradients, but for rounding. What separates their curves is the communication, and what DDP
#   does around it.
#
# *Try it:* add `batch_size=256` to the `TrainOptions` and measure again. What does it do to the efficiency, and what to the
# accuracy in the table?
#
# ## What keeps it from scaling?
#
# Suppose that a fraction $f$ of the work is *serial*, it cannot be shared out, and the rest can be shared perfectly. Then the
# time on $N$ ranks is $f + (1 - f)/N$ of that on one, so
#
# $$S = \frac{1}{f + (1 - f)/N} \quad \text{(Amdahl 1967)}, \qquad S \le \frac{1}{f} \text{ for any number of ranks.}$$
#
# Gustafson (1988) objected that people with more processors solve larger problems. If $s$ is the share of the time *on $N$ ranks*
# that is spent on serial work, one rank would need $s + N(1 - s)$ times as long for that larger problem:
#
# $$S = N - (N - 1)\,s \quad \text{(Gustafson 1988)}.$$
#
# They do not contradict each other. Of the time that one rank would need, the serial work is the share $f = s / (s + N(1 - s))$;
# put that into Amdahl's law, and Gustafson's comes out. What differs is what stays the same as $N$ grows: $f$ if the work does,
# in strong scaling; $s$ in weak scaling, if the serial part takes the same time however large the problem. (Then $t_N = t_1$, and
# the table at the top would say $S = N$: it counts $N$ times the serial part, which one rank would have to do only once.)

# %%
fraction = 0.05
n = 2 ** np.arange(11)
laws = {
    "ideal": n,
    "Gustafson, weak scaling": n - (n - 1) * fraction,
    "Amdahl, strong scaling": 1 / (fraction + (1 - fraction) / n),
}
figure = figures.new_figure(
    "What a serial part allows",
    f"serial part {fraction:.1%}: of the work (Amdahl), of the time on N ranks (Gustafson)",
)
axes, handles = figure.subplots(), []
for number, (name, speedups) in enumerate(laws.items()):
    style = figures.Style.number(number)
    look = {
        "color": style.colour,
        "linestyle": style.line,
        "marker": style.marker,
        "linewidth": 2,
        "markersize": 7,
    }
    axes.loglog(n, speedups, base=2, **look)
    handles.append(Line2D([], [], **look, label=name))
axes.set(xlabel="ranks", ylabel="speed-up")
axes.xaxis.set_major_formatter("{x:.0f}")
axes.yaxis.set_major_formatter("{x:.0f}")
figures.draw_legend(figure, *[[handle] for handle in handles])
figure

# %% [markdown]
# *Try it:* other fractions. How small must it be for an efficiency of one half on 1,024 ranks, if the work is fixed?
#
# ## Exercise 2: the serial fraction of a measurement
#
# Karp and Flatt (1990) turned Amdahl's law round: from a *measured* speed-up $S$ on $N$ ranks compute the $f$ that would explain
# it. Do the same: return $f$ for `speedup` and `n`, where `n` is at least 2.


# %%
def serial_fraction(speedup, n):
    # <solution>
    return (1 / speedup - 1 / n) / (1 - 1 / n)
    # <stub>
    # # 1/S = f + (1 - f)/n, solved for f
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.serial_fraction(serial_fraction)

# %% [markdown]
# What is it good for? If a serial part were all that limits, $f$ would be the same for every $N$. If $f$ *grows* with $N$,
# something else grows too: communication, or waiting. Try it on measurements that others have published: seconds of training on
# MNIST on 1 to 32 GPUs of the machine ThetaGPU, with a fixed batch on each. Once with DDP, and once with *Horovod*, another
# library that averages gradients (there it is a whole run, with start-up and tests).

# %%
published_s = {
    "Horovod, 32 epochs": {1: 499.8, 2: 283.9, 4: 100.4, 8: 58.8, 16: 63.8, 32: 55.7},
    "DDP, one epoch": {1: 11.7, 4: 2.64, 8: 1.37, 16: 0.80, 32: 0.49},
}


def show_fractions(title, speedups):
    print(title)
    for n, speedup in speedups.items():
        try:
            found = f"{serial_fraction(speedup, n):6.1%}"
        except NotImplementedError:
            found = "not written yet"
        print(
            f"  {n:>2} ranks: speed-up {speedup:5.2f}, efficiency {speedup / n:4.0%}, serial fraction {found}"
        )


for title, times in published_s.items():
    show_fractions(title, {n: times[1] / s for n, s in times.items() if n > 1})

# %% [markdown]
# Where $f$ is *negative*, the speed-up is larger than the number of GPUs. Each GPU had the same batch, so no work was saved, and
# the run on one GPU must have been slower than it had to be; a process bound to fewer cores is a common reason. Every other
# number in the table is compared with that run, and looks too good.
#
# Horovod's *time* rises from 8 GPUs to 16. No serial part can do that: it is overhead, or chance, since no spread was published.
# (Eight GPUs are in one machine; with more, messages go through the network.)
#
# DDP's $f$ grows as well, but proves nothing: a baseline that is too slow takes something off every $f$, and most where $N$ is
# small. A constant $f$ then seems to grow.
#
# *Try it:* suppose that DDP needs 10.1 s on one GPU, not 11.7, and $f$ is between 1 and 2 % for every $N$.
#
# Now your own measurements. With a fixed batch a rank, a step is the same work on any number of ranks, and more ranks make fewer
# steps: hardly anything is serial. Here $f$ tells how much longer a step has become: if it takes $1 + x$ times as long as on one
# rank, then $f = x / (N - 1)$.

# %%
for backend in ("mpi", "ddp"):
    chosen = points.loc[backend]
    show_fractions(f"{backend}, measured here", dict(chosen.loc[chosen.index > 1, "speedup"]))
    above = [str(n) for n, over in chosen["oversubscribed"].items() if over]
    if above:
        print(f"  oversubscribed: {', '.join(above)}; there, waiting for a core is in the fraction")

# %% [markdown]
# The `mpi` backend also measures which share of its time it spends in `Allreduce`, with messages and with waiting for the
# slowest rank. Compare that with what is missing to an efficiency of 100 %. If more is missing, computing itself has become
# slower: ranks share memory and caches, too, and where they are oversubscribed, the cores.

# %%
share = curves.to_frame(strong).groupby(["backend", "world_size"])["communication_share"].median()
for n, part in share["mpi"].items():
    print(f"N = {n}: {part:.1%} of the time in Allreduce")

# %% [markdown]
# ## Weak scaling
#
# Now the runs in which every rank has the same number of images, however many ranks there are.

# %%
weak_points = curves.weak_scaling(curves.to_frame(weak)).set_index("world_size")
single_s, point = weak_points.loc[1, "epoch_s"], weak_points.loc[most]
guess_weak.compare(
    point["epoch_s"] / single_s, spread=(point["epoch_s_min"] / single_s, point["epoch_s_max"] / single_s)
)

# %%
plots.weak_scaling_curve(weak)

# %% [markdown]
# Perfect weak scaling is a flat line on the left, the dotted one. Where ranks no longer have a core each, the measured line has
# to bend upwards: the work has grown, and the machine has not.
#
# With a fixed batch a rank, a single step is the same here as in strong scaling, and costs the same; only the number of steps
# differs. So the efficiencies should agree with those of `mpi` above, within their spread. The hard case is a fixed *global*
# batch: each rank computes less and less in a step, for the same messages.
#
# *Try it:* measure that, and draw it.
#
# ```python
# def fixed_global_batch(n):
#     return [TrainOptions(batch_size=64 // n, epochs=sizes.sweep_epochs, train_samples=samples)]
#
# fixed = list(sweep(ranks.start, sizes.sweep_ranks, fixed_global_batch, show=False))
# plots.scaling_curve(fixed, same="global_batch")
# ```
#
# ## Accuracy is the other half
#
# Throughput is worth nothing if the network learns less. With a fixed batch a rank, more ranks make fewer steps in the same
# number of epochs, each from a larger global batch. In the figure a line is one backend on one number of ranks, and its points
# are the ends of epochs.

# %%
plots.accuracy_curve(strong)

# %% [markdown]
# What counts in the end is the time to a given accuracy, and it depends on both.
#
# ## Remember
#
# - Strong scaling: the same work, sooner. Weak scaling: more work in the same time. Say which, and what was kept the same.
# - Report the baseline, the spread, the threads and the binding; leave the first epoch out.
# - Never time two jobs on the same cores at once, and mark points with more ranks than cores.
# - A serial fraction below zero means a bad baseline. With a good one, a fraction that grows with the ranks means overhead.
# - A faster epoch is a means; the time to a given accuracy is the end.
#
# **Sources.** G. Amdahl, *Validity of the Single Processor Approach to Achieving Large Scale Computing Capabilities* (AFIPS
# Spring Joint Computer Conference, 1967). J. Gustafson, *Reevaluating Amdahl's Law* (Communications of the ACM 31, 1988). A. Karp
# and H. Flatt, *Measuring Parallel Processor Performance* (Communications of the ACM 33, 1990). The published times are from
# the ALCF's workshop material, github.com/argonne-lcf/sdl_ai_workshop, in 01_distributedDeepLearning. What goes wrong in reports
# of scaling: T. Hoefler and R. Belli, *Scientific Benchmarking of Parallel Computing Systems* (SC 2015). Batch size and training:
# C. Shallue et al., *Measuring the Effects of Data Parallelism on Neural Network Training* (arXiv:1811.03600).

# %%
ranks.stop()
