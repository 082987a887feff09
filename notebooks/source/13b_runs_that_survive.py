# %% [markdown] track="when things break"
# # Runs that survive
#
# Meta trained the largest Llama 3 on 16,384 GPUs. In 54 days, that job was interrupted 466 times, once every three hours. Yet
# more than 90 % of the time went into training. Your jobs have fewer GPUs, but losing one rank still takes all the others down
# with it. How do you lose seconds instead of hours?
#
# **You will** write a checkpoint that survives a crash at any moment, work out how often to save, and save while training goes
# on. Then *fault injection* kills a rank every 20 steps, `torchrun` starts all ranks again, and the run ends with exactly the same
# weights.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [13](13_when_training_breaks.ipynb) first. [05](05_ddp.ipynb) explains `torchrun`.

# %%
import math
import os
import shutil
import signal

import pandas as pd
import torch

from workshop_lib import paths, predict, profile, ranks

from lessons import runs_that_survive as lesson

torch.set_num_threads(1)
sizes = profile.current()
quick = sizes.name == "quick"
folder = paths.BUILD / "13b_runs_that_survive"
folder.mkdir(parents=True, exist_ok=True)
team = ranks.start(3)

# %% [markdown]
# ## A checkpoint for any moment
#
# After a failure, training continues from the last checkpoint. So at any moment there has to be a complete one, even if a rank
# dies while it writes the next. But `torch.save(state, "model.pt")` first empties the old file, and then writes the new one
# piece by piece. If the job dies in between, both checkpoints are gone.
#
# ### Exercise 1 (normal): save
#
# With your `save`, there's a whole checkpoint at `path` at any moment: either the old one or the new one. `path` is a
# `pathlib.Path`, and may exist already. If something goes wrong, let the error through, so that somebody notices.
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
    """Write `state` so that `torch.load(path)` gives it back.

    At any moment, the file is the old one or the new one.
    """
    # <solution>
    with open(f"{path}.part", "wb") as file:
        torch.save(state, file)
        file.flush()
        # Without this, a power cut may leave an empty file with the right name.
        os.fsync(file.fileno())
    os.replace(f"{path}.part", path)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.save(save)

# %% [markdown]
# Renaming is a single step only within one file system, so the temporary file has to be in the same folder. The solution also
# calls `os.fsync`, in case of a power cut.
#
# *Break it:* write the file to `/tmp` first, and move it with `shutil.move`. What does that do if the checkpoint is on a network
# drive?
#
# ## How often?
#
# A checkpoint costs time, and so does repeating everything since the last one. Suppose a save takes $c$ seconds, a failure
# comes every $M$ seconds on average, and you save every $\tau$ seconds of training. Then you lose:
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
# When $\tau$ grows, one part of the sum shrinks and the other grows. Where the sum is smallest, its derivative is zero.
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
    """Seconds of training between two saves that take `save_s` seconds each.

    mtbf_s: mean time between failures.
    """
    # <solution>
    return math.sqrt(2 * save_s * mtbf_s)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.interval_s(interval_s)

# %% [markdown]
# Is the formula right, even though it ignores failures during a save? Every gray dot is a simulated job with random failures,
# and the curve is the exact expectation. Failures come every three hours, as in the Llama job, and a save takes a minute.

# %%
lesson.figures.checkpoint_interval(
    save_s=60, mtbf_s=3 * 3600, restart_s=300, jobs=5 if quick else 30
)

# %% [markdown]
# The minimum is wide: saving twice as often or half as often as you should costs only a little. Where does the rest of the time go?
# Here's the ledger of a month, from one simulated job. Its first line is the *goodput*:

# %%
best_s = lesson.check.written(interval_s)(60, 3 * 3600)
shares = lesson.checkpoints.simulated(
    30 * 86_400, best_s, save_s=60, mtbf_s=3 * 3600, restart_s=300
)
(30 * pd.Series(shares, name="days")).to_frame().round(1)

# %% [markdown]
# ## Save without waiting
#
# A model with 7 billion parameters has a checkpoint of about 80 GB. At one gigabyte per second, all GPUs wait for over a
# minute. But why should they wait for a *disk*? Copying the state within memory is fast, and a thread can write the copy while
# training goes on. That's what `dcp.async_save` does, for the sharded checkpoints of [06c](06c_fitting_more.ipynb). Here each
# rank has a shard of its own:

# %%
sharded = folder / "sharded"
shutil.rmtree(sharded, ignore_errors=True)
team.push(sharded=sharded, numbers=2_000_000 if quick else 20_000_000)

