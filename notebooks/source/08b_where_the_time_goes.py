# %% [markdown] track="measuring"
# # Where the time goes
#
# "Our ranks spend 60 % of every step in `Allreduce`. We need a faster network." That conclusion can cost a lot of money.
# `Allreduce` is also where a rank waits for the others, so the same 60 % may mean that one rank has a hot GPU, a slow disk,
# or another program on its cores. How can you tell sending from waiting?
#
# **You will** record what every rank does with its time, step by step, and find the slow rank, even if each host has a clock of
# its own. Then you'll make a speed-up of more than 2 on 2 ranks on purpose, and write the function that would have caught it.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do
# [08_scaling_curves](08_scaling_curves.ipynb) first.

# %%
import statistics

from workshop_lib import TrainOptions, paths, predict, profile, ranks

from lessons import where_the_time_goes as lesson

sizes = profile.current()
team = ranks.start(sizes.ranks)
team.push(steps=2 * sizes.steps)
team

# %% [markdown]
# ## A timeline
#
# In each step of synchronous SGD the ranks meet once, in the `Allreduce` of the gradients. A rank's own clock can't tell why it
# spends a long time in there. With the clocks of *all* ranks, you can tell. A rank *waits* from the moment it arrives until the
# last rank arrives, and from then on all of them *communicate*. Everything else counts as *computing*, including reading data.
#
# `traced` trains for some steps and returns the rank's *trace*: when each step began and ended, and when the rank was in
# `Allreduce`. All ranks run on one host here, so they read the same clock.

# %%
# %%ranks
from mpi4py import MPI

from lessons import where_the_time_goes as lesson

comm = MPI.COMM_WORLD
even = lesson.traced(steps)

# %% [markdown]
# ## A straggler
#
# Now the last rank sleeps for 20 ms in each step. In a real job, the reason may be a hot GPU, or a shard with longer sentences.

# %%
guess = predict(
    "What share of its time will rank 0 spend waiting?", low=0, high=100, unit="%"
)
guess

# %%
# %%ranks
late = lesson.traced(steps, late_ms=20 if comm.rank == comm.size - 1 else 0)

# %%
late_trace = team.pull("late")
even = lesson.timeline(team.pull("even"), last_steps=6)
late = lesson.timeline(late_trace, last_steps=6)
lesson.step_figures.steps({"all ranks alike": even, "the last rank 20 ms late": late})

# %%
guess.compare(100 * late.shares()[0]["waiting"])

# %% [markdown]
# Each dashed line marks where the first rank begins a step. Look at the colors. Every rank but one waits in each step, and the
# one that *never waits* is the slow one. (If your last rank waits, too, another program on your machine has slowed down a
# healthy rank.) At first sight, the logs tell the opposite story. A healthy rank's log looks bad, with "most of the step in
# `Allreduce`", and the slow rank's log looks perfect. But the network isn't to blame.
#
# And everyone pays for the straggler: what one rank loses in a step, every rank loses. The more ranks there are, the more
# likely it is that one of them is late.
#
# ### Exercise 1 (normal): name the straggler
#
# A picture of 1,000 ranks helps nobody. Write the function that a monitor of a large job would call. The monitor only knows
# when each rank arrived at each `Allreduce`. How much of its time does each rank wait, and which rank is everyone waiting for?
#
# <details><summary>Hint 1</summary>
#
# Take one step, in which the ranks arrive after 3, 5 and 4 seconds. When can the `Allreduce` begin? So how long does each of
# them wait?
#
# </details><details><summary>Hint 2</summary>
#
# Add up `max(step) - step[rank]` over the steps, for each rank, and divide by `seconds`. If `waiting` is the list of these
# shares, `waiting.index(x)` is the rank whose share is `x`. Which share do you look for?
#
# </details><details><summary>Solution</summary>
#
# {solution of straggler}
#
# </details>


# %%
def straggler(arrived_s, seconds):
    """(the share of its time that each rank waits, the rank that the others wait for).

    arrived_s: for each step, the moment when each rank arrived at the Allreduce.
    seconds: how long all steps took. The shares are a list of fractions.
    """
    # <solution>
    waiting = []
    for rank in range(len(arrived_s[0])):
        waiting_s = sum(max(step) - step[rank] for step in arrived_s)
        waiting.append(waiting_s / seconds)
    return waiting, waiting.index(min(waiting))
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.straggler(straggler)

