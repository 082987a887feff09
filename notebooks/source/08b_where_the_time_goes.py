# %% [markdown] track="measuring"
# # Where the time goes
#
# "Our ranks spend 60 % of every step in `Allreduce`. We need a faster network." That conclusion can cost a lot of money.
# `Allreduce` is also where a rank waits for the others, so the same 60 % may mean that one rank has a hot GPU, a slow disk, or a
# neighbor on its cores. How do you tell the two apart?
#
# **You will** record what every rank does with its time, step by step, and find the slow rank at a glance. Then you'll make a
# speed-up of more than 2 on 2 ranks on purpose, and write the function that would have caught it.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do
# [08_scaling_curves](08_scaling_curves.ipynb) first.

# %%
import contextlib
import sys

import pandas as pd

from workshop_lib import ranks
from workshop_lib.lessons.ddp import figures as step_figures
from workshop_lib.lessons.where_the_time_goes import figures as machines
from workshop_lib.lessons.where_the_time_goes import judge as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD
from workshop_lib.ranks import mpi, scripts
from workshop_lib.ranks.timeline import timeline
from workshop_lib.results import records
from workshop_lib.training import load
from workshop_lib.training.cores import usable_cores
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
team = ranks.start(sizes.ranks)
team.push(steps=2 * sizes.steps)
team

# %% [markdown]
# ## A timeline
#
# In each step of synchronous SGD the ranks meet once, in the `Allreduce` of the gradients. A rank's own clock can't tell why
# it spends a long time in there. Messages may be slow, or another rank may not have arrived yet.
# With the clocks of *all* ranks you can tell. A
# rank *waits* from the moment it arrives until the last rank arrives, and from then on all of them *communicate*. Everything else
# counts as *computing*, including reading data, and the sleep that you'll add below.
#
# The workshop's training loop notes when each step began and ended on this rank, and when the rank was in `Allreduce`, in
# seconds since a moment that all ranks share. That's the *trace* of a step. `traced` trains for some steps and returns the
# traces. It can make a rank late on purpose, because the trainer calls `on_step` after each step, and `on_step` sleeps.

# %%
# %%ranks
import time

from mpi4py import MPI

from workshop_lib.training.options import TrainOptions
from workshop_lib.training.trainer import train

comm = MPI.COMM_WORLD


class Trace:
    """Keeps the traces of the last steps, and makes this rank late_ms late in each."""

    def __init__(self, late_ms):
        self.late_ms, self.last = late_ms, []

    def on_step(self, event):
        time.sleep(self.late_ms / 1000)
        self.last = event["trace"]


# %%
# %%ranks
def traced(late_ms):
    """Train for some steps and return this rank's traces of the last ones; late_ms has one number per rank."""
    trace = Trace(late_ms[comm.rank])
    train(TrainOptions(backend="mpi", max_steps=steps), callbacks=[trace])
    return trace.last


even = traced([0] * comm.size)

# %%
shown = 6  # steps
even = timeline(team.pull("even"), last_steps=shown)
step_figures.steps({"all ranks alike": even})

# %% [markdown]
# Time runs to the right, and a dashed line marks where the first rank begins a step. The number on the right is the share of
# its time that a rank spends waiting. Even here somebody nearly always waits a little, because no two ranks are equally fast in
# every step.
#
# ## A straggler
#
# Now the last rank sleeps for 20 ms in each step. In a real job, the reason may be a hot GPU, a second program on the same
# cores, a
# disk that's slow today, or a shard with longer sentences.

# %%
guess = predict("What share of its time will rank 0 spend waiting?", low=0, high=100, unit="%")
guess

# %%
# %%ranks
late = traced([0] * (comm.size - 1) + [20])

# %%
late_trace = team.pull("late")
late = timeline(late_trace, last_steps=shown)
step_figures.steps({"all ranks alike": even, "the last rank 20 ms late": late})

# %%
guess.compare(100 * timeline(late_trace).shares()[0]["waiting"])

