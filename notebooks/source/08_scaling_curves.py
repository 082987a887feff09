# %% [markdown]
# # Scaling curves
#
# **You will** train the same network on 1, 2 and more ranks and measure what the ranks bring, in both of the ways in which
# this is done; make the table of speed-up and efficiency yourself; find out from a few measured points what keeps a training
# from scaling; predict steps that were not measured; and forecast a training on up to 4,096 devices.
#
# **Time** about 60 minutes. **Needs** two cores; no GPU, no network. Notebook [02](02_synchronous_sgd.ipynb) first, where
# the training on several ranks is explained.

# %%
import math
import textwrap
from statistics import mean, median

import numpy as np
from matplotlib.lines import Line2D

from workshop_lib import ranks
from workshop_lib.exercises import scaling as check
from workshop_lib.notebook import figures, profile
from workshop_lib.notebook.calculators import forecaster
from workshop_lib.notebook.figures import costs
from workshop_lib.notebook.figures.accuracy import accuracy_curve
from workshop_lib.notebook.figures.scaling import scaling_curve, weak_scaling_curve
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD
from workshop_lib.scaling import catalogue, curves, fit, published, records
from workshop_lib.scaling.forecast import Settings, what_if_table
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
scaling_curve(strong)

# %% [markdown]
# Read the picture:
#
# - On the left is the throughput, on the right the efficiency. A point is the median of its runs, and its bar goes from the
#   slowest to the fastest.
# - The dotted grey line is perfect scaling. A speed-up above it, more than $N$ on $N$ ranks, nearly always means that the run on
#   one rank was handicapped, for instance by being bound to fewer cores. That is why threads and binding are noted at the top, and
#   notebook [08b](08b_where_the_time_goes.ipynb) makes such a speed-up on purpose.
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
weak_scaling_curve(weak)

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
# scaling_curve(fixed, same="global_batch")
# ```

# %% [markdown]
# ## Predict a step
#
# So far we have measured, and explained afterwards. A model that is worth something *predicts*: it is fitted to some
# measurements, and then says what others will give. A step of synchronous SGD has two parts:
#
# - **computing**, in which a rank works on its batch: $T_\text{compute}$;
# - **communication**, the allreduce of all gradients: $T_\text{comm}$.
#
# If the messages travel while the rank computes, the step takes at least the longer of the two. If it waits for them, it takes
# both. So, whatever a library does,
#
# $$\max(T_\text{compute}, T_\text{comm}) \;\le\; T_\text{step} \;\le\; T_\text{compute} + T_\text{comm}.$$
#
# We measure each part alone, fit a formula to each, and put the sum to the test on networks and batches that the fit has never
# seen.
#
# ### What an allreduce costs
#
# Four ways to build one from sends and receives are in `workshop_lib.comm.allreduce`, a few lines each. With $p$ ranks and $n$
# bytes:
#
# | | how | rounds | bytes that the busiest rank sends |
# |---|---|---|---|
# | naive | all arrays to rank 0, the sum back to each | $2(p-1)$ | $(p-1)\,n$ |
# | recursive doubling | swap the whole sum with rank $r$ ^ $2^k$ in step $k$ | $\log_2 p$ | $n \log_2 p$ |
# | ring | parts of $n/p$ go round, twice | $2(p-1)$ | $2\frac{p-1}{p}\,n$ |
# | Rabenseifner's | swap halves, quarters, …, then the same way back | $2\log_2 p$ | $2\frac{p-1}{p}\,n$ |
#
# (The second and the fourth are for powers of two; with other numbers, two rounds and an array more.) A round costs the latency
# $\alpha$, a byte $\beta$, as in notebook [01](01_mpi_basics.ipynb). So few rounds should be best for small arrays, and few bytes
# for large ones. On two ranks some of them come to the same; the differences grow with $p$.
#
# *gloo* is the library with which PyTorch communicates between CPUs, over sockets. It stands for any library that does not use the
# memory which ranks of one machine share.

# %%
guess_gloo = predict(
    f"An allreduce of 1 MiB on {sizes.ranks} ranks: how many times as long as MPI does gloo take?",
    low=0.2,
    high=20,
    unit="times",
)
guess_gloo

