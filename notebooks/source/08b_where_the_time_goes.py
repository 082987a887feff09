# %% [markdown]
# # Where the time goes
#
# **You will** record, step by step, what each rank of a training does with its time; find a rank that is too slow at a glance;
# and make a speed-up of more than 2 on 2 ranks on purpose, to see where such numbers come from.
#
# **Time** about 30 minutes. **Needs** two cores; no GPU, no network. [08_scaling_curves](08_scaling_curves.ipynb) first.

# %%
import sys

import pandas as pd

from workshop_lib import ranks
from workshop_lib.exercises import time_goes as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.figures import steps as step_figures
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD
from workshop_lib.ranks import mpi, scripts
from workshop_lib.ranks.timeline import timeline
from workshop_lib.scaling import records
from workshop_lib.training import load

sizes = profile.current()
team = ranks.start(sizes.ranks)
team.push(steps=2 * sizes.steps)
team

# %% [markdown]
# ## A timeline
#
# In each step of synchronous SGD the ranks meet once, in the `Allreduce` of the gradients. A rank's clock alone cannot say why
# it spends long in there: messages may be slow, or another rank has not come yet. With the clocks of all ranks it can be told.
# A rank *waits* from when it comes until the last rank has come, and from then on all *communicate*. All the rest counts as
# *computing*, also reading data, and the sleep below.
#
# The training loop of the workshop notes when each step began and ended on this rank, and when the rank was in the `Allreduce`,
# in seconds since a moment that all ranks share. That is the *trace* of a step. `traced` trains for some steps and returns the last
# ones. A rank can be made late on purpose: the callback `on_step`, which the trainer calls after each step, sleeps.

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


def traced(late_ms):
    """Train; late_ms has one number a rank. The traces of this rank's last steps."""
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
# its time for which a rank waits. Even here somebody nearly always waits a little: two ranks are never equally fast in every
# step.
#
# ## A straggler
#
# Now the last rank sleeps for 20 ms in each step. In a job, the reason may be a hot GPU, another program on the same cores, a
# disk that is slow today, or a shard with longer sentences.

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
# Look at the colours: every rank but one is striped with waiting, and the one that *never waits* is the one that is slow. That
# is the wrong way round at first sight. In the log of a single rank the others look bad: "most of the step in `Allreduce`". The
# slow rank's log looks perfect. And the network need not be slow.
#
# All pay for the straggler: what one rank loses in a step, every rank loses. (It may be more than 20 ms: a sleeper also wakes
# late, and on a busy machine messages are slower too.) That is why large jobs look at such timelines before they look at their
# network.
#
# ## Exercise 1: name the straggler
#
# `shares` has an entry for each rank: the share of its time for `"computing"`, `"waiting"` and `"communicating"`. Return the
# number of the rank that the others wait for; or `None` if no rank waits for more than a tenth of its time.


# %%
def straggler(shares):
    # <solution>
    waiting = [of_rank["waiting"] for of_rank in shares]
    if max(waiting) <= 0.1:
        return None
    return waiting.index(min(waiting))
    # <stub>
    # # who waits, and who does not?
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.straggler(straggler)

# %% [markdown]
# Your function on the two timelines above:

# %%
for name, found in (("all ranks alike", even), ("the last rank late", late)):
    try:
        print(f"{name}: {straggler(found.shares())}")
    except NotImplementedError:
        print(f"{name}: not written yet")

# %% [markdown]
# *Try it:* make rank 0 late instead, or all ranks equally late. When does nobody wait although everybody is slow?
#
# With DDP and Horovod, messages travel *during* backward, and there is no single meeting to look at. Their own tools show it:
# [03](03_horovod_pytorch.ipynb) has Horovod's timeline, [05](05_ddp.ipynb) the buckets of DDP.
#
# ## More than perfect
#
# Published tables have speed-ups of more than $N$ on $N$ ranks. One log that people learn from has 132, 77, 5.8 and 3.2 seconds
# an epoch on 1, 2, 4 and 8 ranks: 23 times as fast on 4 ranks. [08](08_scaling_curves.ipynb) suspected the baseline. Here is
# one way to get it, made on purpose.
#
# Two settings meet. Open MPI by default *binds* each rank to one core if the job has one or two ranks, and to a whole package,
# a processor with all its cores, if it has more. And job scripts often set `OMP_NUM_THREADS` to the cores that a rank should
# have. (Unset, it is as many threads as the cores that the rank may use: one, where it is bound to one.) A thread that has
# nothing to do may *spin*: it looks again and again, and keeps its core busy. Two threads on one core then hinder each other.
#
# The workshop sets both: no binding, one thread a rank, and waiting threads sleep. The cell below trains so, and with each rank
# bound to one core and given two threads that spin, on 1 and on 2 ranks; `env` sets variables, or with `-u` takes one away, for
# the command that follows.

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
job = ["-m", "workshop_lib", "train", "--backend", "mpi", "--epochs", "2", "--train-samples", "3000", "--out"]

