# %% [markdown]
# # When training breaks
#
# Meta trained the largest Llama 3 on 16,384 GPUs. In 54 days, that job was interrupted 466 times, once every three hours. Yet
# more than 90 % of the time went into training. Your jobs have fewer GPUs, but one rank that's lost still takes all others down
# with it. What does that look like from the outside, and how do you lose seconds instead of hours?
#
# **You will** let ranks fail in fifteen ways and learn to tell them apart, write a checkpoint that survives a crash at any
# moment, work out how often to save, and write a supervisor that starts lost ranks again. Then your training goes into the
# *dojo*, where it loses a rank every 20 steps. It should keep more than 80 % of its speed, and end with exactly the same
# weights.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first. [05](05_ddp.ipynb) explains `torchrun`.

# %%
import math
import os
import signal

import torch

from workshop_lib import ranks
from workshop_lib.exercises import breaking as check
from workshop_lib.exercises import zoo
from workshop_lib.notebook import profile
from workshop_lib.notebook.figures import breaking as figures
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, MNIST, SCRIPTS
from workshop_lib.ranks import dojo, scripts
from workshop_lib.scaling import checkpoints

torch.set_num_threads(1)
sizes = profile.current()
quick = sizes.name == "quick"
folder = BUILD / "13_when_training_breaks"
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## The zoo
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
met = zoo.meet(*faults)
zoo.table(met)

# %%
guess.compare(sum(any(each.end != "exit code 0" for each in of_ranks) for of_ranks in met.values()))

# %% [markdown]
# All of it is real: the ranks were processes, and they ended as the table says. (We ended those that were *still running* or
# *stopped*. The memory was limited for that one process, and a limit on the size of its files stood for the full disk.) Read
# the table in three groups.
#
# **A rank ends.** It may raise, be killed, or simply have one batch less than the others. The kernel closes its connections, so
# the other ranks know within milliseconds. But look at what *they* say: "Connection closed by peer". That isn't the cause.
# With a thousand ranks, 999 will say it. Look for the rank that says something else, or that ended first, or that was ended by
# a signal. `SIGKILL` out of nowhere usually means that the node ran out of memory, because that's how the kernel makes room.
#
# **A rank stays, but doesn't come.** It hangs, it's stopped, or it calls its collectives in a different order. The other ranks
# wait until the time-out: 1.5 seconds here, but by default 30 minutes with gloo and 10 with NCCL. The message can't tell you
# who was missing, only who was waited for.
#
# **Nobody notices.** A slow rank slows everyone down. A NaN on one rank is on all ranks after the next average. A flipped bit
# gives you wrong weights and no message at all. Only numbers that you compare can tell: the step time, the loss, and a digest
# of the weights across ranks.
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

# %% [markdown]
# ## A checkpoint for any moment
#
# After a failure you start again from the last checkpoint. So it has to be there, and it has to be whole, no matter when the
# rank that writes it dies. In the zoo, one rank found half a checkpoint. How did that get there?
# `torch.save(state, "model.pt")` empties the old file first, and then writes the new one, piece by piece. If the job dies in
# between, both are gone.
#
# ### Exercise 1: save
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
# `os.replace(a, b)` renames the file `a` to `b`. If there's a `b` already, the new one takes its place, and at no time is there
# none.
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
# ### Exercise 2: the best interval
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
# a job with random failures, for many intervals. Every gray dot is one simulated job; the curve is the exact expectation. In
# this example a save takes a minute and failures come every three hours, as in the Llama job.

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
# cost in the dojo?
#
# Here's the rule of the dojo: your training runs once undisturbed, and then with a fault in every 20 steps, at a random
# moment on a random rank. The rank is killed, crashes, raises, or is stopped. Only steps that weren't done before count. The
# training script, [elastic.py](scripts/elastic.py), saves after *every* step with the function above, and each step depends only
# on its number. So a training that continues ends with exactly the same weights.

# %%
guess = predict("What share of its speed does training keep under torchrun, with a fault every 20 steps?", 0, 100, "%")
guess

# %%
options = ["--data", MNIST, "--batch", 512 if quick else 1024, "--steps"]
torchrun = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", sizes.ranks]
cold = dojo.score([*torchrun, "--max-restarts", 99, SCRIPTS / "elastic.py", *options, 60], kinds=["kill"])
print(cold)
guess.compare(100 * cold.share)