# %%
# %%ranks
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from lessons import runs_that_survive as lesson

comm = lesson.by_hand.join()
state = {f"shard {comm.rank}": torch.randn(numbers)}

comm.Barrier()
start_s = time.perf_counter()
dcp.save(state, checkpoint_id=sharded / "waited")
waited_s = time.perf_counter() - start_s

for_saving = dist.new_group(backend="gloo")
comm.Barrier()
start_s = time.perf_counter()
future = dcp.async_save(
    state, checkpoint_id=sharded / "background", process_group=for_saving
)
background_s = time.perf_counter() - start_s

state[f"shard {comm.rank}"] += 1  # training goes on
dist.all_reduce(torch.ones(1000))
future.result()  # before the next save, and before the job ends
written_s = time.perf_counter() - start_s
if comm.rank == 0:
    print(
        f"save blocks for {waited_s:.2f} s, "
        f"async_save for {background_s:.2f} s (on the disk after {written_s:.2f} s)"
    )

# %% [markdown]
# - **The copy.** The optimizer changes the weights in place. Without a copy you'd save half of one step and half of the next. So
#   `async_save` blocks until it has the copy, which takes memory for one more state.
# - **A process group of its own.** The thread runs collectives, too. If it used the group of the training loop, their
#   collectives would mix. Even on GPUs, it's a gloo group, because the copy is in the CPU's memory.
# - **`future.result()`.** An error in the background surfaces only here. The checkpoint counts once it's written: its `.metadata`
#   file comes last, so a folder without one is no checkpoint, and you go on from the one before.
#
# ## Start them again
#
# Something has to notice that a rank is gone, end the remaining ranks, and start all of them again. `torchrun` does that with
# `--max-restarts`. (Set `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, or the new ranks may hang, as in PyTorch 2.13 to 2.15.) But
# after each failure, every new process imports PyTorch and reads the data again. How much does that cost when ranks are lost
# again and again?
#
# To find out, we inject faults: [elastic.py](scripts/elastic.py) runs once undisturbed, and once with a fault in every 20
# steps, at a random moment on a random rank. `lesson.check.script` puts your `save` into a copy of it, and your `interval_s` says
# how many steps to take between two saves, if a save takes a tenth of a step. What a step does depends only on its number and on
# the saved state. So an interrupted run ends with exactly the same weights. A step that has to be repeated counts once.

# %%
guess = predict(
    "What share of its speed does training keep under torchrun, "
    "with a fault every 20 steps?",
    0,
    100,
    "%",
)
guess

# %%
options = ["--data", paths.MNIST, "--batch", 128 if quick else 1024, "--steps"]
training = lesson.check.script("elastic.py", folder / "elastic.py", save)
every = max(1, round(lesson.check.written(interval_s)(0.1, 20)))
print(f"A save every {every} steps")
scores = {}
if not quick:  # it takes a minute
    launch = [*lesson.launchers.torchrun(sizes.ranks_here), "--max-restarts", 99]
    command = [*launch, training, *options, 60, "--every", every]
    scores["torchrun"] = lesson.fault_injection.score(command, kinds=["kill"])
    print(scores["torchrun"])
    display(guess.compare(100 * scores["torchrun"].share))

