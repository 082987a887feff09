# %% [markdown] track="when things break"
# # When training breaks
#
# Meta trained the largest Llama 3 on 16,384 GPUs. In 54 days, that job was interrupted 466 times, once every three hours. Yet
# more than 90 % of the time went into training. Your jobs have fewer GPUs, but losing one rank still takes all the others down
# with it. What does that look like from the outside, and how do you lose seconds instead of hours?
#
# **You will** let ranks fail in fifteen ways and learn to tell them apart, write a checkpoint that survives a crash at any
# moment, work out how often to save, and write a supervisor that starts lost ranks again. Then *fault
# injection* takes a rank from your training every 20 steps. It should keep more than 80 % of its speed, and end with exactly
# the same weights.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first. [05](05_ddp.ipynb) explains `torchrun`.

# %%
import math
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from workshop_lib import ranks
from workshop_lib.judge import own_or_library
from workshop_lib.lessons.when_training_breaks import checkpoints, fault_catalogue, fault_injection, figures
from workshop_lib.lessons.when_training_breaks import judge as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, MNIST, SCRIPTS
from workshop_lib.ranks import mpi, scripts

torch.set_num_threads(1)
sizes = profile.current()
quick = sizes.name == "quick"
folder = BUILD / "13_when_training_breaks"
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## A catalogue of faults
#
# In a job of your own, there's no library that tells you what happened. So let's look at plain ranks: three processes that
# train a tiny model, and average their gradients with PyTorch's `all_reduce` over gloo. In the fifth step, something goes wrong
# on rank 1, and on rank 1 alone. How many of these faults will end with an error message?

# %%
faults = ["raises", "is killed", "runs out of memory", "hangs", "is stopped", "is slow", "runs out of data"]
faults += ["sends another shape", "calls in another order", "computes a NaN", "flips a bit of its gradient"]
faults += ["flips a bit of its weights", "loses its data loader", "fills the disk", "finds half a checkpoint"]
guess = predict("In how many of the 15 cases does at least one rank end with an error?", low=0, high=15, unit="cases")
guess

# %%
met = fault_catalogue.meet(*faults)
fault_catalogue.table(met)

# %%
guess.compare(sum(any(each.end != "exit code 0" for each in of_ranks) for of_ranks in met.values()))

# %% [markdown]
# All of it is real: the ranks were processes, and they ended as the table says. (We ended those that were *still running* or
# *stopped*. The memory was limited for that one process, and a limit on the size of its files stood for the full disk.) Read
# the table in three groups.
#
# **A rank ends.** It may raise, be killed, or simply have one batch fewer than the others. The kernel closes its connections,
# so the other ranks know within milliseconds. But look at what *they* say: "Connection closed by peer". That isn't the cause.
# With a thousand ranks, 999 will say it. Look for the rank that says something else, or that ended first, or that was ended by
# a signal. `SIGKILL` out of nowhere usually means that the node ran out of memory, because that's how the kernel makes room.
#
# **A rank is alive, but doesn't show up.** It hangs, it's stopped, or it calls its collectives in a different order. The other
# ranks wait until the time-out: 1.5 seconds here, but by default 30 minutes with gloo and 10 with NCCL. The message doesn't
# say who was missing: a rank waits for its neighbor, which may itself be waiting. It looks the same when a whole node loses
# its power or its network, because then nobody is left to close the connections. With NCCL, even a rank that was killed may
# look like this.
#
# **Nobody notices.** A slow rank slows everyone down. A NaN on one rank is on all ranks after the next average. A flipped bit
# gives you wrong weights and no message at all. Only numbers that you compare can tell: the step time, the loss, and a digest
# of the weights across ranks. (A slow rank makes the steps of *all* ranks longer. To find it, time what each rank computes,
# without the collectives.)
#
# The workshop's own ranks name the culprit for you, because a supervisor watches each of them. (This cell fails on purpose.)

# %%
team = ranks.start(sizes.ranks)

# %%
# %%ranks --catch
import os
import signal

from mpi4py import MPI

