# %% [markdown] track="measuring"
# # Forecasting
#
# You've asked for 512 GPUs. Before you get them, someone will ask what your training will do with them, and "we'll see" isn't an
# answer. A few measurements on the machine you have, and a few numbers from data sheets, are enough for a forecast.
# But how far can you trust it? You only know once it has predicted something it hadn't seen.
#
# **You will** measure what messages and computing cost, fit a model, and test it on steps that it has never seen. Then you'll
# write the forecast for large machines yourself, check it against tables that others have published, and learn
# how wide its error
# bars have to be.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do
# [08_scaling_curves](08_scaling_curves.ipynb) first.

# %%
import contextlib
import math
import textwrap

import numpy as np
import pandas as pd

from workshop_lib import ranks
from workshop_lib.lessons.forecasting import catalogue, figures, fit, published
from workshop_lib.lessons.forecasting import judge as check
from workshop_lib.lessons.forecasting.calculator import forecaster
from workshop_lib.lessons.forecasting.cost_model import allreduce_s, slowest_of
from workshop_lib.lessons.forecasting.figures import beside_published
from workshop_lib.lessons.forecasting.forecast import Lateness, Settings
from workshop_lib.lessons.forecasting.report import what_if_table
from workshop_lib.notebook import profile
from workshop_lib.notebook.prediction import predict
from workshop_lib.training import load
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## A step has two parts
#
# A step of synchronous SGD is **computing**, in which a rank works on its own batch, and **communication**, the allreduce of all
# gradients. If messages travel while the rank computes, the step can be as short as the longer of the two. If it waits for
# them, the step takes as long as both together:
#
# $$\max(T_\text{compute}, T_\text{comm}) \;\le\; T_\text{step} \;\le\; T_\text{compute} + T_\text{comm}.$$
#
# That's the first model of every scaling curve. It assumes that neither part slows the other down and that no rank is late.
# Both assumptions will come back to haunt us below.
#
# So measure each part alone, fit a formula to each, and put the sum to the test on networks and batches that the fit has never
# seen.
#
# ## What an allreduce costs
#
# As in notebook [01](01_mpi_basics.ipynb), a message of $n$ bytes takes about $\alpha + n\beta$ seconds: a latency, plus the
# bytes divided by the bandwidth. Does an allreduce behave like that, too?
# The next cell runs MPI's allreduce, the one from *gloo* (PyTorch's
# library for messages between CPUs), and four that we wrote by hand from sends and receives.
# It checks each sum, warms up, and times rounds of many calls. The
# methods take turns, so a slow moment of the machine affects all of them.

# %%
guess_gloo = predict(
    f"By what factor is gloo slower than MPI for an allreduce of 1 MiB on {sizes.ranks} ranks?",
    low=0.2,
    high=20,
    unit="times",
)
guess_gloo

# %%
largest = 2**22 if sizes.name == "quick" else 2**26
message_sizes = [4**k for k in range(1, 14) if 4**k <= largest]
other_programs = load.Meter()
messages = fit.measure_communication(team, message_sizes, max(5, sizes.repeats), timeout_s=10 * sizes.timeout_s)
other_programs.report(sizes.ranks)


def measured_s(way, nbytes):
    """Median, fastest and slowest round of an allreduce."""
    row = next(row for row in messages if row["way"] == way and row["message_bytes"] == nbytes)
    return row["median_s"], row["min_s"], row["max_s"]


group = "nccl" if any(row["way"] == "nccl" for row in messages) else "gloo"
theirs, mpis = measured_s(group, 2**20), measured_s("MPI", 2**20)
guess_gloo.compare(theirs[0] / mpis[0], spread=(theirs[1] / mpis[2], theirs[2] / mpis[1]))

# %%
figures.allreduce_times(messages)

# %% [markdown]
# How to read it:
#
# - On the left, each curve starts flat, where only the latency counts, and then rises with the bytes. So yes, an allreduce
#   behaves like a message.
# - On the right is the *bus bandwidth*: bytes per second times $2(p-1)/p$ for $p$ ranks. As long as only ranks add, the busiest
#   one has to send at least $2(p-1)/p$ times the array, so you can compare this number between different $p$, and with the speed
#   of the link. NCCL's own tests report it. (Where a switch adds, as with NVLink SHARP, it can be higher than the link's speed:
#   480 GB/s on links of 450.)
# - If a curve bends at the right end, the arrays no longer fit into the caches.
#
# Now fit the line. That needs care: the times span four orders of magnitude. A plain least-squares fit would be dominated by the
# largest messages and could return almost any latency, so we take each error relative to the measured time. The number after
# ± is the standard error, which follows from how far the points scatter around the line.