# %% [markdown]
# The weights are the same, so nothing was lost but time. Almost all of it went into starting Python, importing PyTorch and
# reading the data.
#
# A few seconds are nothing if a fault comes every three hours. On several nodes, start one torchrun per node, as in
# [10](10_compute_nodes.ipynb), whose job Slurm requeues when a node fails. To go on without that node instead, give torchrun
# `--nnodes 1:4 --max-restarts 9`, `sbatch` `--no-kill`, and `srun` `--no-kill --kill-on-bad-exit=0`. Then the torchruns survive
# the loss of any node except that of `--rdzv-endpoint`, where they meet.
#
# ## Deeper: start again within a second
#
# Watching the ranks and starting them again is what `torchrun` does for you. But you can do it faster than with new processes:
# import and read only once. `os.fork()` copies a running process within milliseconds, with everything it has in memory.
# [survive.py](scripts/survive.py) imports PyTorch and reads the data once, and then forks the ranks. (On GPUs, fork before
# anything uses CUDA, because a forked process can't use CUDA if its parent already has.) Only the function that watches the
# ranks is missing.
#
# ### Learn that a rank is lost
#
# When a process ends, the operating system keeps its *status* until the parent asks for it with
#
# ```python
# pid, status = os.waitpid(-1, os.WUNTRACED)
# ```
#
# The $-1$ means *any* child: the call returns as soon as one of them has something to report, and says which. Normally, a child
# only reports that it has ended. With the flag `os.WUNTRACED` the call also returns when a child is *stopped*, as by Ctrl-Z in
# a terminal. A stopped rank hasn't ended, so without the flag you'd never hear of it. These are the cases:
#
# | the rank … | `status` | `os.WIFSTOPPED(status)` | still a process? |
# |---|---|---|---|
# | ended well | 0 | false | no |
# | raised an error, or was killed | not 0 | false | no |
# | is stopped | not 0 | true | yes |
#
# `os.kill(pid, signal.SIGKILL)` ends a child, even a stopped one. It's gone once `os.waitpid(pid, 0)` has returned.
#
# A rank that hangs reports nothing. But the ranks that wait for it raise an error after the time-out of elastic.py's process
# group: 5 minutes in a rank's first step, because a GPU's first connections and a compiler take long, and 10 seconds later. In
# a script of your own, make this time-out longer than your longest save, because the other ranks wait for rank 0 while it writes.
#
# ### Exercise 3 (hard): a supervisor
#
# `supervise` starts all ranks. When one of them is lost, it ends the others and starts all of them again.
# `start(rank, attempt)` forks a rank and returns its process number. `attempt` is 0 at the first start, then 1, and so on.
# Return when all ranks have ended well. If a rank is lost and you've used up all `restarts` restarts, raise an error.
#
# <details><summary>Hint 1: whom to wait for?</summary>
#
# If you wait for rank 0 while rank 1 dies, the rank you wait for is itself waiting. Wait for any of them.
#
# </details><details><summary>Hint 2: what to remember</summary>
#
# Keep a set of the process numbers that still run. A rank that has ended leaves the set, whatever its status. A stopped rank
# stays in it, because you still have to end it.
#
# </details><details><summary>Hint 3: the shape</summary>
#
# A loop over the attempts. Inside it: start all ranks; wait while some run and none is lost; if none was lost, return; otherwise
# kill those in the set. Raise the error after the loop.
#
# </details><details><summary>Solution</summary>
#
# {solution of supervise}
#
# </details>


# %%
def supervise(start, ranks, restarts):
    """Start all ranks.

    Once one is lost, end the others and start all again, until all end well.
    """
    # <solution>
    for attempt in range(restarts + 1):
        running = {start(rank, attempt) for rank in range(ranks)}
        lost = False
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
lesson.check.supervise(supervise)

# %% [markdown]
# So far, your function has only supervised fake ranks. Now it goes into a copy of survive.py, and ranks are killed, crash, raise an
# error, or are stopped. Training saves after every step. Do you keep more than 80 % of its speed?

# %%
mine = lesson.check.script("survive.py", folder / "survive.py", supervise)
scores["forked again"] = lesson.fault_injection.score(
    [mine, sizes.ranks_here, training, *options, 40 if quick else 200]
)
print(scores["forked again"])

# %%
lesson.figures.progress(scores)

# %% [markdown]
# A fault now costs a second or less. But when a whole node dies, your supervisor dies with it.
#
# *Break it:* save only every 50 steps, with `"--every", 50`. What share of the speed is left?
#
# ## Deeper: keep the survivors
#
# One rank is lost, and `torchrun` or your `supervise` kills all others, which hold the newest weights in memory. With *per-step fault tolerance*,
# the survivors go on. PyTorch's library for that is [torchft](https://docs.pytorch.org/torchft/), and it rests on three ideas:
#
# - **A quorum before each step.** Every rank sends heartbeats to a small server, the *lighthouse*. Before each step, the ranks
#   ask it who takes part. These ranks are the *quorum*. When the quorum changes, its members build a new process group.
# - **A vote after each step.** If a rank is lost in the middle of an allreduce, the survivors get no exception. They remember that it
#   failed, and vote: only if everything went well on all of them do they take the step. Otherwise they throw the gradients away,
#   and try the step again without the lost rank.
# - **Live recovery from a peer.** A new rank asks for the quorum, too. Since its weights are old, it fetches the current weights and
#   optimizer state from the memory of a rank that never stopped.
#
# In a script, that's a manager and two wrappers:
#
# ```python
# manager = torchft.Manager(pg=torchft.ProcessGroupGloo(), min_replica_size=1, state_dict=…, load_state_dict=…, …)
# model = torchft.DistributedDataParallel(manager, model)
# optimizer = torchft.Optimizer(manager, optimizer)
# …
# optimizer.zero_grad()  # asks for the quorum
# loss.backward()        # averages gradients, and remembers errors
# optimizer.step()       # votes, and takes the step or doesn't
# ```
#
# [per_step.py](scripts/per_step.py) is elastic.py with these lines, and with a `supervise` that starts only the lost rank
# again. On our two cores, that's no faster than your supervisor, because the lighthouse waits for a second before it gives up a
# rank. Keeping survivors pays off where a start takes minutes. (To try it, run `pip install torchft`, which has wheels for
# Linux on x86-64, and then `print(lesson.fault_injection.score([paths.SCRIPTS / "per_step.py", 2], kinds=["kill"]))` in a cell.)
#
# Per-step fault tolerance isn't free. While a rank is away, a step has fewer images, so the final weights differ from those of
# an undisturbed run. And you still need checkpoints, for the day on which all ranks are lost.
#
# ## Deeper: a rank that computes wrong numbers
#
# Some cores and GPUs now and then compute a wrong result, and no error tells you. But the same step twice must give the same bits. So
# let each rank also repeat the step of the next rank, and compare digests. Rank 1 flips a bit in every third result:

# %%
# %%ranks
import hashlib

import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
following = (comm.rank + 1) % comm.size
computed = 0


def digest_of(step, rank):
    global computed
    batch = torch.randn(
        64, 256, generator=torch.Generator().manual_seed(1000 * step + rank)
    )
    gradient = batch.T @ batch
    computed += 1
    if comm.rank == 1 and computed % 3 == 0:
        gradient.view(torch.int32)[7, 7] ^= 1 << 20
    return hashlib.sha256(gradient.numpy()).hexdigest()


for step in range(3):
    own = comm.allgather(digest_of(step, comm.rank))
    if digest_of(step, following) != own[following]:
        print(
            f"step {step}: ranks {comm.rank} and {following} differ about the step of "
            f"rank {following}"
        )

# %% [markdown]
# The rank that is in all such pairs is the one to replace. Repeating doubles a step's cost, so you'd repeat only some steps,
# and decide how many wrong ones you can live with. (Kernels have to add up in the same order each time, or honest ranks differ,
# too.)
#
# ## Deeper: go on with fewer ranks
#
# A node is gone, and the queue has no replacement. Can you go on with three ranks instead of four? Yes, if a step doesn't
# depend on how many ranks share its work. So fix the *global* batch, and let the ranks divide it up. But 512 doesn't divide by
# three.
#
# ### Exercise 4 (warm-up): my share
#
# With `my_share`, any number of ranks takes the same step. `batch` is an array with the numbers of the samples in the global
# batch. Return the numbers of this rank's samples, and a weight. Each rank then multiplies the gradient of its *mean* loss by
# its weight, and the sum over all ranks has to be the gradient of the mean loss of the whole batch. There may be more ranks
# than samples.
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
    """This rank's samples of the global batch, and their weight.

    The weight is that of their mean gradient in the sum over all ranks.
    """
    # <solution>
    mine = batch[rank::size]
    return mine, len(mine) / len(batch)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.my_share(my_share)

# %% [markdown]
# Now train with it: three ranks take ten steps, then one is lost and two take the next ten, and a single rank takes the last ten.

# %%
team.push(my_share=lesson.check.written(my_share))

# %%
# %%ranks
import numpy as np
from mpi4py import MPI

from lessons import runs_that_survive as lesson

comm = MPI.COMM_WORLD
weights = lesson.fewer.first_weights()
alone = lesson.fewer.train(comm.Split(comm.rank), my_share, 0, 30, weights)
for first, size in ((0, 3), (10, 2), (20, 1)):
    # The ranks that are left; the others take their steps in a second group.
    group = comm.Split(comm.rank < size)
    weights = lesson.fewer.train(group, my_share, first, first + 10, weights)
if comm.rank == 0:
    difference = np.abs(weights - alone).max() / np.abs(alone).max()
    print(
        "largest difference to a single rank's 30 steps: "
        f"{difference:.0e} of the largest weight"
    )

# %% [markdown]
# Only rounding is left, because the sums were taken in a different order. [elastic.py](scripts/elastic.py) does the same as
# your function, so `torchrun --nnodes 1:4 --max-restarts 9 …` can start it again on fewer nodes. Keep the checkpoint on a file system that all nodes share, because
# rank 0 may start on any of them.
#
# *Break it:* weight all ranks alike, with `1 / size`. How large is the difference then?
#
# ## Deeper: shards for another number of ranks
#
# Two ranks hold half of the weights and half of Adam's state each. One is lost, or a third one joins. `.metadata` says where
# each piece of a tensor is, and every rank reads the pieces that it needs. Here, two of your ranks train ten steps, save, and
# take ten more for comparison.