if MPI.COMM_WORLD.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
MPI.COMM_WORLD.Barrier()

# %%
team = ranks.start(3)

# %% [markdown]
# ## A checkpoint for any moment
#
# After a failure you start again from the last checkpoint. So it has to be there, and it has to be whole, no matter when the
# rank that writes it dies. In the catalogue, one rank found half a checkpoint. How did that get there?
# `torch.save(state, "model.pt")` empties the old file first, and then writes the new one, piece by piece. If the job dies in
# between, both are gone.
#
# ### Exercise 1 (normal): save
#
# With your `save`, there's a whole checkpoint at `path` at any moment: either the old one or the new one. `path` is a
# `pathlib.Path`, and may exist already. If something goes wrong, the error should get through, so that somebody notices.
#
# <details><summary>Hint 1</summary>
#
# You can't write a file in a single step. But is there something you can do with a whole file in a single step?
#
# </details><details><summary>Hint 2</summary>
#
# `os.replace(a, b)` renames the file `a` to `b`. If there's a `b` already, the new one takes its place, and there's never a
# moment without a `b`.
#
# </details><details><summary>Solution</summary>
#
# {solution of save}
#
# </details>


# %%
def save(state, path):
    """Write `state` so that `torch.load(path)` gives it back. At any moment, the file is the old one or the new one."""
    # <solution>
    with open(f"{path}.part", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())  # or a power cut may leave an empty file with the right name
    os.replace(f"{path}.part", path)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.save(save)

# %% [markdown]
# Renaming is a single step only within one file system, so the temporary file has to be in the same folder. The solution also
# calls `os.fsync`. That's for power cuts: without it, the new name may reach the disk before the bytes do. When only a *process*
# dies, the operating system still writes what it has.
#
# *Break it:* write the file to `/tmp` first, and move it with `shutil.move`. What does that do if the checkpoint is on a network
# drive?
#
# ## How often?
#
# A checkpoint costs time, and so does training everything again since the last one. If a save takes $c$ seconds, and a failure
# comes every $M$ seconds on average, you save every $\tau$ seconds of training:
#
# $$\text{share of the time lost} \;\approx\; \underbrace{\frac{c}{\tau}}_{\text{saving}} \;+\;
# \underbrace{\frac{\tau}{2M}}_{\text{half an interval, again}}$$
#
# The restart costs time, too. But that part is the same for every $\tau$, so we can leave it out.
#
# ### Exercise 2 (warm-up): the best interval
#
# Return the $\tau$ for which this is smallest. It's a single line, and J. W. Young published it in 1974.
#
# <details><summary>Hint 1</summary>
#
# One part falls with $\tau$, and the other grows. Where the sum is smallest, its derivative is zero.
#
# </details><details><summary>Hint 2</summary>
#
# The derivative is $-c/\tau^2 + 1/(2M)$.
#
# </details><details><summary>Solution</summary>
#
# {solution of interval_s}
#
# </details>


# %%
def interval_s(save_s, mtbf_s):
    """Seconds of training between two checkpoints, given a checkpoint's seconds and the mean ones between failures."""
    # <solution>
    return math.sqrt(2 * save_s * mtbf_s)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.interval_s(interval_s)

# %% [markdown]
# Is the formula right, although it leaves out failures while saving, or two failures in one interval? The next cell simulates
# a job with random failures, and tries many intervals. Every gray dot is one simulated job; the curve is the exact
# expectation. In this example a save takes a minute and failures come every three hours, as in the Llama job.

# %%
figures.checkpoint_interval(save_s=60, mtbf_s=3 * 3600, restart_s=300, jobs=5 if quick else 30)

