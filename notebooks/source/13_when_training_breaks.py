# %% [markdown] track="when things break"
# # When training breaks
#
# Your job hung last night. Sixty-four GPUs waited until the time-out, and this morning 63 ranks say "Watchdog caught collective
# operation timeout: WorkNCCL(SeqNum=8123, OpType=ALLREDUCE, …". Which rank was it? On which line?
#
# **You will** find the rank and the line in two jobs of sixteen ranks, with a function of your own that would find one rank
# among a thousand. One job still hangs while you look, and the other has left only logs and dumps. You'll diagnose six runs
# that went wrong, and take home a card for the day your ranks hang.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first. [05](05_ddp.ipynb) explains `torchrun`.

# %%
import inspect
import os
import signal
import time

import torch
from IPython.display import Markdown

from workshop_lib import paths, predict, ranks, scripts

from lessons import when_training_breaks as lesson

torch.set_num_threads(1)
folder = paths.BUILD / "13_when_training_breaks"
folder.mkdir(parents=True, exist_ok=True)
team = ranks.start(2)  # where your function is checked

# %% [markdown]
# ## Six faults
#
# Three plain processes train a tiny model, and average their gradients with PyTorch's `all_reduce` over *gloo*. (GPUs use *NCCL*,
# which fails differently.) In the fifth step, something goes wrong on rank 1, and only there. How many of these faults will end
# with an error message?

# %%
faults = ["raises", "is killed", "hangs", "runs out of data"]
faults += ["computes a NaN", "flips a bit of its weights"]
guess = predict(
    "In how many of the 6 cases does at least one rank end with an error?",
    low=0,
    high=6,
    unit="cases",
)
guess

# %%
met = lesson.fault_catalogue.meet(*faults)
lesson.fault_catalogue.table(met)

# %%
guess.compare(
    sum(
        any(each.end != "exit code 0" for each in of_ranks) for of_ranks in met.values()
    )
)

# %% [markdown]
# We ended only the rank that was *still running*. The faults fall into three groups.
#
# **A rank ends.** It raises, it's killed, or it simply has one batch fewer than the others. With gloo, its connections close,
# so the other ranks notice within a fraction of a second. But they only say that a connection was closed or reset by a peer,
# which isn't the cause. (With NCCL, often only the launcher notices.) Look for the rank that reports something else, ended
# first, or was killed by a signal. A `SIGKILL` out of nowhere usually means that memory ran out.
#
# **A rank is alive, but doesn't show up.** It hangs, it's stopped, or it calls its collectives in a different order. The other
# ranks wait until the time-out: 1.5 seconds here, but by default 30 minutes with gloo and 10 with NCCL, whose watchdog then
# writes the message at the top of this page. This message doesn't name the missing rank. But each rank also prints which
# collective it *last enqueued* and which it *last completed*, and a rank that enqueued fewer than the others never called the
# next one.
#
# **Nobody notices.** A slow rank makes the steps of *all* ranks longer. A NaN on one rank spreads to all ranks with the next
# average. A flipped bit gives you wrong weights and no message at all. You only find these faults by looking at numbers:
# losses, times, norms of gradients, digests of weights.
#
# ## Tonight: a job hangs
#
# A colleague's job hangs on sixteen ranks. This is what a rank does:

# %%
job = lesson.hung_ranks
for function in (job.train, job.read_batch, job.average_gradient, job.save_checkpoint):
    print(inspect.getsource(function))

# %%
tonight = lesson.hung_jobs.HungJob(folder / "tonight")
scripts.run("sh", "-c", f"tail -q -n 1 {tonight.folder}/log.*")

# %% [markdown]
# No rank has printed anything since, and none has ended. So ask them. `faulthandler` comes with Python. The job's script calls
# `faulthandler.register(signal.SIGUSR1)` at the top, so `kill -USR1 PID` makes a rank print the line it's at, even deep inside a
# collective. (Your script doesn't? Then this signal would end it. After `pip install py-spy`, `py-spy dump --pid PID` shows the
# same from outside, though on many machines only to root.)
#
# Ask twice, because a rank may just be on its way to the line where it hangs.

