# %% [markdown] track="measuring"
# # Forecasting
#
# You've asked for 512 GPUs. Before you get them, someone will ask how fast you'll train on them, and "we'll see" isn't an
# answer. A few measurements on the machine you have, and a few numbers from data sheets, are enough for a forecast. But how
# far can you trust it? You only know once it has predicted a measurement that played no part in it.
#
# **You will** measure what messages cost, fit a line to your own measurements, and test it on a message size, and later on a
# number of ranks, that the fit has never seen. Then you'll forecast 512 GPUs, give your forecast a range, and find out how
# often such a range contains what others have measured.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do
# [08_scaling_curves](08_scaling_curves.ipynb) first.

# %%
import math

import numpy as np
import pandas as pd

from workshop_lib import TrainOptions, emulation, predict, profile, ranks

from lessons import forecasting as lesson

sizes = profile.current()
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## A step has two parts
#
# A step of synchronous SGD consists of **computing**, in which a rank works on its own batch, and **communication**, the
# allreduce of all gradients. If messages travel while the rank computes, the step can be as short as the longer of the two. If
# the rank waits for its messages, the step takes as long as both together:
#
# $$\max(T_\text{compute}, T_\text{comm}) \;\le\; T_\text{step} \;\le\; T_\text{compute} + T_\text{comm}.$$
#
# (This holds if neither part slows the other down, and no rank is late.) So work out each part alone, put the two together,
# and test the result on a measurement that you haven't used.
#
# ## What an allreduce costs
#
# As in notebook [01](01_mpi_basics.ipynb), a message of $n$ bytes takes about $\alpha + \beta n$ seconds: a latency, plus the
# bytes divided by the bandwidth. Does the time of an allreduce follow such a line, too? The next cell times MPI's allreduce
# and the one from *gloo* (PyTorch's library for messages between CPUs).

# %%
largest = 2**22 if sizes.name == "quick" else 2**26
message_sizes = [4**k for k in range(1, 14) if 4**k <= largest] + [2**17, 2**19, 2**21]
other_programs = lesson.load.Meter()
messages = lesson.fit.measure_communication(
    team, sorted(message_sizes), max(5, sizes.repeats), 10 * sizes.timeout_s
)
other_programs.report(sizes.ranks)
lesson.figures.allreduce_times(messages)

# %% [markdown]
# On the left, each curve starts flat, where only the latency counts, and then rises with the bytes. So at first sight, an
# allreduce behaves like a single message. Exercise 1 tests whether it really does.
#
# On the right is the *bus bandwidth*: the bytes of the array, times $2(p-1)/p$ for $p$ ranks, divided by the time. In a ring,
# each rank sends that many bytes per second. So you can compare the bus bandwidth for different $p$, and with the speed of the
# link.
#
# ### Exercise 1 (normal): fit a line and test it
#
# Before you trust a model, hide one measurement from it, and see how well the model predicts the hidden measurement. Do this
# with a line through the times of MPI's allreduce. Later you'll predict training steps with your line.
#
# These times span several orders of magnitude. A plain least-squares fit would be dominated by the largest messages and could
# return almost any latency. So take each error relative to the measured time $t_i$, and find the $\alpha$ and $\beta$ that
# minimize
#
# $$\sum_i \left(\frac{\alpha + \beta n_i - t_i}{t_i}\right)^2$$
#
# over all sizes $n_i$ except the one that is held out. Then predict the time for that size, and return how far off the
# prediction is.
#
# <details><summary>Hint 1</summary>
#
# Divide $\alpha + \beta n = t$ by $t$. Then each size gives one equation, $\alpha \cdot \frac{1}{t} + \beta \cdot \frac{n}{t} =
# 1$, and an ordinary least-squares fit of all these equations minimizes the relative errors.
#
# </details><details><summary>Hint 2</summary>
#
# `np.delete(seconds, held_out)` is the array without one element. `rows = np.column_stack([1 / t, n / t])` puts two arrays side
# by side, and `np.linalg.lstsq(rows, np.ones(len(t)))[0]` is the least-squares solution.
#
# </details><details><summary>Solution</summary>
#
# {solution of fit_and_test}
#
# </details>