# %% [markdown]
# The minimum is wide: saving twice too often or half as often as you should costs you only a little. So don't worry about the
# exact value, but do worry about a factor of ten. And both numbers under the root are yours to change: a failure that comes
# half as often is worth as much as a checkpoint that takes half as long.
#
# ## Start them again
#
# Something has to notice that a rank is gone, end the ranks that are left, and start all of them again. `torchrun` does that
# with `--max-restarts`. But after each failure, every new process imports PyTorch and reads the data again. How much does that
# cost when ranks are lost again and again?
#
# You'll find out by injecting faults: your training runs once undisturbed, and then with a fault in every 20 steps, at a random
# moment on a random rank. The rank is killed, crashes, raises, or is stopped. (Under `torchrun` it's only killed, because the
# other ranks would notice a stopped one only at the time-out.) Only steps that weren't done before count. The training
# script, [elastic.py](scripts/elastic.py), saves after *every* step with the function above, and a step depends only on its
# number and on the state that was saved. So a training that continues ends with exactly the same weights.

# %%
guess = predict("What share of its speed does training keep under torchrun, with a fault every 20 steps?", 0, 100, "%")
guess

# %%
# Without the long variable, the new ranks of torchrun 2.13 hung on a single machine when we tried it.
scores, options = {}, ["--data", MNIST, "--batch", 128 if quick else 1024, "--steps"]
torchrun = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "torchrun", "--standalone", "--local-addr", "127.0.0.1"]
torchrun += ["--nproc-per-node", sizes.ranks]
if not quick:  # it takes a minute
    command = [*torchrun, "--max-restarts", 99, SCRIPTS / "elastic.py", *options, 60]
    scores["torchrun"] = fault_injection.score(command, kinds=["kill"])
    print(scores["torchrun"])
    display(guess.compare(100 * scores["torchrun"].share))

# %% [markdown]
# The weights are the same, so nothing was lost but time. But where did all this time go? Not into lost steps, since there's a
# checkpoint after each of them. It went into starting Python, importing PyTorch and reading the data, in every process.
#
# So don't do that again. `os.fork()` makes a copy of a running process in a few milliseconds, with everything it has in
# memory. (On GPUs, fork before anything uses CUDA: a forked process can't use it if its parent already has.)
# [survive.py](scripts/survive.py) imports PyTorch and reads the data once, and then forks the ranks. It's the same idea as
# the *warm spares* and *in-process restarts* of larger systems. The only thing missing is its heart.
#
# ### Exercise 3 (hard): a supervisor
#
# `supervise` starts all ranks. When one is lost, it ends the others, which wait for it in vain, and starts all of them again.
# `start(rank, attempt)` forks a rank and returns its process number. `attempt` is 0 for the first ones, then 1, and so
# on. Return when all ranks have ended well. If a rank is lost and you've used up all `restarts` restarts, raise an error. A
# rank is lost when it ends with a status other than 0, and also when it's *stopped*.
#
# <details><summary>Hint 1: whom to wait for?</summary>
#
# If you wait for rank 0 while rank 1 dies, the rank you wait for is itself waiting.
# `pid, status = os.waitpid(-1, os.WUNTRACED)` returns as soon as *any* of your children has ended or is stopped.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# A set of the process numbers that still run. `os.WIFSTOPPED(status)` is true for a stopped rank; any other has ended, and
# leaves the set. To end a rank, call `os.kill(pid, signal.SIGKILL)`, which works on a stopped one, too. Then
# `os.waitpid(pid, 0)` waits until it's gone.
#
# </details><details><summary>Solution</summary>
#
# {solution of supervise}
#
# </details>


# %%
def supervise(start, ranks, restarts):
    """Start all ranks. Once one is lost, end the others and start all again, until all end well."""
    # <solution>
    for attempt in range(restarts + 1):
        running, lost = {start(rank, attempt) for rank in range(ranks)}, False
        while running and not lost:
            pid, status = os.waitpid(-1, os.WUNTRACED)
            lost = status != 0
            if not os.WIFSTOPPED(status):
                running.remove(pid)
        if not lost:
            return
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    raise SystemExit(f"given up after {restarts} restarts")
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.supervise(supervise)

# %% [markdown]
# ## Fault injection
#
# Now both of your functions go into the scripts, and faults into the training. Do you keep more than 80 %?