# %% [markdown]
# The benchmark does what the usual ones for MPI and for NCCL do: it checks each sum once, warms up, and then measures rounds of many
# calls, the slowest rank counting. The ways take turns, so that a slow moment of the machine touches all of them.

# %%
team = ranks.start(sizes.ranks)
rounds = max(5, sizes.repeats)
largest = 2**22 if sizes.name == "quick" else 2**26
message_sizes = [4**k for k in range(1, 14) if 4**k <= largest]
messages = fit.measure_communication(team, message_sizes, rounds, timeout_s=10 * sizes.timeout_s)


def measured_s(way, nbytes):
    """Median, fastest and slowest round of an allreduce."""
    row = next(row for row in messages if row["way"] == way and row["message_bytes"] == nbytes)
    return row["median_s"], row["min_s"], row["max_s"]


group = "nccl" if any(row["way"] == "nccl" for row in messages) else "gloo"
theirs, mpis = measured_s(group, 2**20), measured_s("MPI", 2**20)
guess_gloo.compare(theirs[0] / mpis[0], spread=(theirs[1] / mpis[2], theirs[2] / mpis[1]))

# %%
costs.allreduce_times(messages)

# %% [markdown]
# Read the picture:
#
# - On the left, each curve is flat at first, where the latency is all that counts, and in the end rises with the bytes.
# - On the right is the *bus bandwidth*: bytes a second, times $2(p-1)/p$. That factor is what the best algorithm has to send, so
#   this number can be compared between different $p$, and with the speed of the link. It is the number that NCCL's own tests report.
# - The latency of the hand-written ones holds Python: each of their sends and receives is a call of it. For large arrays that no
#   longer matters; what does is how often the data pass through memory.
# - A bend upwards at the right end comes where arrays no longer fit into the caches.
#
# ### Fit: latency and bandwidth
#
# A line through these points needs care. Times go from microseconds to tens of milliseconds; least squares of *seconds* would see
# the largest messages alone, and get any latency. So each error is taken relative to what was measured. The fit then also says
# how sure it is of each constant: the number after ±, its standard error, follows from how far the points scatter about the line.

# %%
fits = {way: fit.message_time(messages, way) for way in dict.fromkeys(row["way"] for row in messages)}
print(f"{'':>18}   latency (µs)    s a GB (1/bandwidth)")
for way, found in fits.items():
    print(f"{way:>18}   {found.text('latency_s', 1e6):<15} {found.text('s_per_byte', 1e9)}")

# %% [markdown]
# Where the ± is large, a straight line does not describe the curve well: the library changes its method with the size, and caches
# end. A model is good for the range in which it was fitted.
#
# One more constant, $\gamma$, is the time to sum a byte. With it, $\alpha$, $\beta$ and $\gamma$ of the hand-written allreduces
# should explain all of them at once, and for any number of ranks:

# %%
by_hand = fit.link(messages, ("naive", "recursive doubling", "ring", "rabenseifner"))
print(f"alpha {by_hand.text('latency_s', 1e6)} µs a round")
print(f"beta  {by_hand.text('s_per_byte', 1e9)} s a GB sent")
print(f"gamma {by_hand.text('reduce_s_per_byte', 1e9)} s a GB summed")
print(f"typical error of the fit: {np.median(np.abs(by_hand.relative_errors)):.0%}")

# %% [markdown]
# ### What computing costs
#
# Now networks. So that their size can be chosen, they have one hidden layer of any width here. A step's computing time should be
#
# $$T_\text{compute} = t_0 + t_1 B$$
#
# for a batch of $B$: $t_0$ for what is done once a step, such as the update of the weights, and $t_1$ for each sample. Both grow with
# the number of parameters $P$, in the simplest way: $t_0 + t_0' P$ and $t_1 + t_1' P$.
#
# Which computing time, though? One rank alone, or all ranks at once?

# %%
guess_busy = predict(
    "By what factor is a step of one rank slower while the other ranks compute, too?",
    low=0.8,
    high=2.5,
    unit="times",
)
guess_busy

# %%
some = [(64, 64), (256, 64), (1024, 64)]
alone = fit.measure_steps(team, some, timeout_s=sizes.timeout_s, alone=True)
steps = fit.measure_steps(team, timeout_s=5 * sizes.timeout_s)
together = {(row["width"], row["batch"]): row for row in steps}
slower = []
for row in alone:
    busy = together[row["width"], row["batch"]]
    slower.append(np.array(busy["compute_s"]) / np.median(row["compute_s"]))
    print(f"width {row['width']:>5}: {np.median(slower[-1]):.2f} times")
