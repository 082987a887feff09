# %% [markdown]
# # Start here
#
# **You will** check your machine, start several processes from this notebook and run code on all of them at once,
# see what happens when one of them fails, train your first network on them, and solve two small exercises.
#
# **Time** about 15 minutes. **Needs** two cores; no GPU, no network.
#
# ## What this is
#
# *Distributed deep learning* means that several processes train one network together. Each computes on its own part
# of the data; again and again they exchange results. In this workshop you do that for real, from notebooks, on
# whatever machine you have: a laptop shows every effect that matters, and the same notebooks run on a cluster.
#
# A notebook consists of *cells*. Click on one and press **Shift+Enter** to run it and go on to the next. Run them in
# order, from top to bottom: later cells use what earlier ones defined. The button ■ interrupts a cell that takes too
# long. You cannot break anything that running the notebook again from the top does not repair, so change things, above
# all where it says *Try it*.

# %%
import json
import os
import re

from IPython.display import Markdown

from workshop_lib import ranks
from workshop_lib.cli import doctor
from workshop_lib.exercises import start_here as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.generate import NOTEBOOKS
from workshop_lib.notebook.prediction import predict
from workshop_lib.training.options import TrainOptions

# %% [markdown]
# ## Is this machine ready?
#
# The doctor looks at everything that the workshop needs. Each line begins with *ok*, *warn* (it works, but something
# to know) or *fail*; under a warning or a failure, an arrow says what to do about it.

# %%
healthy = doctor.main() == 0
print("Ready." if healthy else "Something is missing: see the lines that begin with 'fail'.")

# %% [markdown]
# How long the notebooks' runs are is set in one place, the *profile*: `laptop` unless you choose another by setting
# the environment variable `WORKSHOP_PROFILE` before JupyterLab starts, as in `WORKSHOP_PROFILE=quick make lab`.
# `quick` takes the smallest sizes that still run, `cluster` is for a machine with many cores or GPUs.

# %%
sizes = profile.current()
images = sizes.train_samples or 60_000
print(f"profile {sizes.name}: {sizes.ranks} ranks, training with {images:,} images")

# %% [markdown]
# ## Ranks
#
# A *process* is a running program with memory of its own. This notebook's process is called its *kernel*. The next
# cell starts more of them, on which we will compute together. They are numbered from 0, and each is called a *rank*,
# as is its number. *MPI*, the Message Passing Interface, is the standard that lets them talk to each other.

# %%
team = ranks.start(sizes.ranks)
team

# %% [markdown]
# A cell that begins with `%%ranks` runs on every rank at once, instead of in the notebook. What a rank prints
# appears with the rank in front.

# %%
# %%ranks
from mpi4py import MPI

comm = MPI.COMM_WORLD
print(f"I am rank {comm.rank} of {comm.size}")

# %% [markdown]
# All ranks ran the same code. `comm` is a *communicator*: a group of ranks that can talk to each other.
# `MPI.COMM_WORLD` holds all of them; `comm.rank` is the number of the rank that asks, and `comm.size` says how many
# there are. Only through `comm.rank` can one rank do something else than the others.
#
# ## Each rank has its own memory
#
# Suppose that `x` is 0 on every rank, and that each rank then adds 1 to `x` a thousand times.

# %%
guess = predict("What is x on rank 0 in the end?", low=0, high=10_000)
guess

# %% [markdown]
# Questions like this one come before results that surprise many people. Move the slider and commit to your guess
# before you run on: a prediction that turns out wrong is remembered, an explanation that was only read is not.

# %%
# %%ranks
x = 0
for _ in range(1000):
    x = x + 1

# %% [markdown]
# `team.pull("x")` brings a variable of every rank into the notebook, as a list in the order of the ranks.

# %%
xs = team.pull("x")
print(xs)
guess.compare(xs[0])

# %% [markdown]
# Every rank has an `x` of its own, and nothing that another rank does can change it. Ranks share no variables, and
# neither does the notebook, which is yet another process:

# %%
print(f"Does the notebook have an x? {'x' in globals()}")

# %% [markdown]
# There are three ways between the notebook and the ranks: `pull`, which you have seen; `push`, which sets a variable on
# every rank; and `run`, which calls a function of the notebook on every rank and returns the list of results.

# %%
team.push(greeting="hello")
team.pull("greeting")


# %%
def answer(question):
    return f"{question} I am process {os.getpid()}."


print("the notebook:", answer("Who are you?"))
print("the ranks:   ", team.run(answer, "Who are you?"))

# %% [markdown]
# *Try it:* in a `%%ranks` cell, let each rank make a list with as many elements as its rank, and pull it.
#
# ## When a rank fails
#
# Programs on many ranks fail in an unpleasant way. Ranks wait for each other, and when one has stopped with an error,
# the others wait for ever. Here the last rank raises an error, while the others are in a `Barrier`, a call which
# ends when all ranks have called it. (`--catch` prints the error instead of stopping "Run all".)

# %%
# %%ranks --catch
if comm.rank == comm.size - 1:
    raise ValueError("something is wrong with my data")
comm.Barrier()