# %% [markdown]
# Ask it about the run with a late rank:

# %%
arrived_s, _, seconds = lesson.tracing.arrivals(late_trace)
waiting, rank = lesson.check.written(straggler)(arrived_s, seconds)
print(f"waiting: {[f'{share:.0%}' for share in waiting]}, straggler: {rank}")

# %% [markdown]
# If a different rank is late in each step, as in [07e](07e_waiting_less.ipynb), all ranks wait about equally long, and no
# rank is to blame.
#
# ## Two hosts, two clocks
#
# On several hosts, each host has its own clock. Let's pretend that the last rank runs on a second host with a clock that's 5 s
# behind, and call your function again:

# %%
hosts = [*late_trace[:-1], lesson.tracing.shifted(late_trace[-1], -5)]
arrived_s, left_s, seconds = lesson.tracing.arrivals(hosts)
waiting, rank = lesson.check.written(straggler)(arrived_s, seconds)
print(f"waiting: {[f'{share:.0%}' for share in waiting]}, straggler: {rank}")

# %% [markdown]
# Now a healthy rank gets the blame, and the last rank seems to wait for longer than the run took. But you don't need better
# clocks. Nobody can leave an `Allreduce` before the last rank has arrived, and then all ranks leave it at almost the same
# moment. So in each step there's one moment that you can find on all clocks: the end of the collective.
#
# ### Exercise 2 (warm-up): align the clocks
#
# With this function you can compare traces from any number of hosts. How far is each rank's clock ahead of rank 0's? Sometimes
# the operating system lets a rank leave late, so take the median over the steps.
#
# <details><summary>Hint</summary>
#
# In one step, ranks 0, 1 and 2 leave at 3.0, 8.0 and 2.5 seconds by their own clocks. How far is rank 1's clock ahead, and how
# far rank 2's? `statistics.median` takes a list.
#
# </details><details><summary>Solution</summary>
#
# {solution of clock_offsets}
#
# </details>


# %%
def clock_offsets(left_s):
    """How many seconds each rank's clock is ahead of rank 0's: a list, 0 for rank 0.

    left_s: for each step, the moment when each rank left the Allreduce, by its own
    clock. The result is the median over the steps.
    """
    # <solution>
    offsets = []
    for rank in range(len(left_s[0])):
        ahead_s = [step[rank] - step[0] for step in left_s]
        offsets.append(statistics.median(ahead_s))
    return offsets
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.clock_offsets(clock_offsets)

# %%
offsets = lesson.check.written(clock_offsets)(left_s)
aligned_s = [
    [moment_s - ahead_s for moment_s, ahead_s in zip(step, offsets, strict=True)]
    for step in arrived_s
]
waiting, rank = lesson.check.written(straggler)(aligned_s, seconds)
print(f"clocks ahead of rank 0's: {[f'{ahead_s:.3f} s' for ahead_s in offsets]}")
print(f"waiting: {[f'{share:.0%}' for share in waiting]}, straggler: {rank}")

# %% [markdown]
# With aligned clocks, your function blames the right rank again. (Ranks don't leave a collective at exactly the same moment,
# so the offsets have a small error. Don't look for delays shorter than that.)
#
# ## More than perfect
#
# Here's a published log that looks impossible: 132, 77, 5.8 and 3.2 seconds per epoch on 1, 2, 4 and 8 ranks. That's 23 times
# as fast on 4 ranks! Two settings together can cause such numbers, and a third makes them worse. A launcher can *bind* a rank
# to one core, or leave it free to use any. And a rank can compute with one thread or with two.

# %%
lesson.figures.bound_or_free()

# %% [markdown]
# Only one of the four squares is bad: there, two threads take turns on one core. It gets worse if a thread with nothing to do
# *spins*, which means that it looks for work again and again instead of sleeping. A spinning thread occupies the core while
# the other thread has work to do. Many OpenMP libraries let threads spin by default. This workshop normally turns that off.
#
# Nobody chooses the bad square. But job scripts often set `OMP_NUM_THREADS`, and Open MPI binds by default: each rank to a
# single core if the job has one or two ranks, and to a whole processor if it has more. So a scaling table can move from the bad
# square to a good one *between two of its rows*.
#
# Let's make such a table. One rank runs in the bad square, and for comparison in both free squares. We tell two threads to
# spin (`OMP_WAIT_POLICY=ACTIVE`), so the factor you'll see is close to the worst case. Then two ranks run as everywhere else
# in this workshop: free, with one thread each.