# %%
fits = {way: fit.message_time(messages, way) for way in dict.fromkeys(row["way"] for row in messages)}
rows = {way: [found.text("latency_s", 1e6), found.text("s_per_byte", 1e9)] for way, found in fits.items()}
pd.DataFrame.from_dict(rows, orient="index", columns=["latency, µs", "s per GB"])

# %% [markdown]
# Where the ± is large, a straight line doesn't describe the curve. The library may switch to a different method at some size,
# or the arrays may outgrow a cache.
# A model is only good for the range in which you fitted it.
#
# ## What computing costs
#
# Next come the neural networks. We want to choose their size freely, so here they have a single hidden layer of any width.
# A step's computing time should be
#
# $$T_\text{compute} = t_0 + t_1 B$$
#
# for a batch of $B$. Here $t_0$ is what every step costs once, such as updating the weights, and $t_1$ is the cost of each
# sample. Both grow with
# the number of parameters $P$: $t_0 = a_0 + b_0 P$ and $t_1 = a_1 + b_1 P$.
#
# But which computing time do we mean? What a rank needs when it's alone, or what it needs while all of them compute?

# %%
guess_busy = predict(
    "By what factor is a step of one rank slower while the other ranks compute, too?", low=0.8, high=2.5, unit="times"
)
guess_busy

# %%
other_programs = load.Meter()
rounds, limit_s = sizes.repeats, 5 * sizes.timeout_s
alone = fit.measure_steps(team, [(64, 64), (256, 64), (1024, 64)], rounds, limit_s, alone=True)
steps = fit.measure_steps(team, repeats=rounds, timeout_s=limit_s)
other_programs.report(sizes.ranks)
together = {(row["width"], row["batch"]): row for row in steps}
slower = []
for row in alone:
    busy = together[row["width"], row["batch"]]
    slower.append(np.array(busy["compute_s"]) / np.median(row["compute_s"]))
    print(f"width {row['width']:>5}: {np.median(slower[-1]):.2f} times")
guess_busy.compare(np.median(slower), spread=(np.min(slower), np.max(slower)))

# %% [markdown]
# The ranks sent no messages here, and still the factor may be above 1. There are three reasons.
# Ranks on one machine share memory, its bandwidth and the
# larger caches; many processors lower their clock when all cores work; and what a virtual machine calls two cores may be the two
# threads of a single one. Also, a step that ends with an allreduce ends with the *slowest* rank, and the slowest of several
# is slower than a typical one. So we fit the times that we measured with all ranks at work.
#
# ## Predicted and measured
#
# The fit sees the widths 64, 256 and 1,024 with the batches 16, 64 and 256, and only their computing time. Then it
# predicts whole steps, for the same settings and for widths and batches it hasn't seen.
# The allreduce blocks here and nothing overlaps,
# so the prediction is the sum.

# %%
tested = fit.held_out(steps, messages)
figures.predicted_beside_measured(tested.fitted, tested.others)

# %%
columns = {"compute_s": "computing", "allreduce_s": "allreduce", "predicted_s": "predicted", "measured_s": "measured"}
shown = 1e3 * tested.others.set_index(["width", "batch"])[list(columns)].rename(columns=columns)
print(f"held out: error {tested.errors.median():.0%} in the median, {tested.errors.max():.0%} at worst")
other_programs.report(sizes.ranks)
shown.round(2).assign(error=[f"{error:+.0%}" for error in tested.others["error"]]).rename_axis(columns="ms")