# %%
mine = check.script("survive.py", folder / "survive.py", supervise)
training = check.script("elastic.py", folder / "elastic.py", save)
found = {1: fault_injection.score([mine, sizes.ranks, training, *options, 40 if quick else 200])}
scores["forked again"] = warm = found[1]
print(warm)

# %%
figures.progress(scores)

# %% [markdown]
# A fault now costs a fraction of a second. In that time the supervisor notices, the new ranks find each other, and they redo
# the part of a step that was lost. The weights are the same to the last bit, because no step depends on anything but its
# number and the state in the checkpoint: the weights and the momentum.
#
# Be fair to `torchrun`, though. A fault in every 20 steps is absurd, and a few seconds are nothing if one comes every three
# hours. And when a whole node dies, your supervisor dies with it. Then you need another node, on which nothing is warm. That's
# why large systems keep spare nodes that are ready to join.
#
# *Break it:* save only every 50 steps, with `"--every", 50`. What share of the speed is left? *Beat it:* the ranks that
# survive are killed, too, although they have the newest weights in memory. Keep them, and give the new rank their weights. How
# much do you gain?
#
# In a terminal, that's `workshop faults survive.py 2 elastic.py`. It takes any command whose training prints lines like
# `step 17`.
#
# ## Deeper: diagnose it yourself
#
# Six trainings went wrong on rank 1, each in a different way. None of the others knows why. The healthy run is on top.

# %%
patients = fault_catalogue.admit()
patients.rows

# %% [markdown]
# ### Exercise 4 (normal): the diagnosis
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
# If something goes wrong on rank 1 *before* the averaging, it reaches all ranks. What happens to its own weights isn't sent.
# They stay different from the others', and the gradients that rank 1 computes with them lead all ranks astray. So compare
# digests: between ranks, and with those of the healthy run.
#
# </details><details><summary>Solution</summary>
#
# A: a bit of its weights, since only rank 1 has different weights. B: it ran out of data. It ended well, before all others. C:
# it's slow. Every step of every rank takes longer, but all numbers are right. D: a NaN. E: a bit of its gradient. All ranks
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
fault_catalogue.diagnoses(diagnoses)

# %% [markdown]
# Run E is the nastiest. Comparing digests between ranks doesn't find it, because all ranks are equally wrong. Only
# a second run would, or a step that two ranks compute for each other now and then. For
# [Gemini](https://arxiv.org/abs/2312.11805), Google did the first: it replayed steps to find the machine that had computed
# wrongly, and tested idle machines for such faults.
#
# ## Deeper: go on with fewer ranks
#
# A node is gone, and the queue has no replacement. Can you go on with three ranks instead of four? Yes, if a step doesn't
# depend on how many ranks share its work. So fix the *global* batch, and let the ranks divide it up. Then the learning rate,
# the number of steps and the schedule stay as they are. But 512 doesn't divide by three.
#
# ### Exercise 5 (warm-up): my share
#
# With `my_share`, any number of ranks takes the same step. `batch` is an array with the numbers of the samples in the global
# batch. Return those of this rank, and a weight. Each rank then multiplies the gradient of its *mean* loss by its weight, and the
# sum over all ranks has to be the gradient of the mean loss of the whole batch. There may be more ranks than samples.
#
# <details><summary>Hint 1</summary>
#
# Every sample has to count as much as any other: $1/n$ in a batch of $n$. How much does it count in the mean of a rank with $m$
# samples?
#
# </details><details><summary>Hint 2</summary>
#
# `batch[rank::size]` deals the samples out one by one.
#
# </details><details><summary>Solution</summary>
#
# {solution of my_share}
#
# </details>


# %%
def my_share(batch, rank, size):
    """This rank's samples of the global batch, and the weight of their mean gradient in the sum over all ranks."""
    # <solution>
    mine = batch[rank::size]
    return mine, len(mine) / len(batch)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.my_share(my_share)

# %% [markdown]
# Now train with it. Three ranks take ten steps, then one is lost and two take the next ten. The last ten are up to a single
# rank.
# The model is so small that NumPy will do.

# %%
team.push(my_share=my_share)

