# %% [markdown] track="core path"
# # Start here
#
# Your model trains in four days on one device. You have eight devices. Will it take half a day? And if a colleague's model
# doesn't even fit on one device, do eight help at all?
#
# **You will** start several processes from this notebook, watch one of them fail, and measure how much faster two of them train
# than one. Then you'll see how a training run can be split, and which way to try first.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network.
#
# Press **Shift+Enter** to run a cell and move on to the next. Later cells use what earlier ones define.
#
# ## Ranks
#
# A *process* is a running program with memory of its own. The next cell starts two of them.

# %%
from workshop_lib import ranks

team = ranks.start(2)
team

# %% [markdown]
# A cell that begins with `%%ranks` runs in both processes at once, instead of in the notebook.

# %%
# %%ranks
from mpi4py import MPI

comm = MPI.COMM_WORLD
print(f"I am rank {comm.rank} of {comm.size}")

# %% [markdown]
# Both processes ran the same code. Each process is called a *rank*, and the same word is used for its number. The ranks talk to
# each other through *MPI*, the Message Passing Interface. `comm` is a *communicator*, a group of ranks that can talk to each
# other, and `MPI.COMM_WORLD` holds all of them. `comm.rank` is the number of the rank that asks, and `comm.size` is the number
# of ranks. Programs use `comm.rank` to give each rank its own part of the work.
#
# In this notebook, there's a cell below each *Try it*. To get another cell, press **Esc**, then **B**. The new cell runs on the
# ranks if its first line is `%%ranks`. The ■ button interrupts a cell that takes too long. If something breaks, run the
# notebook again from the top.
#
# *Try it:* let only the last rank print something. Your code should work for any number of ranks.

# %%
# %%ranks
# Your code here runs on every rank.

# %% [markdown]
# ## Each rank has its own memory
#
# Suppose `x` is 0 on every rank, and then every rank adds 1 to `x` a thousand times. Commit to a guess before you go on. You'll
# remember a wrong guess longer than an explanation you only read.

# %%
from workshop_lib import predict

guess = predict("What is x on rank 0 in the end?", low=0, high=10_000)
guess

# %%
# %%ranks
x = 0
for _ in range(1000):
    x = x + 1

# %% [markdown]
# `team.pull("x")` brings every rank's `x` into the notebook, as a list in rank order.

# %%
xs = team.pull("x")
print(xs)
guess.compare(xs[0])

# %% [markdown]
# Every rank has its own `x`, and no other rank can change it. The *threads* of one process would share a single `x`. Ranks
# share nothing, so if one rank needs to know something, another rank has to send it.
#
# The notebook runs in yet another process. `team.push(x=5)` would set `x` to 5 on every rank.
#
# ## When a rank fails
#
# Ranks wait for each other, and that makes their failures unpleasant. If one rank raises an error, the other ranks may wait for
# it indefinitely. ([01_mpi_basics](01_mpi_basics.ipynb) shows why.) Here the last rank raises an error while the others are in
# `Barrier`, a call that returns once every rank has called it. With `--catch`, the cell prints the error, and "Run all" goes
# on.

# %%
# %%ranks --catch
if comm.rank == comm.size - 1:
    raise ValueError("something is wrong with my data")
comm.Barrier()

# %% [markdown]
# Within seconds the message tells you which rank failed, why, and on which line each of the other ranks was waiting. Nothing
# would ever have released them, so the workshop ended them, too. `team.restart()` starts new ranks, with empty memory.

# %%
team.restart()

# %% [markdown]
# *Try it:* let one rank call `os._exit(1)`, which ends it on the spot, as if its machine had lost power. Or let it run
# `while True: pass`. Afterwards, run the cell with `team.restart()` again.

# %%
# %%ranks --catch --timeout 5
import os

from mpi4py import MPI

comm = MPI.COMM_WORLD
print(f"rank {comm.rank} is process {os.getpid()}")

# %% [markdown]
# ## Is this machine ready?
#
# The *doctor* checks everything else that the workshop needs.

# %%
from lessons import start_here as lesson

lesson.machine.examined()

# %% [markdown]
# The *profile* decides how long the runs in all notebooks take. It's `laptop` unless you start JupyterLab with
# `WORKSHOP_PROFILE=quick make lab` for short runs, or with `WORKSHOP_PROFILE=cluster make lab` on many cores or GPUs.