# %% [markdown]
# On a machine that does nothing else, expect errors of about 10 % in the median and 20 % at worst.
# If yours is worse, look at the last line
# above the table before you blame the model.
#
# The table also shows where a step's time goes. A wide network with a small batch spends much of it in the allreduce; with a
# large batch, nearly all of it is computing.
# This ratio, and not the number of ranks alone, decides how well the training scales.
#
# ### Exercise 1 (normal): how large a batch?
#
# This is the question behind most tuning: how large must the batch per rank be before communication stops hurting? You'll answer it
# for your own machine. Nothing overlaps here: a step computes for
# `t0_s + t1_s * batch` seconds and then communicates for `latency_s +
# s_per_byte * message_bytes`.
#
# <details><summary>Hint 1</summary>
#
# The share is communication / (communication + computing). If communication is 10 % of the step, how many times as long is
# computing?
#
# </details><details><summary>Hint 2</summary>
#
# Computing has to take at least `communication_s * (1 - share) / share` seconds. `t0_s` of them pass even without any samples,
# and every sample adds `t1_s`. Round up, and don't go below a batch of 1.
#
# </details><details><summary>Solution</summary>
#
# {solution of smallest_batch}
#
# </details>


# %%
def smallest_batch(share, message_bytes, t0_s, t1_s, latency_s, s_per_byte):
    """The smallest batch, a whole number and at least 1, with which communication is at most `share` of the step.

    share: a fraction, such as 0.1.
    """
    # <solution>
    communication_s = latency_s + s_per_byte * message_bytes
    computing_s = communication_s * (1 - share) / share  # or longer
    return max(1, math.ceil((computing_s - t0_s) / t1_s))
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.smallest_batch(smallest_batch)

# %% [markdown]
# Now try it with the constants of your machine:

# %%
constants = tested.compute.constants
with contextlib.suppress(NotImplementedError):  # while the exercise is open
    for width in (64, 256, 1024, 4096):
        parameters = 795 * width + 10
        t0_s = constants["a_step_s"] + constants["a_parameter_s"] * parameters
        t1_s = constants["a_sample_s"] + constants["a_product_s"] * parameters
        batch = smallest_batch(0.05, 4 * parameters, t0_s, t1_s, **tested.message.constants)
        print(f"width {width:>5}: with a batch of at least {batch} per rank, communication is at most 5 % of a step")

# %% [markdown]
# Gradients grow with the network, but so does the arithmetic of each sample. So how large a batch you need to hide
# communication depends little on the neural network. What counts is how much the machine can compute in the time it takes to
# send a byte. A larger batch is
# the cheapest cure for slow communication, as long as the network still learns from it.
#
# *Break it:* predict something outside the range. Add `fit.measure_steps(team, [(4096, 8)])` to `steps`. Where does the model
# fail first, and why?
#
# ## Forecast a larger machine
#
# Now look at a machine that you don't have. You need a handful of numbers: how many parameters the network has, how fast *one*
# device is, and the latency and bandwidth of the links.
# For large machines they're published, and `workshop_lib/lessons/forecasting/presets` has some, each
# with its source.
#
# Libraries overlap the two parts: while backward is still computing, the gradients it has finished are already on their way,
# in $k$ messages of the
# same size. (DDP calls them *buckets*, Horovod *fusion buffers*.) Message $j$ is ready after $j/k$ of backward, and messages go one
# after the other. When does the last one arrive?
#
# ### Exercise 2 (normal): the step of a library that overlaps
#
# With this function you'll forecast how fast a model trains on 512 GPUs.
# Messages travel over the network between the devices. Either this
# network keeps up with backward, or it falls behind and is busy from the first message until the last. Work out when the step
# would end in either case. It really ends at the later of the two.
#
# <details><summary>Hint 1: the network keeps up</summary>
#
# Then only the last message is left when backward ends. How long does that step take?
#
# </details><details><summary>Hint 2: the network is busy from the first message on</summary>
#
# The network starts when the first message is ready,
# after forward and a $k$-th of backward, and then has to send all $k$ of them.
#
# </details><details><summary>Solution</summary>
#
# {solution of overlapped_step}
#
# </details>


# %%
def overlapped_step(forward_s, backward_s, message_s, messages):
    """Seconds of a step with this many equal messages of `message_s` each, sent as soon as backward has made them."""
    # <solution>
    keeps_up = forward_s + backward_s + message_s
    busy = forward_s + backward_s / messages + messages * message_s
    return max(keeps_up, busy)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.overlapped_step(overlapped_step)

# %% [markdown]
# Horovod's authors published how three networks scale on servers with four GPUs and 25 Gbit/s Ethernet each. On 512 GPUs,
# Inception V3 (24 million parameters) and ResNet-101 (45 million) reach an efficiency of 90 %. VGG-16 has 138 million.