# %%
for _ in range(2):
    for pid in tonight.pids:
        os.kill(pid, signal.SIGUSR1)
    time.sleep(1)
size = len(tonight.pids)
logs = [(tonight.folder / f"log.{rank}").read_text() for rank in range(size)]
print("\n".join(logs[0].splitlines()[-11:]))
print(f"\nAll {size} logs have {sum(log.count('File') for log in logs)} such lines.")

# %% [markdown]
# Each line is a *frame*, which is one call of a function, and the innermost call comes first. With a thousand ranks, nobody
# could read all of them.
#
# ### Exercise 1 (normal): who is where?
#
# `ranks_by_frame` turns the answers of any number of ranks into a few lines: for each innermost frame, the ranks that are at it.
# If a rank has answered several times, only its last answer counts.
#
# <details><summary>Hint 1: the last answer</summary>
#
# `before, found, after = log.rpartition(words)` splits a log where these words occur last. If they don't occur, `found` is empty.
#
# </details><details><summary>Hint 2: a list for each key</summary>
#
# `result.setdefault(frame, []).append(rank)`
#
# </details><details><summary>Solution</summary>
#
# {solution of ranks_by_frame}
#
# </details>


# %%
def ranks_by_frame(logs):
    """The ranks at each innermost frame, as {frame: [rank, …]}.

    logs: each rank's log as a text, rank 0's first. A frame is the whole line, because
    many files have a function `forward`. Ranks without an answer are at "no answer".
    """
    # <solution>
    result = {}
    for rank, log in enumerate(logs):
        _, found, answer = log.rpartition("(most recent call first):\n")
        frame = answer.splitlines()[0].strip() if found else "no answer"
        result.setdefault(frame, []).append(rank)
    return result
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.ranks_by_frame(ranks_by_frame)

# %% [markdown]
# And who is where tonight?

# %%
for frame, at in lesson.check.written(ranks_by_frame)(logs).items():
    print(f"{len(at)} of {size} ranks, {list(at)}:\n    {frame}")
tonight.end()

# %% [markdown]
# Here, the large group waits in a collective that one rank hasn't called. That rank opens a file on a disk that doesn't
# answer.
#
# On GPUs, NCCL's calls return at once, and Python stands at the next line that waits for the GPU, such as `loss.item()`. If
# that's the same line on all ranks, you need the dumps of the next section.
#
# ## This morning: a job has hung
#
# The same script ran on other nodes, until a collective timed out. All ranks have ended, and all complain:

# %%
morning = lesson.hung_jobs.run_to_its_time_out(folder / "morning")
scripts.run("sh", "-c", f"tail -q -n 1 {morning}/log.*")

# %% [markdown]
# *All* of them gave up waiting, but these lines don't say in which collective. PyTorch's *flight recorder* remembers the last 2,000
# collectives of each rank, with their sizes and the lines that called them. When a collective times out, NCCL's watchdog writes
# a file for each rank, and `torchfrtrace` compares the files. The first error that it prints is the one to read, because the
# others follow from it. (gloo has no watchdog, so here each rank writes its file when it gives up.) Set
# `TORCH_FR_DUMP_TEMP_FILE` to a prefix that no other job has, as [job.sh](scripts/job.sh) does, or the next job overwrites
# these files.

# %%
scripts.run("torchfrtrace", "-p", "trace_", morning)

# %% [markdown]
# `torchfrtrace` names the rank that called a different collective, and shows the line of one of the *other* ranks. How could
# that rank take a different path? Look at `train` above.
#
# <details><summary>Answer</summary>
#
# Rank 11 went on to `average_gradient` in the next step when the others called `save_checkpoint`. Its clock is slow, and each
# rank decides by its own clock whether it's time to save. Let one rank decide, and broadcast its decision.
#
# </details>
#
# ## The card
#
# Copy [when_ranks_hang.md](scripts/when_ranks_hang.md) to where you work, or print it.