# %%
guess = predict(
    "2 free ranks against 1 rank in the bad square: "
    "how many times as fast will they seem?",
    low=0,
    high=12,
    unit="times",
)
guess

# %%
jobs = [
    lesson.bound_jobs.PlacedJob(ranks=1, bound=True, threads=2),
    lesson.bound_jobs.PlacedJob(ranks=1, bound=False, threads=1),
    lesson.bound_jobs.PlacedJob(ranks=1, bound=False, threads=2),
    lesson.bound_jobs.PlacedJob(ranks=2, bound=False, threads=1),
]
speeds = lesson.bound_jobs.measure(
    jobs, min(2, sizes.repeats - 1), sizes.sweep_samples, 2 * sizes.timeout_s
)
speeds

# %%
lesson.figures.bound_or_free(speeds)

# %%
by_job = speeds.set_index(["ranks", "bound", "threads"])["samples_per_s"]
guess.compare(by_job[2, False, 1] / by_job[1, True, 2])

# %% [markdown]
# Each square says how many times as fast the run on two ranks seems if this square is the baseline. If a factor is above 2,
# the baseline is the reason. The published log jumps by a factor of 13 between 2 ranks and 4, exactly where Open MPI stops
# binding to single cores. That's probably why, but we can't be sure, because the log records neither threads nor binding. (If
# your factor for two free threads is large, too, another program took one of the cores.)
#
# ### Exercise 3 (normal): a fair baseline
#
# Write a function that doesn't fall for such a baseline. Leave out every run in which a rank has fewer cores than threads. Then
# compare each remaining run with the run on 1 rank that has *the same number of threads*.
#
# <details><summary>Hint 1</summary>
#
# First choose the runs that may be compared, then divide.
#
# </details><details><summary>Hint 2</summary>
#
# Put the speeds of the remaining runs into a dictionary with the keys `(ranks, threads)`. The baseline of `(n, threads)` is the
# entry `(1, threads)`.
#
# </details><details><summary>Solution</summary>
#
# {solution of fair_speedups}
#
# </details>


# %%
def fair_speedups(runs):
    """Speed-ups with the keys (ranks, threads), 1 rank included.

    Each is against 1 rank with the same number of threads. runs: dictionaries with
    "ranks", "threads" and "cores" (both per rank), and "samples_per_s". Runs in which
    a rank has fewer cores than threads are left out. Where ranks share cores, "cores"
    is each rank's share.
    """
    # <solution>
    fair = {
        (run["ranks"], run["threads"]): run["samples_per_s"]
        for run in runs
        if run["cores"] >= run["threads"]
    }
    return {
        (n, threads): speed / fair[1, threads] for (n, threads), speed in fair.items()
    }
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.fair_speedups(fair_speedups)

# %% [markdown]
# Now hand your function what you've just measured. Does the impossible number survive?

# %%
speedups = lesson.check.written(fair_speedups)(speeds.to_dict("records"))
{key: round(speedup, 2) for key, speedup in speedups.items()}

# %% [markdown]
# *Beat it:* hand your function a run on 2 ranks with two threads each, and no other run: `[{"ranks": 2, "threads": 2,
# "cores": 2, "samples_per_s": 9000}]`. What should the function do if nobody measured the baseline?
#
# ## Deeper: inside a step
#
# PyTorch's profiler records the start and the end of every operation. Here it records one step of DDP and one of FSDP, after
# some steps to warm up.

# %%
traces = paths.BUILD / "08b_traces"
traces.mkdir(parents=True, exist_ok=True)
team.push(traces=str(traces))

# %%
# %%ranks
import os

import torch.profiler
from torch.profiler import ProfilerActivity, schedule

from workshop_lib import TrainOptions

os.environ["KINETO_LOG_LEVEL"] = "6"  # the profiler reports nothing but errors
sixth_step = schedule(wait=4, warmup=1, active=1, repeat=1)


class Profiler(torch.profiler.profile):
    def on_step(self, event):
        """Called by the trainer after each step."""
        self.step()


for backend in ("ddp", "fsdp"):
    with Profiler(activities=[ProfilerActivity.CPU], schedule=sixth_step) as profiler:
        lesson.train(TrainOptions(backend=backend, max_steps=8), callbacks=[profiler])
    profiler.export_chrome_trace(f"{traces}/{backend}_rank{comm.rank}.json")

