# %% [markdown]
# # Start here
#
# Your model trains in four days on one device. You have eight devices. Will it take half a day? And if a colleague's model
# doesn't even fit on one device, do eight help at all?
#
# **You will** see how a training run can be split across devices, and which way to try first. Then you'll check your machine,
# start several processes from this notebook, watch one of them fail, and train your first network on all of them.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network.
#
# A notebook is made of *cells*. Click on one and press **Shift+Enter** to run it and move on to the next. Run them from top to
# bottom, because later cells use what earlier ones define. The ■ button interrupts a cell that takes too long. Change things
# as you go, especially where it says *Try it*. If something breaks, run the notebook again from the top.

# %%
import os

from IPython.display import Markdown

from workshop_lib import ranks
from workshop_lib.cli import doctor
from workshop_lib.lessons.start_here import figures
from workshop_lib.lessons.start_here import judge as check
from workshop_lib.maintain import generate
from workshop_lib.notebook import profile
from workshop_lib.notebook.prediction import predict
from workshop_lib.training.options import TrainOptions

# %% [markdown]
# ## Why split a training run?
#
# In *distributed* training, several processes train one network together. People do it for three reasons: the data has grown
# so large that a pass over it takes days; the model has grown too large for one device; or they want an answer today, because
# the next idea depends on it. What you split depends on the reason:

# %%
figures.splits()

# %% [markdown]
# A rank is one of the processes (more on ranks below). Colored boxes show what it holds, dotted ones what it lacks. *State*
# is what the optimizer remembers; for Adam, that's twice the size of the weights. Below each picture are the messages that
# this way of splitting needs, and they decide how far it scales. Notebooks 02 to 05 split the data, 06 splits the
# optimizer's state, the gradients and the weights, and 11 and 11b split the layers themselves.
#
# ### Which one first?
#
# | your situation | start with | because |
# |---|---|---|
# | one device gives you a good result overnight | PyTorch alone | every other row costs you time and gives you new ways to fail |
# | too slow, but model, gradients and optimizer state fit on one device | DDP (02, 05) | it takes only a few lines, and most of its messages hide behind the computation |
# | the optimizer's state or the weights no longer fit | FSDP, or DeepSpeed's ZeRO (06) | each rank keeps only a share; splitting the weights too takes one and a half times the bytes of DDP |
# | a single layer doesn't fit, or you have hundreds of GPUs | tensor parallelism inside a node (11), a pipeline between nodes (11b), and FSDP around both (12 helps you choose) | they send more often or leave ranks idle, so use them only where the rows above can't help |
# | many settings to try | one run per device (14) | runs that never talk to each other scale perfectly |
#
# **And if you don't need it, don't.** First get a good model on *one* device, from a random subset of the data. A bug costs
# seconds there, and if the model can't learn from a tenth of the data, eight devices will only make it fail faster. Distribute
# when the model is right and the waiting hurts.
#
# ### What about the other names?
#
# | name | where it stands today |
# |---|---|
# | Horovod | The documents behind this workshop, from 2018 and 2019, say "use Horovod over MPI". That was right then, but it's out of date: Horovod's last release was in June 2023. Still, it's worth an hour (03, 04), because its ideas are in everything since: allreduce instead of parameter servers, small tensors fused into large messages, and one line to change. |
# | DeepSpeed | Alive. It invented ZeRO; PyTorch's FSDP is the same idea without another library. Choose DeepSpeed if you want to offload to main memory or disk. |
# | Keras 3 | Runs on TensorFlow, JAX or PyTorch. Its own `keras.distribution` was built for JAX; on PyTorch, wrap the model in DDP. |
# | TensorFlow's `tf.distribute` | Good on one host. Between hosts it coordinates through *gRPC*, which runs over plain TCP, and you have to list every address in `TF_CONFIG`. On HPC systems gRPC leaves the fast network idle, so people there send gradients through MPI or NCCL instead. |
# | `torch.nn.DataParallel` | Don't. One process drives all GPUs, with one thread for each. It copies the model to them in every step, and its threads fight over Python's lock. PyTorch itself recommends DDP, even on one machine. |
#
# A laptop shows you most of what matters: messages, waiting, wrong averages, large batches that stop learning. It can't show
# you a network between machines, GPUs that are faster than their links, or a file system with a thousand readers. For these,
# the notebooks show published measurements, and you can run the same notebooks on a cluster.
#
# ## Is this machine ready?
#
# The next cell runs the *doctor*, which checks everything the workshop needs. Each line begins with *ok*, *warn* (it works,
# but you should know something) or *fail*. Under a warning or a failure, an arrow says what to do.

# %%
healthy = doctor.main() == 0
print("Ready." if healthy else "Something is missing: see the lines that begin with 'fail'.")