# %%
guess_vgg = predict("VGG-16 on 512 GPUs: what efficiency was measured?", low=0, high=100, unit="%")
guess_vgg

# %%
machine = catalogue.machine("horovod-p100")
for name in ("inception-v3", "resnet-101", "vgg-16"):
    model = catalogue.model(name)
    computing_s = machine.compute_of(model).step_s(64)  # published: one GPU, a batch of 64
    k = math.ceil(model.gradient_bytes / 2**26)  # fusion buffers of 64 MiB
    message_s = machine.allreduce_s(512, model.gradient_bytes / k)
    with contextlib.suppress(NotImplementedError):
        step_s = overlapped_step(computing_s / 3, computing_s * 2 / 3, message_s, k)  # backward: about two thirds
        print(
            f"{name:>12}: computing {computing_s:.2f} s, {k} messages of {message_s:.2f} s, efficiency {computing_s / step_s:.0%}"
        )

# %%
horovods = {entry.what: entry.efficiency for entry in published.EVERYTHING if entry.table == "Horovod"}
guess_vgg.compare(100 * horovods["Horovod, vgg-16"][512])

# %% [markdown]
# The sizes of the models, the speed of one GPU and the speed of the links are enough to tell which model will scale and which
# won't. VGG-16
# sends six times the bytes of Inception V3, nine tenths of them for its last three layers, which compute next to nothing.
#
# ## How far off is it elsewhere?
#
# Three networks on one machine prove little, especially if whoever built the model knew the answer. So check it against
# tables that other people have published:
# Goyal's 256 GPUs; NVIDIA's own ResNet-50 on eight A100 and V100, with PyTorch and with MXNet; six
# frameworks on four servers with eight V100 each, which DLPerf compared; VGG-16 on one of the first DGX-1. Take the model as you've
# written it, with devices that are never late:

# %%
punctual = Lateness(typical=0, at_worst=0, slower_messages=1)
before = published.errors(published.beside_forecast(lateness=punctual))
before.loc[[*published.FITTED, *published.HELD_OUT], ["points", "too_high", "mean_error", "largest_error"]]

# %% [markdown]
# The errors are in percentage points. Look at `too_high`: when the forecast is wrong, it's nearly always too *optimistic*.
# That's
# no accident. Everything the model leaves out costs time. Which of these would you add first: devices that wait for the slowest one, images
# that aren't ready in time, cores that the collective takes from computing, or a fixed cost per step, which hurts the fastest
# devices most?
#
# We tried them in turn, and judged each one by tables that the fit hadn't seen.
# For the input and for the collective's cores, the best
# fit was zero. A fixed cost brought the forecast closer to the tables it was fitted to, but further from the held-out ones.
# Only one idea survived: the
# **straggler** of notebook
# [08b](08b_where_the_time_goes.ipynb). If the time of a step varies from device to device like a normal distribution with the
# standard deviation $\sigma$, the slowest of $n$ is about $\sigma \sqrt{2 \ln n}$ late. That's a single constant for all
# machines:

# %%
lateness = published.fit_lateness(published.FITTED)
for n in (2, 8, 64, 512, 4096):
    late = lateness.typical * slowest_of(n)
    print(f"{n:>5} devices: the slowest is {late:.1%} late, so at best an efficiency of {1 / (1 + late):.0%}")

# %% [markdown]
# We fitted it to DLPerf and Horovod alone. All other tables are *held out*. Does the constant help there, too?

# %%
beside = published.beside_forecast(lateness=lateness)
fitted, held_out = (beside[beside["table"].isin(tables)] for tables in (published.FITTED, published.HELD_OUT))
published.errors(pd.concat([fitted, held_out]))

# %%
beside_published(fitted, held_out)

# %% [markdown]
# Three of the four held-out tables get better, and one gets worse, because NVIDIA's MXNet loses next to nothing.
# Compare two of NVIDIA's
# rows, both for ResNet-50 in mixed precision with the same batch, on eight A100 in one server:

# %%
same = [f"NVIDIA {software}, 8 A100, mixed precision" for software in ("PyTorch", "MXNet")]
of_these = beside[beside["what"].isin(same) & (beside["devices"] == 8)].set_index("what")
of_these[["published", "forecast", "low", "high"]].map("{:.0%}".format)