# %% [markdown]
# Do messages travel while the rank computes? Communication is called *exposed* if the rank computes nothing meanwhile. Only
# exposed communication costs you time, so look for it in every trace.

# %%
lesson.figures.beside_messages(
    {name: traces / f"{name}_rank0.json" for name in ("ddp", "fsdp")}
)

# %% [markdown]
# Here nearly all communication should be exposed. DDP sends gradients in buckets, but the gradients of this small network fit
# into a single bucket, so the allreduce can't begin before the backward pass has ended. FSDP gathers the weights of each
# layer before the layer computes, and on a CPU it waits for each message right away. On a GPU, messages have streams of their
# own, so the weights of the next layer travel while the current layer computes.
#
# To see every operation, open a file of `build/08b_traces` in [Perfetto](https://ui.perfetto.dev), which reads it in your
# browser without sending it anywhere. On a GPU, add `ProfilerActivity.CUDA` to the activities, and each stream gets a row of
# its own. NVIDIA's Nsight Systems (`nsys profile`) also records what the rest of the machine does.
#
# And how do you get the arrival times for your two functions on a GPU? There, a collective begins when its stream gets to it,
# which can be long after Python called it. So record a `torch.cuda.Event(enable_timing=True)` on the stream before the
# collective and another one after it. Once the GPU has passed both events, `before.elapsed_time(after)` is the collective's
# duration in milliseconds. Since all ranks leave together, the straggler is the rank with the *shortest* collectives, and you
# need no common clock. PyTorch's *flight recorder*, which [13](13_when_training_breaks.ipynb) reads, keeps such durations for
# NCCL's last collectives if you set `TORCH_NCCL_ENABLE_TIMING=1`. (Its `time_created_ns` isn't the time of arrival, but the
# time when Python called the collective.)
#
# ## Deeper: arithmetic or memory?
#
# Does your processor compute, or does it wait for numbers from memory? A layer's *arithmetic intensity* is the number of its
# operations divided by the bytes that it has to move. If the intensity is low, the layer can't run faster than memory delivers
# its numbers, however fast the processor is. The next cell measures both limits on rank 0, and times the layers of two
# networks: the workshop's, and a small vision transformer, `vit`.

# %%
# %%ranks

roof = None
if comm.rank == 0:
    roof = (
        lesson.flops.limits(),
        lesson.flops.layers("workshop") + lesson.flops.layers("vit"),
    )

# %%
lesson.figures.roofline(*team.pull("roof")[0])

# %% [markdown]
# The line is the roof that this machine sets: to the left of the dotted line, memory is the limit, and to the right of it,
# arithmetic. A layer far below the roof is limited by something else. For example, small layers spend most of their time
# starting operations. (A layer that fits into a cache may lie above the roof.)
#
# For a large job, a single number says how well the processors are used, the *model-FLOPs utilization*: the operations that
# the model needs for its samples, divided by what the processors could have done in the same time. You've just measured what
# one rank can do. If each rank has cores of its own, this is the utilization:

# %%

network = "workshop"
record = team.train(
    TrainOptions(backend="ddp", network=network, epochs=1, train_samples=3000)
)
needed_per_s = lesson.flops.per_sample(network) * record["epochs"][-1]["samples_per_s"]
limits, _ = team.pull("roof")[0]
print(f"utilization {needed_per_s / (team.n * limits.flops_per_s):.1%}")

# %% [markdown]
# Meta reports a utilization of 38 to 43 % for Llama 3. *Try it:* with `network = "vit"`, does it rise or fall?
#
# ## Deeper: a faster step
#
# Before you pay for more GPUs, make a step faster on one. In the trace of a step, look at the row of the stream that
# computes:
#
# - *Gaps.* The GPU waits for Python or the loader. Call `.item()`, `.cpu()` and `print(loss)` rarely, because each of these
#   calls makes Python wait for the GPU, and afterwards the GPU has to wait for Python.
# - *Many short kernels.* A compiler can fuse them.
# - *Copies from the host while nothing is computed.* Use `pin_memory=True` in the loader, and `.to(device, non_blocking=True)`.
#
# `torch.compile` records what your model computes as *graphs*, fuses operations, and generates kernels: in Triton for a GPU,
# in C++ for a CPU, where you need a C++ compiler. More than 180 models trained 1.41 times as fast on an A100, on average
# (Ansel et al. 2024). Here, a backend that only counts graphs takes the place of the one that generates kernels. How many
# graphs does this backend get for batches of 64, 64, 32 and 16?