# %% [markdown]
# The *profile* decides how long the runs in all notebooks take. It's `laptop` unless you start JupyterLab with a different
# one, as in `WORKSHOP_PROFILE=quick make lab`. `quick` has the smallest sizes that still run, and `cluster` is for many cores
# or GPUs.

# %%
sizes = profile.current()
images = sizes.train_samples or 60_000
print(f"profile {sizes.name}: {sizes.ranks} ranks, training with {images:,} images")

# %% [markdown]
# ## Ranks
#
# A *process* is a running program with memory of its own. This notebook's process is called its *kernel*. The next cell starts
# several more processes, which will work together. They're numbered from 0. Each of them is called a *rank*, and so is its
# number. They talk to each other through *MPI*, the Message Passing Interface.

# %%
team = ranks.start(sizes.ranks)
team

# %% [markdown]
# A cell that begins with `%%ranks` runs on every rank at once, instead of in the notebook. Whatever a rank prints appears
# with its number in front.

# %%
# %%ranks
from mpi4py import MPI

comm = MPI.COMM_WORLD
print(f"I am rank {comm.rank} of {comm.size}")

# %% [markdown]
# All ranks ran the same code. `comm` is a *communicator*, a group of ranks that can talk to each other; `MPI.COMM_WORLD` holds
# all of them. `comm.rank` is the number of the rank that asks, and `comm.size` says how many there are. Programs use
# `comm.rank` to give each rank its own part of the work. Anything else that differs between ranks, such as a clock, a random
# seed or a local file, can make them do different things by accident.
#
# ## Each rank has its own memory
#
# Suppose `x` is 0 on every rank, and then every rank adds 1 to `x` a thousand times.

# %%
guess = predict("What is x on rank 0 in the end?", low=0, high=10_000)
guess

# %% [markdown]
# Questions like this one come before results that surprise many people. Move the slider and commit to a guess before you go
# on. You'll remember a wrong guess longer than an explanation you only read.

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
# Every rank has its own `x`, and no other rank can change it. *Threads* would be different: the threads of a process share all
# of its memory, and four of them adding to one `x` get in each other's way. Processes share nothing, so if a rank needs to
# know something, another one has to send it. The notebook is yet another process:

# %%
print(f"Does the notebook have an x? {'x' in globals()}")

# %% [markdown]
# The notebook can reach the ranks in three ways. You've seen `pull`. `push` sets a variable on every rank, and `run` calls one
# of the notebook's functions on every rank and returns a list of the results.

# %%
team.push(greeting="hello")
team.pull("greeting")


# %%
def answer(question):
    return f"{question} I am process {os.getpid()}."


print("the notebook:", answer("Who are you?"))
print("the ranks:   ", team.run(answer, "Who are you?"))

# %% [markdown]
# *Try it:* in a `%%ranks` cell, let rank 0 make an empty list, rank 1 a list with one element, rank 2 one with two, and so on.
# Then pull them.
#
# ## When a rank fails
#
# Programs on many ranks fail in an unpleasant way, because ranks wait for each other. If a rank is killed, MPI's launcher
# usually notices and ends the whole job. But if its Python code just raises an error, the other ranks may wait indefinitely.
# [01_mpi_basics](01_mpi_basics.ipynb) shows why, and what to do about it. Here the last rank raises an error while the others
# are in `Barrier`, a call that returns once every rank has called it. (`--catch` prints the error, so that "Run all" keeps
# going.)

# %%
# %%ranks --catch
if comm.rank == comm.size - 1:
    raise ValueError("something is wrong with my data")
comm.Barrier()

# %% [markdown]
# Within seconds the message tells you which rank failed, why, and on which line each of the other ranks was waiting. Read such
# a message from the top: first comes the error, then the ranks that were waiting.
#
# The workshop ended the waiting ranks as well, since nothing would ever have released them. `team.restart()` starts fresh
# ones, with empty memory.

# %%
team.restart()

# %% [markdown]
# *Try it:* let a rank call `os._exit(1)`, which ends it on the spot, as if its machine had lost power. Or let it run
# `while True: pass`, and give the cell a limit with `%%ranks --timeout 5`. (The ranks are new, so begin the cell with
# `import os` and the two lines that define `comm`.)
#
# ## The first training
#
# Now train a network on all ranks. It's a small convolutional network that learns to read handwritten digits from the MNIST
# collection. Each rank works on its own part of the images, and after every step the ranks average their gradients. (You'll
# write that yourself in notebook 02.) One pass over all training images is an *epoch*. The *test accuracy* is the share of
# correct answers on images the network never trained on. Guessing at random gives 10 %.

# %%
guess = predict(f"Test accuracy after one epoch with {images:,} images?", low=10, high=100, unit="%")
guess

# %% [markdown]
# While it trains, you'll see the accuracy rise and the *loss* fall. (The loss measures how wrong the network's answers are.) A
# strip under the curves shows how each rank spends its time. The *Stop* button ends the run cleanly, on all ranks at once.