guess_busy.compare(np.median(slower), spread=(np.min(slower), np.max(slower)))

# %% [markdown]
# No message was sent in this, and yet it is not 1. Ranks of one machine share the memory and its bandwidth and the larger caches;
# many processors lower their clock when all cores work; and what a virtual machine calls two cores may be the two threads of a
# single one. Also, a step that ends with an allreduce ends with the *slowest* rank, and the slowest of several is
# slower than one is typically. So we fit what was measured with all ranks at work.
#
# ### Predicted and measured
#
# The fit sees the widths 64, 256 and 1,024 with the batches 16, 64 and 256, and of those only the computing time. It predicts whole
# steps: those of the same settings, and those of widths and batches that it has not seen. The allreduce blocks here, nothing
# overlaps, so the prediction is the sum.

# %%
tested = fit.held_out(steps, messages)
for name, scale, unit in (
    ("a_step_s", 1e6, "µs a step"),
    ("a_parameter_s", 1e9, "ns a step and parameter"),
    ("a_sample_s", 1e6, "µs a sample"),
    ("a_product_s", 1e12, "ps a sample and parameter"),
):
    print(f"{tested.compute.text(name, scale):>16} {unit}")

# %%
costs.predicted_beside_measured(tested.fitted, tested.others)

# %%
columns = {
    "compute_s": "computing",
    "allreduce_s": "allreduce",
    "predicted_s": "predicted",
    "measured_s": "measured",
}
shown = 1e3 * tested.others.set_index(["width", "batch"])[list(columns)].rename(columns=columns)
print(f"held out: error {tested.errors.median():.0%} in the median, {tested.errors.max():.0%} at worst")
shown.round(2).assign(error=[f"{error:+.0%}" for error in tested.others["error"]]).rename_axis(columns="ms")

# %% [markdown]
# On a machine that does nothing else, the held-out steps should come out within 10 % in the median and within 20 % at worst. The
# table shows where a step's time goes: for a wide network with a small batch, much of it into the allreduce; with a large batch,
# nearly all into computing. That ratio, and not the number of ranks alone, decides how well a training scales.
#
# ### Exercise 3: how large a batch?
#
# Nothing overlaps. A step computes for `t0_s + t1_s * batch` seconds, then it communicates for `latency_s + s_per_byte *
# message_bytes`. Return the smallest batch, a whole number of at least 1, with which communication is at most `share` of the
# step, a fraction such as 0.1.


# %%
def smallest_batch(share, message_bytes, t0_s, t1_s, latency_s, s_per_byte):
    # <solution>
    communication_s = latency_s + s_per_byte * message_bytes
    computing_s = communication_s * (1 - share) / share  # or longer
    return max(1, math.ceil((computing_s - t0_s) / t1_s))
    # <stub>
    # # share = communication / (communication + computing): how long must computing be?
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.smallest_batch(smallest_batch)

# %% [markdown]
# With the constants of your machine:

# %%
constants = tested.compute.constants
try:
    for width in (64, 256, 1024, 4096):
        parameters = 795 * width + 10
        t0_s = constants["a_step_s"] + constants["a_parameter_s"] * parameters
        t1_s = constants["a_sample_s"] + constants["a_product_s"] * parameters
        batch = smallest_batch(0.05, 4 * parameters, t0_s, t1_s, **tested.message.constants)
        print(f"width {width:>5}: communication is at most 5 % of a step from a batch of {batch} a rank on")
except NotImplementedError:
    print("smallest_batch is not written yet")

# %% [markdown]
# Gradients are as long as the network is wide, and a sample's arithmetic is too. So the batch that hides communication depends
# little on the network, and much on the machine: on how fast it computes, for each byte that it can send. A larger batch is the
# cheapest cure for slow communication, as long as the network still learns from it.
#
# *Try it:* predict something outside the range: `fit.measure_steps(team, [(4096, 8)])`, added to `steps`. Where does the model
# fail first, and why?