# %% [markdown]
# *Same GPUs, same links.* No model of the hardware can predict both, because the difference is in the software, most likely in what
# prepares the images. (And to be strict: the constant has never seen the held-out tables, but they did help us choose between the four
# terms. The next table you find will be a fairer judge.)
#
# So don't print a number without its **range**. Here the top is perfect overlap with nobody late. At the bottom nothing overlaps, messages
# take three times as long as the data sheets say, and the slowest device is later than usual. We set how much later so that
# nine out of ten *fitted* points fall inside the range.
# How many of the held-out points above do? And look at the length of the bars. Where computing dominates, the range is
# ten to thirty points wide.
# Where messages dominate, it's half the scale or more, because well tuned and badly tuned runs are worlds
# apart. Then you should measure before you ask for 512 GPUs.
# BERT with one network port per server shows the bad end: on several servers, no framework got
# near its forecast.
#
# *Beat it:* give a copy of `forecast._point` a fixed cost of some milliseconds per step on more than one device, and choose both
# constants for the fitted tables. The forecast gets closer to those. What happens to the held-out tables?
#
# ## Your machine, and larger ones
#
# Below, `laptop` is this machine, as if you had 4,096 of them. It sends messages as fast as you measured above, and computes
# as fast as one rank of `mpi`, which the cell measures. For the other machines we use data sheets and published measurements.
#
# - *Speed* is the efficiency, and the band is its range as above.
# - *Learning* is what a larger batch costs. Reaching a given accuracy takes about $E_{\min}\,(1 + B/B_\text{crit})$ samples
#   with a global batch $B$ (McCandlish et al. 2018).
#   At the *critical batch* $B_\text{crit}$ that's twice what a tiny batch needs. Far
#   above it, doubling the workers saves almost no steps: the extra workers no longer help you learn, no matter how well
#   the training scales.
# - *Both* together is what a device really contributes.
#
# Learning is fitted, too. For ResNet-50 we used the epochs that MLPerf's participants needed at ten batch sizes from 1,632 to
# 67,840, with LARS tuned for each. For the workshop's network we used the steps that notebook
# [07b](07b_gradient_noise.ipynb) measures. The other networks have
# no such line, because nobody has published enough batch sizes, and a rule of thumb plus one point is not a measurement.

# %%
ping, cnn = fits["ping-pong"], catalogue.model("workshop-cnn")
options = TrainOptions(backend="mpi", epochs=2, train_samples=sizes.sweep_samples)
alone = ranks.start(1).train(options, timeout=sizes.timeout_s, show=False)
laptop = catalogue.laptop(ping["latency_s"], max(ping["s_per_byte"], 1e-12), {})  # on a busy machine, the fit may say 0
laptop = laptop.with_speed(cnn, alone["epochs"][-1]["samples_per_s"])
forecaster(laptop)

# %% [markdown]
# (If *samples/s each* is empty, the gray number is what the machine's file gives for one device. Type your own instead if you've
# measured it.)
#
# *Try it:* ResNet-50 with DDP on *Horovod's P100 servers* and on *DGX H100*. Where does communication take over, where does learning end, and which
# comes first? Then set the batch to 8 and compare ResNet-50 with GPT-2 on *DGX H100*. Why does a network with five times the
# parameters scale *better*?
#
# In a terminal, `workshop predict vgg-16 horovod-p100 --backend horovod --batch-size 64` prints all of this.
#
# ## Deeper: where the allreduce's time comes from
#
# In `workshop_lib.lessons.forecasting.allreduce` you'll find four ways to build an allreduce from sends and receives, in a few lines each.
# With $p$ ranks and
# $n$ bytes:
#
# | | how | rounds | bytes that the busiest rank sends |
# |---|---|---|---|
# | naive | all arrays to rank 0, the sum back to each | $2(p-1)$ | $(p-1)\,n$ |
# | recursive doubling | swap the whole sum with rank $r \oplus 2^k$ (XOR) in step $k$ | $\log_2 p$ | $n \log_2 p$ |
# | ring | parts of $n/p$ bytes go around the ring, twice | $2(p-1)$ | $2\frac{p-1}{p}\,n$ |
# | Rabenseifner's | swap halves, quarters, …, then the same way back | $2\log_2 p$ | $2\frac{p-1}{p}\,n$ |
#
# Recursive doubling and Rabenseifner's method need a power of two. With any other number of ranks, they cost two more rounds
# and one more array. For small arrays the methods with few rounds should win, and for large ones those that send few bytes.
# On two ranks some of the four coincide, and the differences grow with $p$.
# (The latency
# of the hand-written ones includes Python, because each of their sends and receives is a Python call.)
#
# We need one more constant, $\gamma$, the time to sum a byte. Together,
# $\alpha$, $\beta$ and $\gamma$ should explain all of the
# hand-written allreduces at once, and for any number of ranks:

# %%
by_hand = fit.link(messages, ("naive", "recursive doubling", "ring", "rabenseifner"))
print(f"alpha {by_hand.text('latency_s', 1e6)} µs per round")
print(f"beta  {by_hand.text('s_per_byte', 1e9)} s per GB sent")
print(f"gamma {by_hand.text('reduce_s_per_byte', 1e9)} s per GB summed")
print(f"typical error of the fit: {np.median(np.abs(by_hand.relative_errors)):.0%}")

# %% [markdown]
# ## Deeper: better than perfect, and far worse
#
# Some published measurements are *better* than perfect, and some are far below anything that messages could explain. What would you
# look for in each?

# %%
names = ["ThetaGPU, MNIST, DDP", "ThetaGPU, MNIST, Horovod, 32 epochs", "Polaris, MNIST, Keras", "Polaris, ResNet-34"]
chosen = beside[beside["what"].isin(names)].set_index(["what", "devices"])
chosen[["published", "forecast", "low", "high"]].map("{:.0%}".format)

# %%
for entry in published.EVERYTHING:
    if entry.account and (entry.what in names or entry.table in published.HELD_OUT):
        print(textwrap.fill(f"{entry.what}: {entry.account}", 80), end="\n\n")

# %% [markdown]
# This forecast never exceeds 100 %, because each device computes for at least as long as one alone. So where a measurement is
# above 100 %, either the baseline was slowed down, or something that the model leaves out got better with more devices: memory
# per device that frees up and allows a larger batch, as in ZeRO's paper, or data that now fits into caches. And where it's far
# below although messages are short, look at what is *neither* computing nor messages: start-up, tests, input.
#
# ## Deeper: two thousand nodes, and twenty-seven thousand GPUs
#
# Slides from 2018 compare
# Cray's plugin for machine learning with Horovod on up to 2,048 nodes of Theta, half of that machine. All we
# have is the caption, not the curve. But the cost model can say where the two should part, because they differ in one thing. You
# tell Cray's plugin the size of the model at the start, and hand it all gradients in one call between backward and the update. Horovod gets
# gradients one by one, in an order that may differ from rank to rank, so every rank first sends rank 0 a small message that
# says which ones it has ready.
# (Notebook [03](03_horovod_pytorch.ipynb) has a trace from 32 ranks on such processors, where 97 % of all allreduces carried 8
# bytes.) What does asking cost, compared with the sum itself?

# %%
theta, gradient_bytes = catalogue.machine("theta-knl"), catalogue.model("resnet-50").gradient_bytes
alpha, beta = theta.between.latency_s, theta.between.s_per_byte
for nodes in (32, 256, 2048):
    ring, halving = (1e3 * allreduce_s(how, nodes, gradient_bytes, alpha, beta) for how in ("ring", "rabenseifner"))
    asking = 1e3 * allreduce_s("naive", nodes, 8, alpha, beta)
    print(
        f"{nodes:>5} nodes: ring {ring:5.1f} ms, halving and doubling {halving:5.1f} ms, asking through rank 0 {asking:5.2f} ms"
    )

# %% [markdown]
# Summing costs hardly more on 2,048 nodes than on 32, if the MPI library uses halving and doubling.
# But rank 0 gets more messages
# with every node. On 2,048 nodes, asking *once* costs nearly as much as the sum,
# and Horovod asks several times per step. So the plugin should win at scale, and the
# smaller the network, the sooner. A ring gets slow for a different reason: every additional rank means more rounds.
# That's why NCCL has trees today, why
# Horovod caches what the ranks have told it, and why the run on all of Summit below replaced the single coordinator with a
# tree of coordinators.
#
# How do the largest published synchronous runs compare with a forecast in which only the slowest device costs time?
# All three come from
# science. CosmoFlow estimates the parameters of the universe from simulated dark matter. The other two find storms in climate
# simulations, and the one on Summit passed 10^18 operations per second.