# %%
options = TrainOptions(backend="mpi", epochs=1, train_samples=sizes.train_samples)
record = team.train(options, timeout=sizes.timeout_s)

# %% [markdown]
# `train` returns a *run record*: what ran, where, and what came out. Everything the workshop draws or compares comes from
# such records.

# %%
for epoch in record["epochs"]:
    print(f"test accuracy {epoch['test_accuracy']:.2%}, at {epoch['samples_per_s']:,.0f} images per second")
print("the ranks hold the same network in the end:", record["ranks_identical"])

# %%
guess.compare(max([100 * epoch["test_accuracy"] for epoch in record["epochs"]], default=None))

# %% [markdown]
# *Try it:* train again with `epochs=3`, or on one rank (`ranks.start(1).train(...)`), or press *Stop* in the middle.
#
# ## Exercises and checks
#
# Each notebook has a few exercises. Replace the line that raises `NotImplementedError`, run the cell, then run the cell after
# it. The check sends **your** function to the ranks, calls it there, and tells you what's right about the result. It stops at
# the first thing that's wrong and gives you a hint. It looks at what your function does, not at how you wrote it. If you're
# stuck, open the hints one after the other; the last one is a solution.
#
# ### Exercise 1 (warm-up): who am I?
#
# Almost every MPI program begins with this question. Every rank calls `whoami` with a communicator. Return two numbers: the
# rank's own number in that communicator, and how many ranks there are in it.
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
check.whoami(whoami)

# %% [markdown]
# *Break it:* swap the two numbers, or `print` them instead of returning them, and read what the check says.
#
# ### Exercise 2 (normal): my part
#
# With this function you can share out anything among ranks: images, files, settings to try. Items are numbered from 0 to
# `n - 1`. Rank `rank` of `size` takes those from `start` up to, but not including, `stop`, as in `range(start, stop)`. Each
# item belongs to exactly one rank, and the ranks' shares differ by at most one item, because ranks with less work have to wait
# for the others. `n` isn't always a multiple of `size`: for 7 items on 3 ranks, `0, 2` and `2, 4` and `4, 7` would be fine.
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
    """The `start, stop` of this rank's items, when `n` items are shared out among `size` ranks."""
    # <solution>
    return n * rank // size, n * (rank + 1) // size
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.my_part(my_part)

# %% [markdown]
# Every distributed training loop has a function like this at its heart: it decides which rank learns from which data.
# *Beat it:* can you do it in one line, without an `if`? Then try the obvious shortcut: every rank takes `n // size` items, and
# the last one also takes everything that's left over. How much longer does a step with 103 samples take on 8 ranks now?
#
# ## What comes next
#
# If you have half a day, follow the core path: 00, 01, 02, 05, 07, 08. Every notebook starts its own ranks, so you can also
# start with whichever interests you. The minutes in the table below are an estimate: 130 words or 12 lines of code per
# minute, a minute per prediction, and for each exercise 5, 12 or 25 minutes, because its heading says whether it's a warm-up,
# normal or hard. The runs are included, as we timed them on a laptop.
# Later notebooks build on the *core* of a notebook, but never on
# its *Deeper* sections. The last column counts the exercises you've solved so far; run the cell again to bring it up to date.
# In a class, `workshop share FOLDER` shows the room your guesses and what you solved, under a pseudonym. `--stop` takes them
# back.

# %%
Markdown(generate.overview("00_start_here"))

# %% [markdown]
# Every technique also comes as a plain script that you can take home, in the folder [scripts](scripts). Each has fewer than 60
# lines and needs nothing from this repository.
#
# ## Remember
#
# - Get a good model on one device first. Then DDP if it's slow, FSDP if it doesn't fit.
# - A rank is a process with a number. All ranks run the same code; `comm.rank` gives each its part.
# - Ranks share no memory. The notebook reaches them with `pull`, `push` and `run`.
# - When a rank fails, one message tells you which one and where; `team.restart()` starts fresh ranks.
# - Predict first, then measure.
#
# **Sources.** P. Goyal et al., *Accurate, Large Minibatch SGD* (arXiv:1706.02677), for data parallelism; S. Rajbhandari et al.,
# *ZeRO* (arXiv:1910.02054), for the optimizer's state; Y. Huang et al., *GPipe* (arXiv:1811.06965), for layers; M. Shoeybi et
# al., *Megatron-LM* (arXiv:1909.08053), for tensors; A. Sergeev and M. Del Balso, *Horovod* (arXiv:1802.05799). MPI is defined
# by the Message Passing Interface Forum (mpi-forum.org); `mpi4py` is by L. Dalcin and others
# (doi:10.1016/j.jpdc.2005.03.010). The engines behind `%%ranks` come from ipyparallel. MNIST: Y. LeCun et al.,
# *Gradient-Based Learning Applied to Document Recognition* (Proceedings of the IEEE 86, 1998).

# %%
ranks.stop()