# %% [markdown]
# ## Accuracy is the other half
#
# Throughput is worth nothing if the network learns less. With a fixed batch a rank, more ranks make fewer steps in the same
# number of epochs, each from a larger global batch. In the figure a line is one backend on one number of ranks, and its points
# are the ends of epochs.

# %%
accuracy_curve(strong)

# %% [markdown]
# What counts in the end is the time to a given accuracy, and it depends on both.
#
# ## Forecast
#
# A model that predicts steps on this machine can be asked about another one. What it needs is a handful of numbers: parameters
# of the network; the speed of *one* device; latency and bandwidth of its links. For large machines they are published, and in
# `workshop_lib/scaling/presets`, each with its source. Nothing is fitted to a scaling curve.
#
# The libraries of today overlap: while backward still computes, the gradients that it has finished are already on their way, in
# $k$ messages (DDP calls them *buckets*, Horovod *fusion buffers*). If the network keeps up, only the last message is left when
# backward ends. If it does not, it is busy from the first message on. So a step ends at the later of
#
# $$T_\text{forward} + T_\text{backward} + \frac{T_\text{comm}}{k} \qquad\text{and}\qquad T_\text{forward} + \frac{T_\text{backward}}{k} + T_\text{comm},$$
#
# which lies between the two bounds from above. Backward does about two thirds of the work.
#
# Horovod's authors published how three networks scale on servers with four GPUs and 25 Gbit/s Ethernet each. With 512 GPUs,
# Inception V3 (24 million parameters) and ResNet-101 (45 million) have an efficiency of 90 %. VGG-16 has 138 million.

# %%
guess_vgg = predict("VGG-16 on 512 GPUs: what efficiency was measured?", low=0, high=100, unit="%")
guess_vgg

# %%
beside = published.beside_forecast()
vgg = beside[(beside["what"] == "Horovod, vgg-16") & (beside["devices"] == 512)].iloc[0]
guess_vgg.compare(100 * vgg["published"])


# %%
def show_beside(*names):
    chosen = beside[beside["what"].isin(names)].set_index(["what", "devices"])
    shares = ["published", "forecast", "no_overlap", "full_overlap"]
    return chosen[shares].map("{:.0%}".format).rename(columns=lambda name: name.replace("_", " "))


show_beside("Horovod, inception-v3", "Horovod, resnet-101", "Horovod, vgg-16", "Goyal et al., ResNet-50")

# %% [markdown]
# Sizes of networks, the speed of one GPU and that of the links are enough to say which network will scale and which will not.
# VGG-16 sends six times the bytes of Inception V3, nine tenths of them for its last three layers, which compute next to nothing.
#
# It is not perfect. Goyal et al. went from one server with 8 GPUs to 32 servers, and lost 10 %. The forecast says that all
# messages can be hidden, unless the latency is twice what it assumes. The paper does not say which of that, of GPUs that wait for the
# slowest, or of other load on the network it was: a forecast tells what the *hardware* allows, and what is missing is worth looking for.
#
# Now the measurements that are *better* than perfect, and others of their kind. What would you look for in each?

# %%
show_beside("ThetaGPU, MNIST, DDP", "ThetaGPU, MNIST, Horovod, 32 epochs", "Polaris, MNIST, Keras", "Polaris, ResNet-34")

# %%
for entry in published.EVERYTHING:
    if entry.account:
        print(textwrap.fill(f"{entry.what}: {entry.account}", 110), end="\n\n")

# %% [markdown]
# No forecast is above 100 %, whatever the numbers: computing takes the same time on each device, and communication only adds to it. So
# where a measurement is above, the baseline is wrong. And where it is far below while messages are short, look at what is
# *not* computing or messages: start-up, tests, input.
#
# ### Your machine, and larger ones
#
# Below, `laptop` is this machine: the messages as measured above, and the speed of one rank of `mpi`. It is forecast as if you had
# 4,096 of it, with links as fast as those between two ranks. The other machines have the numbers of their data sheets.
#
# - *Speed* is what we called efficiency so far, and the band goes from no overlap to full overlap.
# - *Learning* is what a larger batch costs. The samples to a given accuracy are $E_{\min}\,(1 + B/B_\text{crit})$ for a
#   global batch $B$, in steps of $B$ (McCandlish et al. 2018). At the *critical batch* $B_\text{crit}$ that is twice what a tiny batch needs. Far
#   above it, twice the workers save hardly a step: they stop helping learning, however well the training scales.
# - *Both* together is what a device really contributes.
#
# The rule is a rough one: the critical batch grows during training and depends on everything else. Take it for an order of magnitude.