# %%
science = {  # devices and efficiency, from the abstracts
    "CosmoFlow, Cori, Xeon Phi, Cray's plugin": (8192, 0.77),
    "climate, Tiramisu, Piz Daint, P100": (5300, 0.790),
    "climate, DeepLabv3+, Summit, V100": (27360, 0.907),
}
rows = {
    name: {
        "devices": n,
        "published": f"{share:.1%}",
        "with the slowest alone": f"{1 / (1 + lateness.typical * slowest_of(n)):.1%}",
    }
    for name, (n, share) in science.items()
}
pd.DataFrame.from_dict(rows, orient="index")

# %% [markdown]
# Two of them lost more than that, to messages and input. But on Summit, 27,360 GPUs were *more* punctual than our constant
# predicts.
# The authors had copied
# the data to every node, hidden the gradients of one step behind the next, and rebuilt Horovod's coordinator.
# So the constant is typical of ordinary runs, not a law.
#
# The same slides show what else such machines are for: turbulence models learned from simulations, images of brains, interactions of
# many bodies. Much of that is *inference*, which has no gradients to send: [08](08_scaling_curves.ipynb) has a small example.
#
# ## Deeper: what would help?
#
# Change one thing at a time, for VGG-16 on those 512 GPUs:

# %%
vgg_16, servers = catalogue.model("vgg-16"), catalogue.machine("horovod-p100")
what_if_table(vgg_16, servers, Settings("horovod", 64), 512)

# %% [markdown]
# With a larger batch, each message has more computing to hide behind. So it's the first thing everyone tries, until the
# network no longer learns. Fewer
# bytes and a faster network shorten the messages instead.
# Fusion matters where latency does: with one message per tensor, 32 messages have to go around
# the ring of 512 GPUs one after the other. But if you fuse everything into a single message, there's nothing left to overlap.
#
# ## Remember
#
# - A step takes at least the longer of computing and communication, and at most their sum.
#   Measure both with all ranks at work, then fit a formula to each.
# - A prediction only counts if the fit hasn't seen what it predicts.
# - How large a batch you need to hide communication depends more on the machine than on the neural network.
# - Sizes and speeds from data sheets tell you which network will scale. They won't get the last ten percent right.
# - A forecast without a range is a guess. A range counts when it holds for tables it wasn't fitted to.
# - The slowest of $n$ devices gets later as $n$ grows, whatever the network.
# - Far above the critical batch, more workers hardly help you learn, however well they scale.
#
# **Sources.** R. Hockney, *The communication challenge for MPP* (Parallel Computing 20, 1994), for latency and bandwidth. R. Thakur,
# R. Rabenseifner and W. Gropp, *Optimization of collective communication operations in MPICH* (International Journal of High
# Performance Computing Applications 19, 2005), and P. Patarasuk and X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of
# workstations* (Journal of Parallel and Distributed Computing 69, 2009), for the allreduces. Bus bandwidth:
# github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md. S. Li et al., *PyTorch Distributed* (arXiv:2006.15704), for overlap. A. Sergeev and
# M. Del Balso, *Horovod* (arXiv:1802.05799), P. Goyal et al., *Accurate, Large Minibatch SGD* (arXiv:1706.02677),
# github.com/NVIDIA/DeepLearningExamples, github.com/Oneflow-Inc/DLPerf and TensorFlow's benchmarks of 2017, for published scaling. S.
# McCandlish et al., *An Empirical Model of Large-Batch Training* (arXiv:1812.06162), for the critical batch; epochs at each batch:
# github.com/mlcommons/logging, rcp_checker. A. Mathuriya et al., *CosmoFlow* (arXiv:1808.04728), and T. Kurth et al., *Exascale Deep
# Learning for Climate Analytics* (arXiv:1810.01993), for the largest runs; HPE, *Port Scripts to Use the Cray PE DL Plugin*, for the plugin. S. Rajbhandari et al., *ZeRO* (arXiv:1910.02054), section 10.3,
# for more than perfect with a reason. Machines and networks: the sources in workshop_lib/lessons/forecasting/presets.

# %%
ranks.stop()