# %%
from workshop_lib import profile

sizes = profile.current()

# %% [markdown]
# ## The first training run
#
# Now train a small convolutional network on all ranks. It learns to read handwritten digits from the MNIST collection. Each
# rank works on its own part of the images, and after every step the ranks average their gradients. (You'll write that yourself
# in notebook 02.) One pass over the training images is an *epoch*. The *loss* measures how wrong the network's answers are. The
# *test accuracy* is the share of correct answers on images the network never trained on, and random guessing gets about 10 % of
# them right. The strip under the curves shows how each rank spends its time. The *Stop* button ends the run on all ranks.

# %%
from workshop_lib import TrainOptions

options = TrainOptions(epochs=1, train_samples=sizes.train_samples)
record = team.train(options, timeout=sizes.timeout_s)

# %% [markdown]
# `train` returns a *run record*, which says what ran, where, and what came out.

# %%
epoch = record["epochs"][-1]
print(
    f"test accuracy {epoch['test_accuracy']:.2%}, "
    f"at {epoch['samples_per_s']:,.0f} images per second"
)
print("the ranks hold the same network in the end:", record["ranks_identical"])
share = 1 - epoch["communication_s"] / epoch["seconds"]
print(f"on average, a rank computed for {share:.0%} of the time")

# %% [markdown]
# For the rest of the time, the ranks waited or communicated, which a single rank never does. So what does this share tell you
# about the speed of two ranks? Predict the speed-up, and then train on a single rank.

# %%
guess = predict(
    "How many times as fast do two ranks train as one?", low=0.5, high=3, unit="times"
)
guess

# %%
alone = team.restart(1).train(options, timeout=2 * sizes.timeout_s)
team.restart(2)

# %%
speedup = record["epochs"][-1]["samples_per_s"] / alone["epochs"][-1]["samples_per_s"]
print(f"2 ranks × {share:.0%} computing: {2 * share:.2f}, measured: {speedup:.2f}")
if speedup < 0.85 * 2 * share:
    print(
        "Side by side, the ranks computed more slowly than one rank alone. "
        "They share the memory, and other programs may need the cores, too."
    )
hours = 96 / speedup**3
print(
    lesson.load.doubt(speedup, ranks=2)
    or "If each doubling changes the speed by this factor, "
    f"four days become {hours:.0f} hours on eight devices."
)
guess.compare(speedup)

# %% [markdown]
# On a machine that does nothing else, the number of ranks times the share of computing is a good first estimate of a speed-up.
# This estimate assumes that ranks compute as fast side by side as alone.
#
# Would eight devices turn your four days into half a day? Only if each doubling halves the time. But ranks wait for each other
# and exchange gradients in every step. A step of eight ranks uses eight times as many images, so an epoch has fewer steps. With
# two ranks you hardly notice this, but with hundreds the network learns less per epoch. Notebook 07 measures the learning, and
# notebook 08 the waiting.
#
# ## Exercises and checks
#
# Each notebook has a few exercises. Replace the line that raises `NotImplementedError`, run the cell, and then run the check
# below it. The check calls **your** function on the ranks. Whatever your function uses from the notebook, such as functions and
# imports, goes along. But the function can't see what a `%%ranks` cell defines, and a `%%ranks` cell can't see what the
# notebook defines or imports.
#
# If you're stuck, open the hints. If they don't help, open the solution below them. Some exercises end with an invitation:
# *Break it*, to make your answer fail, or *Beat it*, to make it better.

# %% [markdown]
# ### Exercise 1 (warm-up): who am I?
#
# This exercise shows you how the checks work. Every rank calls `whoami` with a communicator. Return two numbers: the rank's
# number in that communicator, and how many ranks the communicator has.
#
# <details><summary>Hint</summary>
#
# `return a, b` returns two values.
#
# </details><details><summary>Solution</summary>
#
# {solution of whoami}
#
# </details>


# %%
def whoami(comm):
    """This rank's number in `comm`, and the number of ranks in it."""
    # <solution>
    return comm.rank, comm.size
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.whoami(whoami)