# %%
import logging

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

logging.disable(logging.WARNING)
graphs = []


def count(graph, inputs):
    graphs.append(graph)
    return graph.forward


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 512)

    def forward(self, x):
        return self.linear(x).relu()


class Net(nn.Module):
    def __init__(self, logs=False):
        super().__init__()
        self.first, self.second, self.third, self.fourth = (Block() for _ in range(4))
        self.logs = logs

    def forward(self, x):
        x = self.second(self.first(x))
        if self.logs:
            x.mean().item()
        return self.fourth(self.third(x))


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
sharded = Net()
for part in (*sharded.children(), sharded):
    fully_shard(part)
in_ddp = DistributedDataParallel(Net(), bucket_cap_mb=1)
models = {
    "as it is": Net(),
    "with .item() in it": Net(logs=True),
    "in DDP": in_ddp,
    "in FSDP2": sharded,
}
rows = {}
for name, model in models.items():
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=count)
    rows[name] = []
    for batch in (64, 64, 32, 16):
        graphs.clear()
        compiled(torch.randn(batch, 512)).sum().backward()
        rows[name].append(len(graphs))
dist.destroy_process_group()
logging.disable(logging.NOTSET)
pd.DataFrame(rows, index=["64 images", "64 again", "32", "16"]).T

# %% [markdown]
# When the batch's size first changes, PyTorch compiles again, this time for any size. If you drop the last, smaller batch of
# each epoch, PyTorch doesn't have to compile twice. Where PyTorch can't follow your Python, as at `.item()`, it breaks the
# graph, and you gain less. `TORCH_LOGS=graph_breaks,recompiles` shows these places. If you compile *after* wrapping the model
# in DDP, PyTorch cuts the graph at DDP's buckets, so that gradients still travel during the backward pass. In FSDP2, the
# graph breaks before and after each block, where FSDP gathers weights and frees them. But equal blocks share a graph, so four
# blocks need only two graphs: one for the first block, whose input needs no gradient, and one for the other three.
#
# If your model and its optimizer don't fit on one GPU, start from [trainer.py](scripts/trainer.py), which has FSDP2 and
# sharded checkpoints. With `--compile`, this script compiles each block before `fully_shard` wraps it, which leads to the same
# graphs.
#
# ## Remember
#
# - A rank that spends a long time in `Allreduce` may be sending, or just waiting. Its own clock can't tell which, but the
#   clocks of all ranks can. The ends of collectives align these clocks.
# - The straggler is the rank that doesn't wait. Every rank pays for it.
# - If a speed-up is above $N$, ask about the baseline: how many threads did it have, and which cores was it bound to?
# - Set threads and binding yourself, and report both with every speed that you measure.
# - In a trace, look for exposed communication.
#
# Next: [08c_forecasting](08c_forecasting.ipynb), where stragglers come back as a term in the forecast.
#
# **Sources.** The log of 132 to 3.2 seconds: github.com/argonne-lcf/sdl_ai_workshop, in 01_distributedDeepLearning. Binding by
# default: Open MPI 5, manual page of `mpirun`. Threads that spin: OpenMP 5.2, `OMP_WAIT_POLICY`. S. Williams et al.,
# *Roofline* (Communications of the ACM 52, 2009). Model-FLOPs utilization: A. Chowdhery et al., *PaLM* (arXiv:2204.02311,
# appendix B); A. Dubey et al., *The Llama 3 Herd of Models* (arXiv:2407.21783). Compiling: J. Ansel et al., *PyTorch 2*
# (ASPLOS 2024), and PyTorch's [questions on torch.compile](https://docs.pytorch.org/docs/stable/torch.compiler_faq.html), for
# DDP's buckets; [torchtitan](https://github.com/pytorch/torchtitan), for compiling blocks. Durations on a GPU: PyTorch's
# documentation of `torch.cuda.Event`, and PyTorch's tutorial *Flight Recorder for Debugging Stuck Jobs*. Stragglers: J. Dean
# and L. Barroso, *The Tail at Scale* (Communications of the ACM 56, 2013).

# %%
ranks.stop()