# %%
Markdown(filename=paths.SCRIPTS / "when_ranks_hang.md")

# %% [markdown]
# ## Diagnose it yourself
#
# Six runs went wrong on rank 1, each in a different way. The healthy run is on top.

# %%
patients = lesson.fault_catalogue.admit()
lesson.fault_catalogue.rows(patients)

# %% [markdown]
# ### Exercise 2 (normal): the diagnosis
#
# Each of the six has one of these problems on rank 1: `"is slow"`, `"hangs"`, `"runs out of data"`, `"computes a NaN"`,
# `"flips a bit of its gradient"`, or `"flips a bit of its weights"`. Replace the dots with your diagnoses.
#
# <details><summary>Hint 1: who ended, and how?</summary>
#
# Two of the six end early. In one of them, rank 1 ended by itself; in the other, it never did.
#
# </details><details><summary>Hint 2: the others</summary>
#
# If rank 1's gradient is wrong before the averaging, the mistake reaches all ranks alike. But ranks never send their weights. If
# rank 1's weights are wrong, they stay different from those of the other ranks, and rank 1's gradients lead all ranks astray. So
# compare digests: between ranks, and with those of the healthy run.
#
# </details><details><summary>Solution</summary>
#
# A: a bit of its weights, since only rank 1 has different weights. B: it ran out of data. It ended first, and without an error.
# C: it's slow. Every step of every rank takes longer, but all numbers are right. D: a NaN. E: a bit of its gradient. All ranks
# agree, but not with the healthy run. F: it hangs. The others gave up, and rank 1 was still there.
#
# </details>

# %%
diagnoses = {
    # <solution>
    "A": "flips a bit of its weights",
    "B": "runs out of data",
    "C": "is slow",
    "D": "computes a NaN",
    "E": "flips a bit of its gradient",
    "F": "hangs",
    # <stub>
    # "A": ...,  # your code here
    # "B": ...,
    # "C": ...,
    # "D": ...,
    # "E": ...,
    # "F": ...,
    # </stub>
    # </solution>
}
lesson.fault_catalogue.diagnoses(diagnoses)

# %% [markdown]
# Run E is the nastiest. Comparing digests between ranks doesn't find it, because all ranks are equally wrong. Only a second run
# would find it, or a check in which two ranks now and then compute the same step and compare their gradients. For
# [Gemini](https://arxiv.org/abs/2312.11805), Google replayed steps to find the machine that had computed wrong values.
#
# ## Deeper: nine more faults
#
# Ranks that send different shapes get an error from gloo. NCCL doesn't check sizes, so the ranks hang, or silently get wrong
# numbers.

# %%
others = ["runs out of memory", "is stopped", "is slow", "sends another shape"]
others += ["calls in another order", "flips a bit of its gradient"]
others += ["loses its data loader", "fills the disk", "finds half a checkpoint"]
lesson.fault_catalogue.table(lesson.fault_catalogue.meet(*others))

# %% [markdown]
# ## Deeper: who ended first?
#
# If a rank has ended, its exit code often tells you why. But do you get to see it? Here rank 1 dies while rank 0 sleeps for 20
# seconds:

# %%
lesson.launchers.after_a_death(folder)

# %% [markdown]
# Both launchers notice at once, and end rank 0. `mpiexec` passes the rank's exit code on, or 128 plus the signal: 137 is signal 9,
# `SIGKILL`. `torchrun` itself exits with 1. In its report, −9 is the
# `SIGKILL`, and −15 the `SIGTERM` with which it ended rank 0. `srun` waits for the other tasks, unless you give it
# `--kill-on-bad-exit=1` or your cluster sets that for you.
#
# ## Deeper: stop and look
#
# If your code runs to its end and is merely wrong, stop it halfway. Write `breakpoint()` in a rank cell: every rank stops there
# in Python's debugger, and a prompt opens below the cell. What you type goes to all ranks: `v` shows their variables, `n` runs
# the next line, and `c` lets them go on. `@1 v` asks rank 1 alone.
#
# One of these ranks gets the mean wrong. Remove the `#`, run the cell again, and find out which:

# %%
# %%ranks
from mpi4py import MPI

comm = MPI.COMM_WORLD
mine = 10.0 * (comm.rank + 1)
# breakpoint()
total = comm.allreduce(mine)
mean = total / (comm.size + comm.rank)
print("done")

# %% [markdown]
# ## Deeper: out of memory
#
# Training fits, but the job runs out of memory in its first validation. The error names the line that asked for the last few
# megabytes. But what had taken the rest of the memory?

# %%
tokens = [torch.randn(2_048, 256) for _ in range(6)]
mlp = torch.nn.Sequential(
    torch.nn.Linear(256, 1_024), torch.nn.GELU(), torch.nn.Linear(1_024, 256)
)


def validate():
    loss_sum = 0.0
    for x in tokens:
        loss = (mlp(x) - x).square().mean()
        loss_sum = loss_sum + loss
    return loss_sum / len(tokens)


# %% [markdown]
# On a GPU, you'd call `torch.cuda.memory._record_memory_history()` at the start and `torch.cuda.memory._dump_snapshot("oom.pickle")`
# where the error is caught, and open the file at [pytorch.org/memory_viz](https://pytorch.org/memory_viz). On a CPU, the profiler
# records much the same: each allocation, with its address, its bytes and who asked for it, and when the address is free again. So you
# can list what's alive at the peak:

# %%
import json

import pandas as pd

os.environ["KINETO_LOG_LEVEL"] = "6"  # the profiler reports nothing but errors


def at_peak(function):
    with torch.profiler.profile(profile_memory=True, with_stack=True) as recorded:
        function()
    recorded.export_chrome_trace(str(folder / "memory.json"))
    events = json.loads((folder / "memory.json").read_text())["traceEvents"]
    calls = [event for event in events if event.get("cat") == "python_function"]
    alive = {}  # for each address: who asked for it, and its MB
    most = []
    for event in sorted(
        (event for event in events if event["name"] == "[memory]"),
        key=lambda event: event["ts"],
    ):
        address, nbytes = event["args"]["Addr"], event["args"]["Bytes"]
        if nbytes < 0:
            alive.pop(address, None)
            continue
        around = [
            call["name"]
            for call in calls
            if call["ts"] <= event["ts"] <= call["ts"] + call["dur"]
        ]
        alive[address] = (around[-1].partition(" of Tensor")[0], nbytes / 1e6)
        if sum(mb for _, mb in alive.values()) > sum(mb for _, mb in most):
            most = list(alive.values())
    alive_then = pd.DataFrame(most, columns=["who asked", "MB"])
    by_caller = alive_then.groupby("who asked")["MB"].agg(tensors="count", MB="sum")
    return by_caller.sort_values("MB", ascending=False).round(1)


at_peak(validate)

# %% [markdown]
# Six batches went through one after the other, and at the peak, the activations of all six are alive. Nobody will run a
# backward pass here. But `loss_sum` is a tensor, and its graph keeps everything that a backward pass would need.
#
# *Try it:* put `@torch.no_grad()` above `validate`, and run both cells again. How many megabytes are alive at the peak now?
#
# ## Deeper: loss spikes
#
# Nothing hangs and nobody is killed, but around step 70 the loss climbs from 0.3 to more than 20. Should you wait, skip the
# data, or stop the run? That depends on the cause. Here are three such runs, of four ranks on MNIST:

# %%
spiking = lesson.loss_spikes.SpikeClinic()
runs = {name: spiking.run(name) for name in ("X", "Y", "Z")}
lesson.loss_spikes.spikes(runs)