# %% [markdown]
# *Break it:* swap the two numbers, or `print` them instead of returning them, and read what the check says.
#
# ### Exercise 2 (normal): my part
#
# With this function you can divide anything among ranks: images, files, settings. Items are numbered from 0 to `n - 1`. Return
# `start, stop`: rank `rank` of `size` takes the items in `range(start, stop)`. Each item belongs to exactly one rank. The
# ranks' shares must differ by at most one item, because ranks with less work wait for the others. `n` isn't always a multiple
# of `size`: for 7 items on 3 ranks, `0, 2`, `2, 4` and `4, 7` would be fine.
#
# <details><summary>Hint 1: the operators</summary>
#
# `a // b` divides and drops the remainder, and `a % b` is the remainder.
#
# </details><details><summary>Hint 2: where to start</summary>
#
# Rank `rank` could start at `n * rank / size`, if that were a whole number. And where does it stop? Where the next rank
# starts.
#
# </details><details><summary>Solution</summary>
#
# {solution of my_part}
#
# </details>


# %%
def my_part(n, rank, size):
    """The `start, stop` of this rank's items, if `size` ranks share out `n` items."""
    # <solution>
    return n * rank // size, n * (rank + 1) // size
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.my_part(my_part)

# %% [markdown]
# Every distributed training loop needs a function like this.
#
# ## Why split a training run?
#
# There are three reasons: it takes too long, the model doesn't fit, or you have many settings to try. What you split depends on
# the reason. The pictures show what you can split for the first two reasons:

# %%
from workshop_lib import picture

picture("splits")

# %% [markdown]
# The colored part of a box is what the rank itself holds. A dotted border means that some or all of the box's contents are on
# other ranks. *State* is what the optimizer remembers; for Adam, that's two numbers per weight. The text below each picture
# names its messages.
#
# First get a good model on *one* device, from a random subset of the data, and make it train fast (09). On eight devices, a bad
# model only fails faster, and a slow one wastes eight times as much computing time. Then ask what your problem is:
#
# - **It's too slow, but fits:** DDP, *distributed data parallel* (02, 05). You change only a few lines.
# - **Weights, gradients and state don't fit:** FSDP, *fully sharded data parallel* (06). Each rank keeps only a share of them.
# - **A single layer doesn't fit, or you have hundreds of GPUs:** tensor parallelism (11), pipelines (11b), and FSDP around both
#   (12).
# - **You have many settings to try:** one run per device (14). Runs that never talk to each other scale perfectly.
#
# Notebook 06 has the whole decision table, and ends with the other names that you'll hear.
#
# So do eight devices help if the model doesn't fit on one? With DDP they don't, because each device holds the whole model. With
# FSDP they do. A model of 7 billion parameters takes 112 GB in training with Adam, at 16 bytes per parameter, and that's before
# the first activation. Divided as in `my_part`, that's 14 GB on each of eight devices.
#
# ## What comes next
#
# ![A map of the notebooks: the core path from 00 to 08, and the tracks that leave it](map.svg)
#
# The core path takes a day. If you only have half a day, do 00, 02, 05 and 08. Each track branches off at a core notebook, and
# you can start it from there. Every notebook starts its own ranks, and you can skip all *Deeper* sections. The table below
# shows how far you've come. Run its cell again later.

# %%
from IPython.display import Markdown

Markdown(lesson.overview("00_start_here"))

# %% [markdown]
# The folder [scripts](scripts) has most of these techniques as plain scripts to take home.
#
# ## Remember
#
# - A rank is a process with a number and memory of its own. All ranks run the same code, and `comm.rank` gives each rank its
#   part.
# - Get a good model on one device first, and make it train fast. Then use DDP if it's still too slow, and FSDP if it doesn't
#   fit.
#
# **Sources.** Data parallelism: P. Goyal et al. (arXiv:1706.02677). ZeRO: S. Rajbhandari et al. (arXiv:1910.02054). Pipelines:
# Y. Huang et al. (arXiv:1811.06965). Tensor parallelism: M. Shoeybi et al. (arXiv:1909.08053). `mpi4py`: L. Dalcin et al.
# (doi:10.1016/j.jpdc.2005.03.010). MNIST: Y. LeCun et al. (Proceedings of the IEEE 86, 1998). The engines behind `%%ranks` come
# from ipyparallel.

# %%
ranks.stop()