# %% [markdown]
# The weights are the same, so nothing was lost but time. But where did all this time go? Not into lost steps, since there's a
# checkpoint after each of them. It went into starting Python, importing PyTorch and reading the data, in every process.
#
# So don't do that again. `os.fork()` makes a copy of a running process in a few milliseconds, with everything it has in memory.
# [survive.py](scripts/survive.py) imports PyTorch and reads the data once, and then forks the ranks. It's the same idea as
# the *warm spares* and *in-process restarts* of larger systems. The only thing missing is its heart.
#
# ### Exercise 3: a supervisor
#
# `supervise` starts all ranks. When one is lost, it ends the others, which wait for it in vain, and starts all of them again.
# `start(rank, attempt)` forks a rank and returns its process number. `attempt` is 0 for the first ones, then 1, and so
# on. Return when all ranks have ended well. After `restarts` restarts, raise an error. A rank is lost when it ends with a status
# other than 0, and also when it's *stopped*.
#
# <details><summary>Hint 1: whom to wait for?</summary>
#
# If you wait for rank 0 while rank 1 dies, you wait for a rank that waits, too. `pid, status = os.waitpid(-1, os.WUNTRACED)`
# returns as soon as *any* of your children has ended or is stopped.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# A set of the process numbers that still run. `os.WIFSTOPPED(status)` is true for a stopped rank; any other has ended, and
# leaves the set. To end a rank, `os.kill(pid, signal.SIGKILL)`, which works on a stopped one, too. Then `os.waitpid(pid, 0)`
# waits until it's gone.
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
# ## The dojo
#
# Now both of your functions go into the scripts, and the training into the dojo. Do you keep more than 80 %?

# %%
mine = check.script("survive.py", folder / "survive.py", supervise)
training = check.script("elastic.py", folder / "elastic.py", save)
warm = dojo.score([mine, sizes.ranks, training, *options, 60 if quick else 200])
print(warm)

# %%
figures.progress({"torchrun": cold, "forked again": warm})

# %% [markdown]
# A fault now costs a fraction of a second: until the supervisor notices, until new ranks have met, and the part of a step that
# was lost. The weights are the same to the last bit, because no step depends on anything but its number and the weights before
# it.
#
# Be fair to `torchrun`, though. A fault in every 20 steps is absurd, and a few seconds are nothing if one comes every three
# hours. And when a whole node dies, your supervisor dies with it. Then you need another node, on which nothing is warm. That's
# why large systems keep spare nodes that are ready to join.
#
# *Break it:* save only every 50 steps, with `"--every", 50`. What does the dojo make of that? *Beat it:* the ranks that
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
patients = zoo.admit()
patients.rows

# %% [markdown]
# ### Exercise 4: the diagnosis
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
# What comes from rank 1 *before* the average reaches all ranks. What happens to its own weights stays with it. So compare
# digests: between ranks, and with those of the healthy run.
#
# </details><details><summary>Solution</summary>
#
# A: a bit of its weights, since only rank 1 has other weights. B: it ran out of data. It ended well, before all others. C: it's
# slow. Every step of every rank takes longer, but all numbers are right. D: a NaN. E: a bit of its gradient. All ranks agree,
# but not with the healthy run. F: it hangs. The others gave up, and rank 1 was still there.
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
zoo.diagnoses(diagnoses)

# %% [markdown]
# Run E is the nastiest. Comparing digests between ranks doesn't find it, because all ranks are equally wrong. Only
# a second run would, or a step that two ranks compute for each other now and then. Large systems do both.
#
# ## Deeper: go on with fewer ranks
#
# A node is gone, and the queue has no other. Can you go on with three ranks instead of four? Yes, if a step doesn't depend on how
# many ranks share its work. So fix the *global* batch, and let the ranks deal it out. Then the learning rate, the number of
# steps and the schedule stay as they are. But 512 doesn't divide by three.
#
# ### Exercise 5: my share
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
# [elastic.py](scripts/elastic.py) does the same with sums: each rank divides the sum of its losses by the size of the
# global batch. So let's train a few steps on three ranks, kill the job, and go on with two.