# %%
# %%ranks
from contextlib import suppress

import numpy as np
from mpi4py import MPI

from workshop_lib.data import mnist

comm, train = MPI.COMM_WORLD, mnist.load("train")


def steps(first, last, ranks, weights):
    """Some steps of softmax regression on the first `ranks` ranks; the others take them in a group of their own."""
    group = comm.Split(comm.rank < ranks)
    for step in range(first, last):
        batch = np.random.default_rng([1, step]).integers(len(train.images), size=100)
        mine, weight = my_share(batch, group.rank, group.size)
        images = train.images[mine].reshape(len(mine), -1) / 255
        answers = np.exp(images @ weights)
        answers /= answers.sum(axis=1, keepdims=True)
        answers[np.arange(len(mine)), train.labels[mine]] -= 1
        weights = weights - 0.1 * group.allreduce(weight * images.T @ answers / max(1, len(mine)))
    return weights


# %%
# %%ranks
with suppress(NotImplementedError):  # while the exercise is open
    start = np.zeros((784, 10))
    shrinking = steps(20, 30, 1, steps(10, 20, 2, steps(0, 10, 3, start)))
    alone = steps(0, 30, 1, start)
    if comm.rank == 0:
        apart = np.abs(shrinking - alone).max() / np.abs(alone).max()
        print(f"largest difference to one rank that took all 30 steps: {apart:.0e} of the largest weight")

# %% [markdown]
# What's left is rounding, because the sums were taken in a different order. So bit for bit, you can only continue on the same
# number of ranks. [elastic.py](scripts/elastic.py) does the same as your function, with sums: each rank divides the sum of its
# losses by the size of the global batch. With `torchrun --nnodes 1:4`, the script may be started again on fewer nodes at any
# time, and doesn't even notice. (Rank 0 reads the checkpoint and sends it to the others. It may start on any node, so
# keep the file on a file system that all nodes share.)
#
# *Break it:* weight all ranks alike, with `1 / size`. How large is the difference then?
#
# ## Deeper: finding out
#
# Your ranks hang. What now? First, ask PyTorch. With `TORCH_DISTRIBUTED_DEBUG=DETAIL`, the ranks compare what they're about to
# send before each collective. That costs time, so use it only to find a mistake. It's worth even more with NCCL, which
# doesn't check sizes: ranks that disagree hang, or silently get wrong numbers. The *flight recorder* costs almost nothing. It
# remembers each rank's last collectives and their sizes. Here are two faults again, one with each:

# %%
debugged = fault_catalogue.meet("sends another shape", settings={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
print(debugged["sends another shape"][0].words[:330], "…")

# %%
recorded = fault_catalogue.meet("calls in another order", settings={"TORCH_FR_BUFFER_SIZE": "100"})
for rank, each in enumerate(recorded["calls in another order"]):
    print(f"rank {rank}:", *each.flight[-2:], sep="\n    ")

# %% [markdown]
# Find the first number at which the ranks differ: rank 1 waits in a `broadcast`, and the others in an `all_reduce`. With NCCL,
# each rank writes such a record to a file when its watchdog finds a collective that timed out
# (`TORCH_NCCL_DUMP_ON_TIMEOUT=1` with `TORCH_FR_BUFFER_SIZE`; in older versions `TORCH_NCCL_TRACE_BUFFER_SIZE`), and
# `torchfrtrace` compares the files. `NCCL_DEBUG=INFO` tells you which network NCCL chose.
#
# Second, ask Python. `faulthandler` comes with it. Register it once at the top of your script, and from then on
# `kill -USR1 PID` makes a process print the line it's at, even deep inside a collective. The workshop's ranks do that, too:
# it's how their messages know the line. (`py-spy dump --pid PID` does the same from outside, without any preparation.)

# %%
hanging = """
import faulthandler, os, signal, subprocess, time
faulthandler.register(signal.SIGUSR1)
subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -USR1 {os.getpid()}"])
def load_batch():
    time.sleep(1)
load_batch()
"""
scripts.run("python", "-c", hanging)

# %% [markdown]
# If your code runs to its end and is merely wrong, stop it halfway and look around. Write `breakpoint()` in a rank cell. Every
# rank then stops there, in Python's own debugger, and a prompt opens below the cell. What you type goes to all ranks: `v` shows
# their variables, `n` runs the next line, and `c` lets them go on. `@1 v` asks rank 1 alone. Ranks that wait at a breakpoint
# don't time out. (In a script under `torchrun`, use `torch.distributed.breakpoint(1)`: rank 1 stops in your terminal, and the
# others wait for it. With a plain `breakpoint()`, all ranks would read from one keyboard.)
#
# One of these ranks gets the mean wrong. Take the `#` away, run the cell again, and find out which:

# %%
team = ranks.start(2)

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
# Third, look at how the job ended. What does a launcher make of a rank that dies?

# %%
dies = "import os, time; rank = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ.get('PMI_RANK') or os.environ['RANK']; "
dies += "rank == '1' and {}; time.sleep(20)"
(folder / "exits.py").write_text(dies.format("os._exit(7)"))
(folder / "killed.py").write_text(dies.format("os.kill(os.getpid(), 9)"))
for launcher in [[*mpi.mpiexec(), "-n", 2, "python"], *([] if quick else [torchrun])]:
    for script in ("exits.py", "killed.py"):
        start_s = time.perf_counter()
        try:
            scripts.run(*launcher, folder / script, only="exit code 7|exitcode|signal [0-9]|SIGKILL")
        except ranks.RankError as error:
            print(
                f"--- after {time.perf_counter() - start_s:.1f} s,",
                str(error).rpartition("` ")[2].partition(";")[0],
                "\n",
            )

# %% [markdown]
# Both notice at once, and end the rank that's left, which would have slept for 20 seconds. Look at what each makes of it:
#
# | launcher | when a rank ends badly | what you have to know |
# |---|---|---|
# | `mpiexec` (Open MPI, MPICH) | ends all ranks | Its exit code is that of the rank. MPI has no restart: start the job again |
# | `torchrun` | ends its ranks, and starts all again if `--max-restarts` allows | Its own exit code is 1. The rank's is in the report, −9 for a `SIGKILL` |
# | `srun` | waits for the other tasks, unless you give it `--kill-on-bad-exit=1` or your cluster sets it | Its exit code is the highest of all tasks. For a restart, see [10_compute_nodes](10_compute_nodes.ipynb) |
# | `horovodrun` | ends all ranks | Has an elastic mode; see below |
#
# The workshop measured the first two right here. For the others, we rely on their documentation.
#
# ## Deeper: save without waiting
#
# A model with 7 billion parameters has a checkpoint of about 80 GB. At one gigabyte per second, that's over a minute in which
# all GPUs wait. But why should they wait for a *disk*? Copy the state in memory, which is fast, and let a thread write the
# copy while training goes on:


# %%
class AsyncSaver:
    """Saves in the background, one checkpoint at a time."""

    def __init__(self):
        self.thread, self.pending = ThreadPoolExecutor(1), None

    def save(self, state, path):
        self.wait()  # an error in the last one surfaces here, and two never write at once
        copy = {name: tensor.clone() for name, tensor in state.items()}
        self.pending = self.thread.submit(own_or_library(save, check.saved), copy, path)

    def wait(self):
        if self.pending:
            self.pending.result()


state, saver = {"weights": torch.randn(2_000_000 if quick else 20_000_000)}, AsyncSaver()
for name, call in (("in front", own_or_library(save, check.saved)), ("in the background", saver.save)):
    start_s = time.perf_counter()
    call(state, folder / "large.pt")
    print(f"{name}: training waits for {1000 * (time.perf_counter() - start_s):.0f} ms")
saver.wait()
(folder / "large.pt").unlink()

# %% [markdown]
# Why the copy? The optimizer changes the weights in place, so without it you'd save half of one step and half of the next. It
# takes memory for one more state. On GPUs, copy with `tensor.cpu()` instead of `clone()`, since the GPU's own memory is
# usually full. And the checkpoint counts only once it's written: if the job dies before that, you go on from the one before.
#
# If the ranks hold different shards, as in [06_zero_and_fsdp](06_zero_and_fsdp.ipynb), each writes its own file, all at the same
# time. Then a rename of one file isn't enough. Write them into a new folder, wait in a barrier until all are done, and let
# rank 0 rename the folder, or write a small file that says which folder is the last whole one. PyTorch's
# `torch.distributed.checkpoint` does that for you, `dcp.save` in the foreground and `dcp.async_save` in the background: its
# `.metadata` file comes last, so a folder without one is no checkpoint.
#
# ## Deeper: does the formula predict the measured share?
#
# You know what a save costs, how often a rank is lost, and how long it takes to get it back. So the exact expectation should
# predict what fault injection measured.

# %%
step_s = 1 / warm.free.steps_per_s
start_s = time.perf_counter()
for _ in range(10):
    own_or_library(save, check.saved)({"weights": torch.zeros(2 * 47_000)}, folder / "small.pt")
save_s = (time.perf_counter() - start_s) / 10
for every, score in found.items():
    mtbf_s = step_s * score.faulty.last / len(score.faulty.faults)
    restart_s = max(0.01, score.faulty.typical_pause_s - step_s * (1 + every) / 2)
    share = checkpoints.useful_share(every * step_s, save_s, mtbf_s, restart_s)
    print(f"a save every {every} steps: predicted {share:.0%}, found {score.share:.0%}")
rule = own_or_library(interval_s, checkpoints.young)
print(f"Young would save every {rule(save_s, mtbf_s) / step_s:.1f} steps")

# %% [markdown]
# Don't expect more than a few points of agreement. The formula assumes that failures come completely at random, and here there's
# exactly one in every 20 steps. And your machine has other things to do.
#
# ## Deeper: what about Horovod?
#
# Horovod has an elastic mode, too. You wrap your loop with `hvd.elastic.run`, keep weights and step in a `TorchState`, and call
# `state.commit()` now and then. Survivors go back to the last commit in memory, without any file. But the last release, 0.28.1,
# is from 2023. When we built it against today's PyTorch and killed a worker, it did *not* recover. So if you use Horovod today,
# rely on checkpoints, and start the job again.
#
# ## Remember
#
# - Most ranks that complain aren't the one that's broken. Look for the one that ended first, or by a signal, or that says
#   something different.
# - A rank that ends is usually noticed in milliseconds, and one that hangs, or whose node vanishes, at the time-out. One that
#   computes wrong numbers is never noticed, unless you compare losses and digests.
# - A checkpoint is written under another name, then renamed. It holds weights, optimizer and step, and a step depends on nothing
#   else.
# - Save about every $\sqrt{2cM}$ seconds. A factor of two doesn't matter much.
# - After a failure, all ranks start again. But they don't have to import, read and compile again.
# - If the *global* batch is fixed, any number of ranks can go on.
#
# **Take it home:** [scripts/elastic.py](scripts/elastic.py) and [scripts/survive.py](scripts/survive.py).
#
# **Sources.** Llama Team, [*The Llama 3 Herd of Models*](https://arxiv.org/abs/2407.21783), for the interruptions. J. W. Young,
# *A first order approximation to the optimum checkpoint interval* (CACM 17(9), 1974). J. T. Daly, *A higher order estimate of
# the optimum checkpoint interval for restart dumps* (FGCS 22(3), 2006). PyTorch's documentation of
# [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html), of
# [distributed checkpoints](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html) and of the
# [flight recorder](https://docs.pytorch.org/tutorials/prototype/flight_recorder_tutorial.html). NVIDIA's
# [Resiliency Extension](https://nvidia.github.io/nvidia-resiliency-ext/), for in-process restarts and warm spares. Slurm's manual
# page of `srun`. Horovod's documentation of [its elastic mode](https://horovod.readthedocs.io/en/stable/elastic_include.html).

# %%
ranks.stop()