# %%
halves = folder / "halves"
shutil.rmtree(halves, ignore_errors=True)
team.push(halves=halves)

# %%
# %%ranks
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

mesh = lesson.resharded.mesh_of_first(2)
if comm.rank < 2:
    model, optimizer = lesson.resharded.start(mesh)
    lesson.resharded.train(model, optimizer, mesh, 0, 10)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 10}
    dcp.save(state, checkpoint_id=halves, process_group=mesh.get_group())
    uninterrupted = lesson.resharded.train(model, optimizer, mesh, 10, 20)

# %% [markdown]
# ### Exercise 5 (normal): resume on any number of ranks
#
# With your `resume`, a fresh model and its optimizer continue from such a checkpoint. It may have been written by another
# number of ranks. `group` is the process group of the ranks that continue: they all call `resume`, and no others do.
#
# <details><summary>Hint 1: how does a rank say which pieces it needs?</summary>
#
# `dcp.load` fills a dictionary in place. The dictionary says what this rank needs, so make one from the fresh model and its
# optimizer, in the same form as the one that was saved.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `get_state_dict` and `dcp.load(state, checkpoint_id=…, process_group=…)`, as when saving. Then
# `set_state_dict(model, optimizer, model_state_dict=…, optim_state_dict=…)` gives both their states. The step isn't a tensor:
# put any number into the dictionary, and `dcp.load` replaces it.
#
# </details><details><summary>Solution</summary>
#
# {solution of resume}
#
# </details>

# %%
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def resume(place, model, optimizer, group):
    """Give the model and its optimizer the states saved at `place`.

    Returns the step. All ranks of `group` call it, and no others.
    """
    # <solution>
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=place, process_group=group)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    return state["step"]
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.resume(resume)

# %% [markdown]
# Now continue on three ranks, and then on a single one:

# %%
team.push(resume=lesson.check.written(resume))

# %%
# %%ranks
for size in (3, 1):
    # All ranks call this, even those outside the mesh.
    mesh = lesson.resharded.mesh_of_first(size)
    if comm.rank < size:
        model, optimizer = lesson.resharded.start(mesh)
        step = resume(halves, model, optimizer, mesh.get_group())
        losses = lesson.resharded.train(model, optimizer, mesh, step, 20)
        if comm.rank == 0:
            largest = max(abs(losses[at] - uninterrupted[at]) for at in uninterrupted)
            print(
                f"ranks: {size}. From step {step} on, "
                f"the losses differ by up to {largest:.0e}."
            )

# %% [markdown]
# Only rounding is left. [trainer.py](scripts/trainer.py) saves and resumes like this, in its class `Checkpoints`. It also writes
# in the background, looks for the last checkpoint that is complete, and saves once more when the scheduler sends a signal.
#
# *Break it:* load the model only, and leave the optimizer as it is. Which step is the first whose loss differs?
#
# ## Remember
#
# - Write a checkpoint under another name, then rename it. It holds all that a step depends on: weights, optimizer and step, and
#   often also the learning-rate schedule, the random generators and the position in the data.
# - Keep several checkpoints. If you notice a spike or a NaN 100 steps later, the newest ones have it, too.
# - Save about every $\sqrt{2cM}$ seconds. Copy the state, and write the copy while training goes on.
# - After a failure, `torchrun --max-restarts` starts all ranks again, and each goes on from the checkpoint.
#
# **Take it home:** [scripts/trainer.py](scripts/trainer.py), where all of this is in one file,
# [scripts/elastic.py](scripts/elastic.py), [scripts/survive.py](scripts/survive.py) and
# [scripts/per_step.py](scripts/per_step.py).
#
# **Sources.** Llama Team, [*The Llama 3 Herd of Models*](https://arxiv.org/abs/2407.21783), for the interruptions. J. W. Young,
# *A first order approximation to the optimum checkpoint interval* (CACM 17(9), 1974). J. T. Daly, *A higher order estimate of
# the optimum checkpoint interval for restart dumps* (FGCS 22(3), 2006). The documentation of
# [torchft](https://docs.pytorch.org/torchft/), of
# [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html) and of PyTorch's
# [distributed checkpoints](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html). NVIDIA's
# [Resiliency Extension](https://nvidia.github.io/nvidia-resiliency-ext/), for in-process restarts and warm spares.

# %%
ranks.stop()