# %% [markdown]
# Look at the colors. Every rank but one is striped with waiting, and the one that *never waits* is the slow one. (If yours waits too,
# another program on your machine made a second straggler out of a healthy rank.) At first sight, the logs tell the opposite
# story. A healthy rank's log looks bad, with "most of the step in `Allreduce`", and the slow rank's log looks perfect.
# The network has nothing to do with it.
#
# And everyone pays for the straggler: what one rank loses in a step, every rank loses. (It may be more than 20 ms, because a
# sleeping process wakes up late, and on a busy machine messages are slower, too.) The more ranks there are, the more likely
# one of them is late: the slowest of 1,000 is a lot slower than the slowest of 2. That's why people who run large jobs look at
# such a timeline before they look at the network.
#
# ### Exercise 1 (warm-up): name the straggler
#
# A picture of 1,000 ranks helps nobody. Write the function that a monitor of a large job would call: which rank is everyone waiting
# for?
#
# <details><summary>Hint 1</summary>
#
# If somebody is late, who waits, and who doesn't?
#
# </details><details><summary>Hint 2</summary>
#
# `waiting = [of_rank["waiting"] for of_rank in shares]`. Compare its largest value with a tenth; `waiting.index(x)` is the rank whose
# value is `x`.
#
# </details><details><summary>Solution</summary>
#
# {solution of straggler}
#
# </details>


# %%
def straggler(shares):
    """The rank that the others wait for; None if no rank waits for more than a tenth of its time.

    shares: for each rank, the shares of its time for "computing", "waiting" and "communicating".
    """
    # <solution>
    waiting = [of_rank["waiting"] for of_rank in shares]
    if max(waiting) <= 0.1:
        return None
    return waiting.index(min(waiting))
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.straggler(straggler)

# %% [markdown]
# Here's what your function says about the two timelines above:

# %%
for name, found in (("all ranks alike", even), ("the last rank late", late)):
    with contextlib.suppress(NotImplementedError):
        print(f"{name}: {straggler(found.shares())}")

# %% [markdown]
# *Break it:* make rank 0 late instead, or all ranks equally late. When does nobody wait even though everybody is slow?
#
# With DDP and Horovod, messages travel *during* backward, so there's no single meeting point to look at.
# Their own tools show what
# happens instead. Notebook [03](03_horovod_pytorch.ipynb) has Horovod's timeline, and [05](05_ddp.ipynb) looks at DDP's
# buckets.
#
# ## More than perfect
#
# Now for the strangest numbers in this field. A log in published teaching material has 132, 77, 5.8 and 3.2 seconds per epoch
# on 1, 2, 4 and 8 ranks. That's 23 times as fast on 4 ranks!
# Where does that come from? Let's produce such a speed-up on purpose.
#
# It takes two settings that go wrong together. By default,
# Open MPI *binds* each rank to a single core if the job has one or two ranks, and to a whole
# package, a processor with all its cores, if it has more. And job scripts often set `OMP_NUM_THREADS` to the number of cores that a
# rank should have. A thread with nothing to do may *spin*: it looks for work again and again, and keeps its core
# busy. Two such threads on one core get in each other's way.
#
# The workshop sets both for you: no binding, and one thread per rank, which sleeps while it waits.
# The next cells compare
# these settings with bad ones, where each rank is bound to one core and has two threads that spin.
# (`env` sets variables for the command that follows it; with `-u` it
# removes one.)

# %%
launchers = {
    "set by the workshop": ["env"],
    "bound, two threads": [
        "env", "-u", "PRTE_MCA_rmaps_default_mapping_policy", "PRTE_MCA_hwloc_default_binding_policy=core",
        "OMP_NUM_THREADS=2", "OMP_WAIT_POLICY=ACTIVE",
    ],
}  # fmt: skip
file = BUILD / "08b_binding.jsonl"
file.unlink(missing_ok=True)
repeats = min(3, sizes.repeats - 1)
job = [
    "-m",
    "workshop_lib",
    "train",
    "--backend",
    "mpi",
    "--epochs",
    "2",
    "--train-samples",
    str(min(3000, sizes.sweep_samples or 3000)),
    "--out",
]

# %% [markdown]
# A scaling table may switch from bad settings to good ones *between two rows*,
# because the defaults depend on the number of ranks.
# Suppose the run on 1
# rank is bound and has two threads, while the run on 2 ranks isn't bound and has one thread per rank:

# %%
guess = predict("By what factor will the 2 ranks seem to be faster than the 1?", low=0, high=12, unit="times")
guess

# %% [markdown]
# The next cell runs every setting on 1 and on 2 ranks. Each run is a separate job, which takes some seconds to start up.

# %%
print(f"{repeats * len(launchers) * 2} jobs, one after the other")
other_programs = load.Meter()
for _ in range(repeats):
    for variables in launchers.values():
        for n in (1, 2):
            scripts.run(*variables, *mpi.mpiexec(), "-n", n, sys.executable, *job, file, timeout_s=2 * sizes.timeout_s)
other_programs.report(2)