# %% [markdown]
# A table with 1 rank in one row and more in the next may switch from one to the other between the rows. Suppose that the run on
# 1 rank is bound, with two threads, and the one on 2 ranks is neither:

# %%
guess = predict("By what factor will the 2 ranks seem to be faster than the 1?", low=0, high=12, unit="times")
guess

# %%
rows, other_programs = [], load.Meter()
for _ in range(min(3, sizes.repeats - 1)):
    for name, variables in launchers.items():
        for n in (1, 2):
            scripts.run(*variables, *mpi.mpiexec(), "-n", n, sys.executable, *job, file, timeout_s=sizes.timeout_s)
            record = records.read(file)[-1]
            row = {name: record["what"][name] for name in ("world_size", "threads_per_rank", "binding")}
            rows.append({"run": name, **row, "samples/s": record["epochs"][-1]["samples_per_s"]})
other_programs.report(2)

# %%
table = pd.DataFrame(rows)
by_setting = table.groupby(["run", "world_size", "threads_per_rank", "binding"])["samples/s"]
by_setting.agg(["median", "min", "max"]).round(0).astype(int)

# %%
speed = table.groupby(["run", "world_size"])["samples/s"].median()
bound, free = speed["bound, two threads"], speed["set by the workshop"]
print(f"neither bound, one thread each:   {free[2] / free[1]:5.2f} times as fast on 2 ranks")
print(f"both bound, two threads each:     {bound[2] / bound[1]:5.2f} times")
print(f"1 rank bound, 2 ranks not:        {free[2] / bound[1]:5.2f} times")
guess.compare(free[2] / bound[1])

# %% [markdown]
# The last factor is more than perfect, and says nothing about 2 ranks: its baseline had two threads that took turns on one
# core. The published log jumps by a factor of 13 between 2 ranks and 4, just where Open MPI by default stops binding to single
# cores. That is the likely reason, and no more: the log has neither threads nor binding. Nothing in a table shows this unless
# both are in it, as they are above.
#
# The factors differ from machine to machine, with how much two spinning threads hurt on one core. And look at the speeds as
# well as at the factors: a setting can scale better and be slower throughout.
#
# ## Exercise 2: a fair baseline
#
# `runs` is a list of dictionaries with `"ranks"`, `"threads"` and `"cores"` (both of each rank) and `"samples_per_s"`. Return a
# dictionary of speed-ups with the keys `(ranks, threads)`. Leave out runs in which a rank has fewer cores than threads, and
# compare each run that is left, those on 1 rank too, with the one on 1 rank with as many threads.


# %%
def fair_speedups(runs):
    # <solution>
    fair = {(run["ranks"], run["threads"]): run["samples_per_s"] for run in runs if run["cores"] >= run["threads"]}
    return {(n, threads): speed / fair[1, threads] for (n, threads), speed in fair.items()}
    # <stub>
    # # first choose the runs that may be compared, then divide
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.fair_speedups(fair_speedups)

# %% [markdown]
# ## Remember
#
# - A long time in `Allreduce` is waiting until the clocks of the other ranks say otherwise.
# - The straggler is the rank that does not wait. Its own log looks best.
# - One slow rank costs every rank.
# - A speed-up above $N$ is a question about the baseline: its threads, and the cores it was bound to.
# - Set threads and binding yourself, and write both beside every number.
#
# **Sources.** The log of 132 to 3.2 seconds and the published tables: the ALCF's workshop material,
# github.com/argonne-lcf/sdl_ai_workshop, in 01_distributedDeepLearning. Binding by default: Open MPI 5, manual page of
# `mpirun`, section on mapping, ranking and binding. Threads that spin: OpenMP 5.2, `OMP_WAIT_POLICY`; PyTorch's notes on CPU
# threading. Stragglers in large synchronous jobs: J. Dean and L. Barroso, *The Tail at Scale* (Communications of the ACM 56,
# 2013).

# %%
ranks.stop()