# %%
def fit_and_test(message_bytes, seconds, held_out):
    """Fit alpha + beta * bytes to all sizes but one, and predict the time for that one.

    The fit minimizes relative errors. message_bytes, seconds: arrays with one value per
    size. held_out: the index of the size that the fit must not see. Returns alpha_s,
    beta_s_per_byte, and the prediction's error: (predicted - measured) / measured.
    """
    # <solution>
    n = np.delete(message_bytes, held_out)
    t = np.delete(seconds, held_out)
    rows = np.column_stack([1 / t, n / t])
    alpha_s, beta_s_per_byte = np.linalg.lstsq(rows, np.ones(len(t)))[0]
    predicted_s = alpha_s + beta_s_per_byte * message_bytes[held_out]
    error = (predicted_s - seconds[held_out]) / seconds[held_out]
    return alpha_s, beta_s_per_byte, error
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.fit_and_test(fit_and_test)

# %% [markdown]
# Now for your own measurements, without the one at 1 MiB.

# %%
guess_line = predict(
    "How far off will the line through all other sizes be at 1 MiB?",
    low=0,
    high=100,
    unit="%",
)
guess_line

# %%
mpi = pd.DataFrame([row for row in messages if row["way"] == "MPI"])
ranges = {
    "all sizes": mpi,
    "64 KiB to 4 MiB": mpi[mpi["message_bytes"].between(2**16, 2**22)],
}
tests = {}
for name, rows in ranges.items():
    nbytes, seconds = rows["message_bytes"].to_numpy(), rows["median_s"].to_numpy()
    tests[name] = lesson.check.written(fit_and_test)(
        nbytes, seconds, held_out=list(nbytes).index(2**20)
    )
lines = pd.DataFrame(tests, index=["alpha_s", "beta_s_per_byte", "error"]).T
guess_line.compare(100 * abs(lines.loc["all sizes", "error"]))
lines.style.format(
    {"alpha_s": "{:.2e}", "beta_s_per_byte": "{:.2e}", "error": "{:+.0%}"}
)

# %% [markdown]
# If the machine was quiet, a large error means that a straight line doesn't describe these times. The MPI library may switch
# to a different method at some size, or the arrays may outgrow a cache. The second test only uses sizes close to those of our
# networks' gradients. Is the prediction better? It should be if the curve bends somewhere in the full range. If the curve is
# straight, fewer points only make the fit less certain. A model is only good for the range in which you fitted it.
#
# ## Forecast sixteen, then measure them
#
# Does your fit still hold on more ranks than it has seen? Two cores can't tell you, but emulated ranks can, as in
# [05](05_ddp.ipynb): they really send the messages, and their clocks say how long each message would take on the emulated
# machine. You use two imagined machines: nodes of one GPU on 10 Gb/s Ethernet, and nodes of eight A100 GPUs with NVLink inside
# and 25 Gb/s Ethernet between the nodes. Start with 2, 4 and 8 ranks.