# %% [markdown]
# Each record says what it ran on. (`binding` is `none`, or names the cores that the ranks were bound to.)

# %%
rows = []
for record in records.read(file):
    what = record["what"]
    bound = what["binding"] != "none"
    row = {"ranks": what["world_size"], "threads": what["threads_per_rank"], "cores": 1 if bound else usable_cores()}
    rows.append({"bound": bound, **row, "samples_per_s": record["epochs"][-1]["samples_per_s"]})
table = pd.DataFrame(rows).groupby(["bound", "ranks", "threads", "cores"])["samples_per_s"]
table.agg(["median", "min", "max"]).round(0).astype(int)

# %%
speed = table.median().groupby(["threads", "ranks"]).median()
factor = speed[1, 2] / speed[2, 1]
print(f"one thread each, not bound:          {speed[1, 2] / speed[1, 1]:5.2f} times as fast on 2 ranks")
print(f"two threads each, both runs bound:   {speed[2, 2] / speed[2, 1]:5.2f} times")
print(f"1 rank bound, with two threads; 2 ranks free, with one: {factor:5.2f} times")
print("More than perfect, from its baseline alone." if factor > 2 else "Not more than perfect on this machine, today.")
other_programs.report(2)
guess.compare(factor)

# %% [markdown]
# If the last factor is above 2, that says nothing about 2 ranks.
# It comes from its baseline: two threads taking turns on one core. The
# published log jumps by a factor of 13 between 2 ranks and 4, exactly where Open MPI stops binding to single cores by
# default. That's probably the reason, but we can't be sure, because the log records neither threads nor binding.
# A table only gives this
# away if both are in it, as they are above.
#
# How large the factor gets depends on how badly two spinning threads slow each other down on one core of your machine.
# And look at the speeds,
# too, not only at the factors. A setting can scale better and still be slower on any number of ranks.
#
# ### Exercise 2 (normal): a fair baseline
#
# Now write a function that doesn't fall for such a baseline.
# Leave out every run in which a rank has fewer cores than threads. Then
# compare each remaining run with the run on 1 rank that has *the same number of threads*.
#
# <details><summary>Hint 1</summary>
#
# First choose the runs that may be compared, then divide.
#
# </details><details><summary>Hint 2</summary>
#
# Put the speeds of the remaining runs into a dictionary with the keys `(ranks, threads)`.
# The baseline of `(n, threads)` is the
# entry `(1, threads)`.
#
# </details><details><summary>Solution</summary>
#
# {solution of fair_speedups}
#
# </details>


# %%
def fair_speedups(runs):
    """Speed-ups with the keys (ranks, threads), each against 1 rank with the same number of threads, 1 rank included.

    runs: dictionaries with "ranks", "threads" and "cores" (both per rank), and "samples_per_s". Runs in which a rank
    has fewer cores than threads are left out.
    """
    # <solution>
    fair = {(run["ranks"], run["threads"]): run["samples_per_s"] for run in runs if run["cores"] >= run["threads"]}
    return {(n, threads): speed / fair[1, threads] for (n, threads), speed in fair.items()}
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.fair_speedups(fair_speedups)

# %% [markdown]
# Now hand it the medians you've just measured. Does the impossible number survive?

# %%
runs = table.median().reset_index().to_dict("records")
with contextlib.suppress(NotImplementedError):  # while the exercise is open
    for (n, threads), speedup in sorted(fair_speedups(runs).items()):
        print(f"ranks: {n}, threads per rank: {threads}, speed-up: {speedup:.2f}")
    left_out = sum(run["cores"] < run["threads"] for run in runs)
    print(f"{left_out} of {len(runs)} settings left out: fewer cores than threads. The factor above was {factor:.2f}.")

# %% [markdown]
# *Beat it:* hand it a run on 2 ranks with two threads each, `{"ranks": 2, "threads": 2, "cores": 2, "samples_per_s": 9000}`. What
# should it do about a baseline that nobody measured?
#
# ## Deeper: inside a step
#
# The timeline sees a step from outside. What takes the time inside it? PyTorch's profiler records every operation with its
# start and its end. Here it records one step of DDP and one of FSDP, after some steps to warm up.

# %%
traces = BUILD / "08b_traces"
traces.mkdir(parents=True, exist_ok=True)
team.push(traces=str(traces))

# %%
# %%ranks
import os

from torch.profiler import ProfilerActivity, profile, schedule

os.environ["KINETO_LOG_LEVEL"] = "6"  # the profiler reports nothing but errors