# %% [markdown]
# Within seconds the message says which rank failed, why, and on which line each of the others was waiting. Read such a
# message from its first line: the error comes first, those who waited for it come last.
#
# The waiting ranks had to be ended. `team.restart()` brings fresh ones; their memory is empty.

# %%
team.restart()

# %% [markdown]
# *Try it:* let a rank call `os._exit(1)`, which ends it without an error, as when a machine loses power. Or let it run
# `while True: pass`, and give the cell a limit with `%%ranks --timeout 5`. (`import os` and `comm` have to be defined again.)
#
# ## The first training
#
# Now train a network on all ranks. It is a small convolutional network that learns to tell which digit, 0 to 9, is
# on a handwritten image from the MNIST collection. Each rank computes with its own part of the images, and after every
# step the ranks average what they have learned. (How, and why that is right, is the topic of the next notebooks.) One
# pass over all training images is called an *epoch*. The *test accuracy* is the share of right answers on
# other images, which are not used in training.

# %%
guess = predict(f"Test accuracy after one epoch with {images:,} images?", low=10, high=100, unit="%")
guess

# %% [markdown]
# While it trains you see the *loss* fall, a number for how wrong the network's answers are, and the accuracy grow; under
# the curves, a strip shows how each rank spends its time. The button *Stop* ends the run cleanly within a few steps, on
# all ranks together.

# %%
record = team.train(TrainOptions(backend="mpi", epochs=1, train_samples=sizes.train_samples), timeout=sizes.timeout_s)

# %% [markdown]
# `train` returns a *run record*: what ran, where, and what came out. Everything that the workshop draws or compares
# comes from such records.

# %%
for epoch in record["epochs"]:
    print(f"test accuracy {epoch['test_accuracy']:.2%}, at {epoch['samples_per_s']:,.0f} images per second")
print("the ranks hold the same network in the end:", record["ranks_identical"])
guess.compare(100 * record["epochs"][-1]["test_accuracy"]) if record["epochs"] else print("stopped before the end")

# %% [markdown]
# Guessing at random would give 10 %.
#
# *Try it:* train again with `epochs=3`, or on one rank (`ranks.start(1).train(...)`), and press *Stop* in the middle.
#
# ## Exercises and checks
#
# Each notebook has a few exercises. Replace the line that raises `NotImplementedError`, run the cell, and run the
# cell after it: it sends **your** function to the ranks, calls it there, and says which properties hold. The
# first property that fails comes with a hint. (Before you have done anything, it says "not solved yet".) Checks judge what your function does, not how it is written, so any
# right way passes. Solved notebooks are in the folder `solutions`; try first.
#
# ### Exercise 1: who am I?
#
# Every rank calls `whoami` with a communicator. Return two numbers: the rank's own number in it, and how many ranks
# it has.


# %%
def whoami(comm):
    # <solution>
    return comm.rank, comm.size
    # <stub>
    # # `return a, b` returns two values
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.whoami(whoami)

# %% [markdown]
# *Try it:* give a wrong answer on purpose, such as the two numbers in the other order, or `print` instead of `return`,
# and read what the check says.
#
# ### Exercise 2: my part
#
# There are `n` items, numbered from 0, to be shared out to `size` ranks. Return two whole numbers `start, stop`: the
# rank with number `rank` takes the items from `start` up to, but not including, `stop`, as in `range(start, stop)`. Each
# item must be taken by exactly one rank, and no rank may get more than one item more than another: the
# others would wait for it. Mind that `n` need not divide by `size`. For 7 items on 3 ranks, `0, 2`, `2, 4` and
# `4, 7` would do, and so would other ways.


# %%
def my_part(n, rank, size):
    # <solution>
    return n * rank // size, n * (rank + 1) // size
    # <stub>
    # # `a // b` divides and drops what is left over, `a % b` is what is left over
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.my_part(my_part)

# %% [markdown]
# This function is the core of every distributed training: it decides who learns from which data.
#
# ## What comes next
#
# These notebooks, best in this order. Each starts its own ranks, so any of them can also be run alone.

# %%
rows = ["| notebook | topic | minutes |", "|---|---|---|"]
for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")):
    opening = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    title, minutes = re.findall(r"# (.+)", opening)[0], re.findall(r"(\d+) minutes", opening)
    rows.append(f"| [{path.stem}]({path.name}) | {title} | {''.join(minutes)} |")
Markdown("\n".join(rows))

# %% [markdown]
# ## Remember
#
# - A rank is a process with a number. All ranks run the same code; `comm.rank` tells them apart.
# - Ranks share no memory. `pull`, `push` and `run` go between the notebook and the ranks.
# - When a rank fails, one message says who and where; `team.restart()` brings fresh ranks with empty memory.
# - Predict first, then measure.
#
# **Sources.** MPI is defined by the Message Passing Interface Forum, *MPI: A Message-Passing Interface Standard*
# (mpi-forum.org); `mpi4py`, through which Python speaks it, is by L. Dalcin and others (doi:10.1016/j.jpdc.2005.03.010).
# The engines behind `%%ranks` are those of ipyparallel. MNIST is by Y. LeCun, C. Cortes and C. Burges
# (Y. LeCun et al., *Gradient-Based Learning Applied to Document Recognition*, Proceedings of the IEEE 86, 1998).

# %%
ranks.stop()