# %%
def allreduce_s(machine, sizes_bytes):
    """Seconds of an Allreduce of each size on ranks that emulate this machine."""
    import time

    import numpy as np

    comm = emulation.start(machine).comm
    seconds = []
    for nbytes in sizes_bytes:
        array = np.zeros(nbytes // 4, np.float32)
        comm.Barrier()
        start = time.perf_counter()
        comm.Allreduce(array.copy(), array)
        seconds.append(time.perf_counter() - start)
    emulation.stop()
    return seconds


def measure(n):
    """Add the seconds on n ranks to `taken`, for both machines."""
    team = ranks.start(n)
    for machine in machines:
        seconds = team.run(allreduce_s, machine, sizes_bytes, show=False)[0]
        for nbytes, took_s in zip(sizes_bytes, seconds, strict=True):
            row = {"machine": machine, "ranks": n, "bytes": nbytes, "seconds": took_s}
            taken.append(row)


sizes_bytes = [2**k for k in (10, 14, 18, 22, 24)]
machines = ["ethernet-10g", "a100-ethernet"]
taken = []
for n in (2, 4, 8):
    measure(n)

# %% [markdown]
# A ring on $p$ ranks takes $2(p-1)$ rounds, and in each round every rank sends $n/p$ bytes. So your function can fit the
# seconds *per round*, which should be $\alpha + \beta \, n/p$ for any $p$. How well will the fit to 2, 4 and 8 ranks forecast
# 16 MiB on 16 ranks?

# %%
guess = predict(
    "16 A100: how many times as long as forecast does the allreduce take?",
    low=0,
    high=60,
    unit="times",
)
guess

# %%
measure(16)
times = pd.DataFrame(taken)
rows = {}
for machine in machines:
    on_machine = times[times["machine"] == machine]
    sixteen = on_machine["ranks"] == 16
    used = on_machine[~sixteen | (on_machine["bytes"] == 2**24)]
    p = used["ranks"].to_numpy()
    bytes_per_round = used["bytes"].to_numpy() / p
    s_per_round = used["seconds"].to_numpy() / (2 * (p - 1))
    alpha_s, beta, error = lesson.check.written(fit_and_test)(
        bytes_per_round, s_per_round, held_out=len(used) - 1
    )
    emulated_ms = 1e3 * used["seconds"].iloc[-1]
    rows[machine] = {
        "alpha, µs": 1e6 * alpha_s,
        "GB/s": 1e-9 / beta,
        "emulated, ms": emulated_ms,
        "forecast, ms": emulated_ms * (1 + error),
        "times as long": 1 / (1 + error),
    }
forecasts = pd.DataFrame(rows).T.rename_axis("emulated on (both imagined)")
forecasts.round(2)

# %%
guess.compare(
    forecasts.loc["a100-ethernet", "times as long"], emulated_on="a100-ethernet"
)

# %% [markdown]
# On 10 Gb/s Ethernet, your fit finds the $\alpha$ and $\beta$ that the emulation uses, and its forecast is exact. (It has to
# be: the clocks follow the same model.) On the A100 machine, the forecast is far off, although the fit was just as good on 2,
# 4 and 8 ranks. Up to 8 ranks share a node, but 16 need two nodes, and the slow network between them. A forecast holds only
# as long as the hardware stays the same, and no error bar of a fit can tell you where that ends.
#
# ## Forecast a larger machine
#
# Now make a forecast for a machine that you don't have. You need a handful of numbers: how many parameters the network has,
# how fast *one* device is, and the latency and bandwidth of the links. `machines.toml` and `models.toml` in
# `workshop_lib/machine` have such numbers, published or estimated, each with its source.
#
# Libraries overlap computing and communication: they send gradients while the backward pass is still running, combined into
# large messages (DDP's *buckets*, Horovod's *fusion buffers*). Suppose that $k$ messages have the same size, that message $j$
# is ready after $j/k$ of the backward pass, and that the messages travel one after the other. When does the last message
# arrive?
#
# ### Exercise 2 (warm-up): the step of a library that overlaps
#
# Either the link between the devices keeps up with the backward pass, or it falls behind and is busy from the first message
# until the last. Each case gives a time, and the later one counts. The first case is written for you: if the link keeps up,
# only the last message is left when the backward pass ends. Add the second case, and you have what you need for 512 GPUs.
#
# <details><summary>Hint</summary>
#
# The link starts when the first message is ready, after the forward pass and a $k$-th of the backward pass. From then on it has
# to send all $k$ messages.
#
# </details><details><summary>Solution</summary>
#
# {solution of overlapped_step}
#
# </details>


# %%
def overlapped_step(forward_s, backward_s, message_s, messages):
    """Seconds of a step with this many equal messages of `message_s` each.

    Each is sent as soon as it's ready.
    """
    keeps_up_s = forward_s + backward_s + message_s
    # <solution>
    busy_s = forward_s + backward_s / messages + messages * message_s
    return max(keeps_up_s, busy_s)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.overlapped_step(overlapped_step)

# %% [markdown]
# ### Exercise 3 (warm-up): a forecast has a range
#
# A single number says nothing about how far off it may be. With this function, your forecast gets a range. At *best*, messages
# hide completely, so that a step takes as long as the longer of computing and messages. At *worst*, nothing overlaps, all
# messages take three times as long as the data sheets say, and on top of that, the slowest device is late. The efficiency is
# the time of computing, divided by the time of the step.
#
# <details><summary>Hint</summary>
#
# At worst, a step takes `computing_s + 3 * messages_s + late_s`.
#
# </details><details><summary>Solution</summary>
#
# {solution of efficiency_range}
#
# </details>


# %%
def efficiency_range(computing_s, messages_s, step_s, late_s=0.0):
    """A step's efficiency: (at worst, expected, at best), as fractions.

    messages_s: all messages of a step together. step_s: the step as you expect it.
    late_s: how late the slowest device is, at worst.
    """
    # <solution>
    worst_s = computing_s + 3 * messages_s + late_s
    best_s = max(computing_s, messages_s)
    return computing_s / worst_s, computing_s / step_s, computing_s / best_s
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.efficiency_range(efficiency_range)

# %% [markdown]
# ### Your forecast for 512 GPUs
#
# Horovod's authors published how three networks scale on servers with four GPUs and 25 Gb/s Ethernet each. On 512 GPUs,
# Inception V3 (24 million parameters) and ResNet-101 (45 million) reached an efficiency of 90 %. VGG-16 has 138 million
# parameters. Here are your forecasts, from data sheets and the speed of one GPU. They assume that no device is late.

# %%
step = lesson.check.written(overlapped_step)
with_range = lesson.check.written(efficiency_range)
machine = lesson.catalogue.machine("horovod-p100")
forecasts_512 = {}
for name in ("inception-v3", "resnet-101", "vgg-16"):
    model = lesson.catalogue.model(name)
    # One GPU, a batch of 64: published, ResNet-101's estimated
    computing_s = machine.compute_of(model).step_s(64)
    k = math.ceil(model.gradient_bytes / 2**26)  # fusion buffers of 64 MiB
    message_s = machine.allreduce_s(512, model.gradient_bytes / k)
    # The backward pass takes about two thirds.
    step_s = step(computing_s / 3, computing_s * 2 / 3, message_s, k)
    forecasts_512[name] = with_range(computing_s, k * message_s, step_s)
    low, expected, high = forecasts_512[name]
    print(
        f"{name:>12}: {k} messages of {message_s:.2f} s, "
        f"efficiency {expected:.0%} ({low:.0%} to {high:.0%})"
    )

# %% [markdown]
# Now commit yourself to a forecast for VGG-16, whose measurement you haven't seen: first to one number, and then to a range
# that you'd put your name to. Start from the range above, and make it wider or narrower as you see fit.

# %%
guess_vgg = predict(
    "VGG-16 on 512 GPUs: what efficiency was measured?", low=0, high=100, unit="%"
)
guess_vgg

# %%
my_low, my_expected, my_high = forecasts_512["vgg-16"]  # or your own fractions

# %%
horovods = {
    entry.what: entry.efficiency
    for entry in lesson.published.EVERYTHING
    if entry.table == "Horovod"
}
measured = horovods["Horovod, vgg-16"][512]
where = "inside" if my_low <= measured <= my_high else "outside"
print(
    f"measured: {measured:.0%}, {where} your range of {my_low:.0%} to {my_high:.0%}"
)
guess_vgg.compare(100 * measured)

# %% [markdown]
# For these three networks, data sheets and one GPU's speed were enough to tell which of them scale. VGG-16 sends six times
# the bytes of Inception V3. Nine tenths of VGG-16's bytes belong to its last three layers, which take next to no computing.
#
# ## How far off is it elsewhere?
#
# Three networks on one machine prove little, and a range so wide is easily right. So try your range on three published tables
# that no constant here was fitted to. The next cell counts how many of their efficiencies are inside your range, first with no
# device late.
#
# Then the cell adds the **straggler** of notebook [08b](08b_where_the_time_goes.ipynb): the more devices there are, the later
# the slowest of them is. We fitted how late this device may be to three *other* tables, so the three tables here are *held
# out*. (But we looked at the held-out tables when we chose the form of this term, so the result is probably too good.)

# %%
held_out = lesson.fit.published_steps(lesson.published.HELD_OUT)
for late_share in (0, lesson.forecast.LATENESS.at_worst):
    inside, below = 0, 0
    for row in held_out:
        late_s = late_share * row["computing_s"] * lesson.slowest_of(row["devices"])
        low, _, high = with_range(
            row["computing_s"], row["messages_s"], row["step_s"], late_s
        )
        inside += low <= row["published"] <= high
        below += row["published"] < low
    print(
        f"slowest late by {late_share:.1%} · √(2 ln n): {inside} of {len(held_out)} "
        f"inside your range, {below} below it"
    )

# %% [markdown]
# With messages three times as slow, the range still misses most of these points if nobody is late, and nearly all of those
# lie *below* the range. A forecast of computing and messages alone is too optimistic, because everything that it leaves out
# costs time. With a late device, the range holds nearly all of them.
#
# So what do you answer when someone asks about your 512 GPUs? You give the expected efficiency, a range that allows for a late
# device, and how often such a range has been right. The next cell writes this answer for VGG-16.

# %%
# The other numbers are still VGG-16's.
late_s = late_share * computing_s * lesson.slowest_of(512)
low, expected, high = with_range(computing_s, k * message_s, step_s, late_s)
print(
    f"VGG-16 on 512 GPUs: {expected:.0%}, at worst {low:.0%}, at best {high:.0%}. "
    f"Such a range held {inside} of {len(held_out)} published efficiencies."
)

# %% [markdown]
# Where messages take between a quarter of the computing time and all of it, such a range covers about half of the scale from
# 0 to 100 %, or more. If your range is that wide, measure on two nodes before you ask for 512 GPUs.
#
# ## Deeper: predicted and measured
#
# Does the sum of computing and messages predict the steps of your own machine? To vary the network's size freely, we take
# networks with a single hidden layer, of any width. With $P$ parameters and a batch of $B$ samples, computing a step should
# take this many seconds:
#
# `s_per_step + s_per_parameter * P + (s_per_sample + s_per_product * P) * B`
#
# The first two terms are a step's fixed cost, such as updating the weights. The other two are the cost of each sample.
#
# We measure the computing times while all ranks compute, because ranks on one machine share memory bandwidth and caches, and a
# step ends with the slowest rank.
#
# The library fits the four constants just as you fitted $\alpha$ and $\beta$. The fit only sees the computing times of
# networks with 64, 256 and 1,024 hidden units and batches of 16, 64 and 256. The time of the allreduce comes from your line.
# The allreduce blocks here, so a step should take as long as computing and allreduce together. How well does this sum predict
# steps with widths and batches that are *held out*?

# %%
team = ranks.start(sizes.ranks)
other_programs = lesson.load.Meter()
settings = lesson.fit.FITTED + lesson.fit.HELD_OUT
steps = lesson.fit.measure_steps(team, settings, sizes.repeats, 5 * sizes.timeout_s)

# %%
used = [row for row in steps if (row["width"], row["batch"]) in lesson.fit.FITTED]
held_out = [row for row in steps if row not in used]
computing = lesson.fit.compute_time(used)
line = lines.loc["64 KiB to 4 MiB"]
tested = lesson.fit.predicted(held_out, computing, line)
errors = tested["error"].abs()
print(
    f"held out: error {errors.median():.0%} in the median, {errors.max():.0%} at worst"
)
other_programs.report(sizes.ranks)
lesson.figures.predicted_beside_measured(
    lesson.fit.predicted(used, computing, line), tested
)

# %% [markdown]
# On two-core machines that did nothing else, the median error was 3 % and the largest error 9 % when we measured them one
# day. On a different day, the median error was 9 %, and the largest 18 %. If your errors are several times as large, check
# the report on other programs before you blame the model.
#
# Where does a step's time go? This table shows the share that the allreduce takes, by width and batch:

# %%
shares = tested.assign(share=tested["allreduce_s"] / tested["predicted_s"])
shares.pivot(index="batch", columns="width", values="share").style.format("{:.0%}")

# %% [markdown]
# With a larger batch there's more computing for the same bytes. The ratio of computing to bytes, and not the number of ranks
# alone, decides how well training scales. A larger batch is the cheapest cure for slow communication, as long as the network
# still learns from it.
#
# *Break it:* predict something outside the range. Run `steps += lesson.fit.measure_steps(team, [(4096, 8)])`, and then run the
# cell before the table again. The weights of this network take 13 MB. How far off is its point, and which of the two parts
# would you blame?
#
# ## Deeper: your machine, and larger ones
#
# Below, *this machine* stands for up to 4,096 copies of yours, which exchange messages as fast as two ranks on your machine do.
# (No real network between laptops is that fast.)
#
# - *Speed* is the efficiency, and the band around it is its range.
# - *Learning* shows what a larger batch costs, as in notebook [07b](07b_gradient_noise.ipynb): the number of samples needed
#   with a tiny batch to reach an accuracy, divided by the number needed with this batch. At the *critical batch*, this ratio
#   is one half. Only two of the library's networks were measured at enough batch sizes to have this line.
# - *Both* is the product of the two: what a device really contributes.

# %%
ping, cnn = lesson.fit.message_time(messages), lesson.catalogue.model("workshop-cnn")
options = TrainOptions(backend="mpi", epochs=2, train_samples=sizes.sweep_samples)
alone = ranks.start(1).train(options, timeout=sizes.timeout_s, show=False)
# On a busy machine, the fit may say 0.
beta_s_per_byte = max(ping["beta_s_per_byte"], 1e-12)
laptop = lesson.catalogue.laptop(ping["alpha_s"], beta_s_per_byte, {})
laptop = laptop.with_speed(cnn, alone["epochs"][-1]["samples_per_s"])
settings = lesson.forecast.Settings("mpi", 32)
points = lesson.forecast.forecast(cnn, laptop, settings)
lesson.figures.draw_forecast(points, lesson.conditions(cnn, laptop, settings))

# %% [markdown]
# In a terminal, `.venv/bin/workshop predict resnet-50 horovod-p100 --batch-size 32` prints and draws such a forecast for any
# network and machine in the tables.
#
# *Try it:* on `horovod-p100`, from how many devices on does ResNet-50's communication take longer than computing? On `h100`?
# From how many devices on is the global batch above the critical batch? Then set the batch to 8 and compare ResNet-50 with
# GPT-2 (`gpt2`) on `h100`. Why does a network with five times the parameters scale *better*?
#
# ## Deeper: how late is the slowest?
#
# The figure shows 60 efficiencies from seven tables beside the library's forecast, which expects the slowest device to be
# late. (Two more tables also timed other work, such as start-up and tests. You'll see them in *Deeper: far below the
# forecast*.)

# %%
beside = lesson.published.beside_forecast()
lesson.figures.beside_published(beside)

# %% [markdown]
# The held-out forecasts are 5.0 percentage points off on average. The fitted ones are 9.8 points off, because BERT is among
# them, with an error of up to 45 points. On 16 V100 GPUs, BERT loses nearly half of its speed in one framework, and a fifth
# in a different one. No data sheet can tell you that.
#
# Suppose that in each step, the devices' computing times follow a normal distribution with the standard deviation $\sigma$.
# Then, averaged over many steps, the slowest of $n$ devices is less than $\sigma \sqrt{2 \ln n}$ later than the average
# device. Our forecast makes the slowest device exactly that much later. The step then takes as long as the slowest device's
# computing or as the overlapped step, whichever is longer. We fitted a single $\sigma$ to three of the tables: 3.6 % of the
# computing time. This makes the slowest of 8 devices 7 % late, and with 4,096 devices, the slowest is 15 % late. Does $\sigma$
# also help with the other four tables?

# %%
lateness = lesson.published.fit_lateness(lesson.published.FITTED)
lesson.published.mean_errors(
    {"nobody is late": lesson.forecast.PUNCTUAL, "the slowest is late": lateness}
)

# %% [markdown]
# The table shows mean errors in percentage points. The forecasts for three of the four held-out tables get better. The
# forecasts for NVIDIA's MXNet get worse, because MXNet's runs lose next to nothing. With the same network and batch on eight
# A100, MXNet reaches an efficiency of 97 %, and PyTorch 84 %. Yet on these eight GPUs the two are almost equally fast, with
# 16,925 and 16,621 images/s. PyTorch's efficiency is lower because PyTorch is 13 % faster on one GPU. No model of the
# hardware knows such differences between programs.
#
# **Is this a fair test?** Not quite: we tried four terms, and kept the one that did best on the held-out tables. (The others
# were late input, cores that the collective takes from computing, and a fixed cost per step.)
#
# ## Deeper: far below the forecast
#
# In two published tables, the efficiencies are far lower than messages could explain. What would you look for?

# %%
names = ["Polaris, MNIST, Keras", "Polaris, ResNet-34"]
chosen = beside[beside["what"].isin(names)].set_index(["what", "devices"])
chosen[["published", "forecast", "low", "high"]].map("{:.0%}".format)

# %%
for entry in lesson.published.EVERYTHING:
    if entry.what in names:
        print(f"{entry.what}: {entry.account}\n")

# %% [markdown]
# So if messages take too little time to explain a loss, look at what is *neither* computing nor messages: start-up, tests,
# input.
#
# ## Deeper: twenty-seven thousand GPUs
#
# How do three data-parallel runs of 2018, on thousands of devices, compare with a forecast in which only the slowest device
# costs time? CosmoFlow estimates the parameters of the universe from simulated dark matter. The other two find storms in
# climate simulations. (On Summit, a half-precision version of the network peaked above 10^18 operations per second.)

# %%

science = {  # devices and efficiency, from the abstracts
    "CosmoFlow, Cori, Xeon Phi": (8192, 0.77),
    "climate, Tiramisu, Piz Daint, P100": (5300, 0.790),
    "climate, DeepLabv3+, Summit, V100": (27360, 0.907),
}
for name, (n, efficiency) in science.items():
    late = 1 / (1 + lesson.forecast.LATENESS.typical * lesson.slowest_of(n))
    print(
        f"{name}: {n:,} devices, published {efficiency:.1%}, "
        f"with the slowest alone {late:.1%}"
    )

# %% [markdown]
# Two of these runs lost more than the slowest device can explain, to messages and input. But on Summit, 27,360 GPUs were
# *more* punctual than our constant predicts. The authors had copied the data to every node, averaged the gradients of each
# step while the next step was running, and replaced Horovod's single coordinator with a tree of coordinators. So the constant
# is typical of ordinary runs, not a law.
#
# ## Remember
#
# - A step takes at least the longer of computing and communication, and at most their sum.
#   Put both bounds into your forecast.
# - A prediction only counts if the fit hasn't seen what it predicts, and neither has whoever chose the formula.
# - The more a step computes for each byte that it sends, the better it scales.
# - A forecast only holds for the hardware and the software that its numbers come from. So give a range, and measure early.
#
# **Sources.** R. Hockney, *The communication challenge for MPP* (Parallel Computing 20, 1994), for latency and bandwidth. R.
# Thakur, R. Rabenseifner and W. Gropp, *Optimization of collective communication operations in MPICH* (International Journal of
# High Performance Computing Applications 19, 2005), for the allreduces. Bus bandwidth: github.com/NVIDIA/nccl-tests,
# doc/PERFORMANCE.md. S. Li et al., *PyTorch Distributed* (arXiv:2006.15704), for overlap. S. McCandlish et al., *An Empirical
# Model of Large-Batch Training* (arXiv:1812.06162), for the critical batch. A. Mathuriya et al., *CosmoFlow*
# (arXiv:1808.04728), and T. Kurth et al., *Exascale Deep Learning for Climate Analytics* (arXiv:1810.01993), for the runs of
# 2018. The machines and networks have their sources in `workshop_lib/machine`, the published tables in
# `workshop_lib/forecast/published.toml`.

# %%
ranks.stop()