class OneStep(profile):
    """Records the sixth step of a training."""

    def __init__(self):
        super().__init__(activities=[ProfilerActivity.CPU], schedule=schedule(wait=4, warmup=1, active=1, repeat=1))

    def on_step(self, event):
        self.step()


for backend in ("ddp", "fsdp"):
    with OneStep() as profiler:
        train(TrainOptions(backend=backend, max_steps=8), callbacks=[profiler])
    profiler.export_chrome_trace(f"{traces}/{backend}_rank{comm.rank}.json")
    operations = sorted(profiler.key_averages(), key=lambda operation: -operation.self_cpu_time_total)
    for operation in operations[:6] if comm.rank == 0 else []:
        print(f"{backend:5} {operation.self_cpu_time_total / 1000:7.2f} ms in {operation.count:3} × {operation.key}")

# %% [markdown]
# Each time is that of the operation itself, without those it calls. For the whole picture, open a file of `build/08b_traces` in
# [Perfetto](https://ui.perfetto.dev), which reads it in your browser without sending it anywhere. Each row is a thread, and
# time runs to the right. In DDP's file, look for `gloo:all_reduce`: does it run beside backward, or after it? In FSDP's, find
# `FSDP::all_gather` before a layer computes, and `FSDP::post_backward_reduce` after its backward.
#
# ## Deeper: arithmetic or memory?
#
# Is your processor busy computing, or does it wait for numbers to arrive from memory? For each layer, divide the operations by
# the bytes it has to move: that's its *arithmetic intensity*. If it's low, the layer can't be faster than memory delivers,
# however fast the processor computes. The next cell measures both limits, on rank 0 alone, and times each layer of two
# networks: the workshop's, and a small vision transformer, `vit`.

# %%
# %%ranks
from workshop_lib.training import flops

roof = None
if comm.rank == 0:
    roof = flops.limits(), flops.layers("workshop") + flops.layers("vit")

# %%
machines.roofline(*team.pull("roof")[0])

# %% [markdown]
# The line is the roof that this machine sets: left of the dashed mark, memory is the limit, right of it arithmetic is. If a
# layer is far below, neither of them is what it waits for. Small layers lose time on starting their operations, and a
# convolution with one input channel leaves most of a vector unit empty. (A point can even lie above the left part of the roof,
# because what fits into a cache needn't come from memory.)
#
# Large jobs put all of this into one number, the *model-FLOPs utilization*: the operations that the model needs for its
# samples, divided by what the processors could have done in the same time. Now that the peak of your machine has been measured,
# each run record has it:

# %%
record = team.train(TrainOptions(backend="ddp", epochs=1, train_samples=3000))
used = record.get("compute")
print(f"utilization {used['utilization']:.1%}" if used else "Unknown: the run was stopped, or there are more threads than cores.")

# %% [markdown]
# Only what the model needs counts, so nobody can improve this number with operations that help nothing. Meta reports 38 to 43 %
# for Llama 3. *Try it:* with `network="vit"` in the options, does it rise or fall?
#
# ## Remember
#
# - Assume that a long time in `Allreduce` is waiting, until the clocks of the other ranks say otherwise.
# - The straggler is the rank that doesn't wait. Its own log looks best.
# - One slow rank costs every rank.
# - If a speed-up is above $N$, ask about the baseline: how many threads did it have, and which cores was it bound to?
# - Set threads and binding yourself, and write both next to every number.
#
# Next: [08c_forecasting](08c_forecasting.ipynb), where stragglers come back as a term in the forecast.
#
# **Sources.** The log of 132 to 3.2 seconds and the published tables: the ALCF's workshop material,
# github.com/argonne-lcf/sdl_ai_workshop, in 01_distributedDeepLearning. Binding by default: Open MPI 5, manual page of
# `mpirun`, section on mapping, ranking and binding. Threads that spin: OpenMP 5.2, `OMP_WAIT_POLICY`; PyTorch's notes on CPU
# threading. S. Williams, A. Waterman and D. Patterson, *Roofline: An Insightful Visual Performance Model for Multicore
# Architectures* (Communications of the ACM 52, 2009). Model-FLOPs utilization: A. Chowdhery et al., *PaLM* (arXiv:2204.02311,
# appendix B); A. Dubey et al., *The Llama 3 Herd of Models* (arXiv:2407.21783). Stragglers in large synchronous jobs: J. Dean and L. Barroso, *The Tail at Scale* (Communications of the ACM 56,
# 2013).

# %%
ranks.stop()