# %% [markdown]
# The lower row shows the norm of each rank's gradient *before* averaging, which costs almost nothing to log, although few
# scripts do it. To tell the causes apart, go back to the checkpoint of step 60, before the spike. Replay the steps with the
# same batches, and then with other batches:

# %%
for name in runs:
    display(spiking.replay(name))

# %% [markdown]
# ### Exercise 3 (warm-up): what caused the spike?
#
# Each spike has one of these causes: `"a bad batch"` (on one rank, somebody forgot to divide the pixels by 255), `"a wrong
# gradient"` (one rank's hardware computed it wrongly, once), or `"the learning rate"` (after a restart, it came back 40 times
# too high).
#
# <details><summary>Hint</summary>
#
# Does one rank stick out, or do all? And a hardware fault doesn't happen a second time.
#
# </details><details><summary>Solution</summary>
#
# X: a wrong gradient, because replaying the same batches goes well. Y: a bad batch, because only the same batches spike again.
# Z: the learning rate. All ranks' norms grow together, and the loss spikes whatever the batches are. (When does the loss jump?
# In Y, in step 70 itself. In X and Z, only in step 71, after the optimizer has taken the wrong step.)
#
# </details>

# %%
causes = {
    # <solution>
    "X": "a wrong gradient",
    "Y": "a bad batch",
    "Z": "the learning rate",
    # <stub>
    # "X": ...,  # your code here
    # "Y": ...,
    # "Z": ...,
    # </stub>
    # </solution>
}
lesson.loss_spikes.causes(causes)

# %% [markdown]
# After a wrong gradient, *rewind*: go back to the checkpoint, take the same batches, and take the node out of the job. With a
# bad batch, rewind and *skip* it. If it's the learning rate, rewind and lower it, because skipping only delays the next spike.
# Waiting is cheapest, but in runs X and Y the loss is still above its old value 50 steps later.
#
# In large runs, causes are rarely this clean. The team of PaLM rewound about 100 steps and skipped 200 to 500 batches, some
# twenty times, and the same spike didn't come back. But when they trained on the skipped batches from another checkpoint, there
# was no spike either. The spike needed both: those batches and the weights of that moment.
#
# *Gradient clipping* limits the damage before anybody looks. (It's no cure: PaLM used it, too.) If the averaged gradient's norm
# is above a limit, it's scaled down to that limit. (Clip after averaging, see [05](05_ddp.ipynb).) Here's run Y again, with a
# limit of 1:

# %%
lesson.loss_spikes.clipped(
    runs["Y"], spiking.run("Y", largest_norm=1.0), largest_norm=1.0
)

# %% [markdown]
# The bad batch still shows in its own step, because clipping doesn't change the loss. But it keeps the
# optimizer's step short, so the spike is over one step later.
#
# *Break it:* clip run Z in the same way. Does that repair the run?
#
# ## Remember
#
# - Most of the ranks that complain are fine. Look for the one that ended first, or by a signal, or that says something different.
# - When a rank ends, gloo's ranks notice at once, and NCCL's often don't. When it hangs, they notice at the time-out. When it
#   computes wrong numbers, nobody notices, unless you look at losses, norms and digests.
# - Ask all ranks for their line, twice, and group them by it. Suspect the smallest group, and any rank that doesn't answer.
# - Set `TORCH_FR_DUMP_TEMP_FILE` in every job script, before you need it.
#
# You know what broke. In [13b](13b_runs_that_survive.ipynb), the job goes on anyway.
#
# **Sources.** PyTorch's documentation of the
# [flight recorder](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html) and of
# [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html). [py-spy](https://github.com/benfred/py-spy). Slurm's manual
# page of `srun`. Chowdhery et al., [*PaLM*](https://arxiv.org/abs/2204.02311), section 5.1, for loss spikes.

# %%
ranks.stop()