# %%
ping = fits["ping-pong"]
cnn = catalogue.model("workshop-cnn")
laptop = catalogue.laptop(ping["latency_s"], ping["s_per_byte"], {})
laptop = laptop.with_speed(cnn, points.loc[("mpi", 1), "samples_per_s"])
forecaster(laptop)

# %% [markdown]
# *Try it:* ResNet-50 with DDP on `horovod-p100` and on `h100`. Where does communication take over, where does learning end, and which
# comes first? Then GPT-2 on `h100`: why does a network with five times the parameters scale *better*?
#
# What would help, if it is communication? One thing at a time, for VGG-16 on those 512 GPUs:

# %%
vgg_16, servers = catalogue.model("vgg-16"), catalogue.machine("horovod-p100")
what_if_table(vgg_16, servers, Settings("horovod", 64), 512)

# %% [markdown]
# A larger batch makes each message worth more computing, so it is the first thing that everyone tries, until learning says
# no. Fewer bytes and a faster network do the same from the other side. Fusion matters where latency does: with a message for each
# tensor, 32 of them go around a ring of 512. And with a single message there is nothing left to overlap.
#
# On a terminal, `workshop predict vgg-16 horovod-p100 --backend horovod --batch-size 64` prints all of this.
#
# ## Remember
#
# - Strong scaling: the same work, sooner. Weak scaling: more work in the same time. Say which, and what was kept the same.
# - Report the baseline, the spread, the threads and the binding; leave the first epoch out.
# - Never time two jobs on the same cores at once, and mark points with more ranks than cores.
# - A serial fraction below zero means a bad baseline. With a good one, a fraction that grows with the ranks means overhead.
# - A step takes between the longer of computing and communication, and their sum. Measure both, with all ranks at work, and fit.
# - A prediction counts when it is made for what the fit has not seen.
# - Sizes and speeds from data sheets say what hardware allows. What a measurement misses of that is worth looking for; what
#   it has above that is a mistake.
# - Above the critical batch more workers hardly help learning, however well they scale.
# - A faster epoch is a means; the time to a given accuracy is the end.
#
# **Sources.** G. Amdahl, *Validity of the Single Processor Approach to Achieving Large Scale Computing Capabilities* (AFIPS
# Spring Joint Computer Conference, 1967). J. Gustafson, *Reevaluating Amdahl's Law* (Communications of the ACM 31, 1988). A. Karp
# and H. Flatt, *Measuring Parallel Processor Performance* (Communications of the ACM 33, 1990). The published times are from
# the ALCF's workshop material, github.com/argonne-lcf/sdl_ai_workshop, in 01_distributedDeepLearning. What goes wrong in reports
# of scaling: T. Hoefler and R. Belli, *Scientific Benchmarking of Parallel Computing Systems* (SC 2015). Batch size and training:
# C. Shallue et al., *Measuring the Effects of Data Parallelism on Neural Network Training* (arXiv:1811.03600). Latency and
# bandwidth as a model: R. Hockney, *The communication challenge for MPP* (Parallel Computing 20, 1994). The allreduces: R. Thakur,
# R. Rabenseifner and W. Gropp, *Optimization of collective communication operations in MPICH* (International Journal of High
# Performance Computing Applications 19, 2005); P. Patarasuk and X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of
# workstations* (Journal of Parallel and Distributed Computing 69, 2009). Bus bandwidth: github.com/NVIDIA/nccl-tests,
# doc/PERFORMANCE.md. Overlap in DDP: S. Li et al., *PyTorch Distributed* (arXiv:2006.15704). Published scaling: A. Sergeev and
# M. Del Balso, *Horovod* (arXiv:1802.05799); P. Goyal et al., *Accurate, Large Minibatch SGD* (arXiv:1706.02677). The critical batch:
# S. McCandlish et al., *An Empirical Model of Large-Batch Training* (arXiv:1812.06162). Machines and networks: the sources in
# workshop_lib/scaling/presets.

# %%
ranks.stop()
