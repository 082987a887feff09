# %% [markdown] track="core path"
# # MPI basics
#
# Every training step on many devices ends with the same question: what's the sum of all our gradients? On a thousand GPUs
# it's answered in milliseconds, and nobody in the middle adds anything up. How?
#
# **You will** send messages between processes and measure what they cost, cause a deadlock and cure it, see the collectives
# that distributed training is made of, and write the most important one yourself. At the end you'll have a program that runs
# without this notebook.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. If `%%ranks` is new to you,
# begin with [00_start_here](00_start_here.ipynb).

# %%
import sys

import numpy as np

from workshop_lib import ranks
from workshop_lib.lessons.mpi_basics import figures, programs
from workshop_lib.lessons.mpi_basics import judge as check
from workshop_lib.lessons.mpi_basics import schedule_figures as schedules
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD
from workshop_lib.ranks import mpi, scripts
from workshop_lib.training.cores import usable_cores

folder = BUILD / "01_mpi_basics"
folder.mkdir(parents=True, exist_ok=True)
team = ranks.start(2)
team

# %% [markdown]
# ## Rank and size
#
# *MPI*, the Message Passing Interface, is a standard for programs made of many processes. Each process is a *rank*, numbered
# from 0. A *communicator* is a group of ranks that can talk to each other, and `COMM_WORLD` holds them all. Whatever you ask of
# MPI, you ask a communicator.

# %%
# %%ranks
from mpi4py import MPI

comm = MPI.COMM_WORLD
print(f"rank {comm.rank} of {comm.size}")

# %% [markdown]
# Every MPI program needs three things: a call to `MPI_Init` before anything else, a call to `MPI_Finalize` at its end, and a
# launcher such as `mpiexec -n 4`, which starts it as several processes that know about each other. In Python,
# `from mpi4py import MPI` does the first, and the second happens when Python exits. Remember that: it will matter when a rank
# fails.
#
# <details><summary>The same program in C</summary>
#
# ```c
# #include <mpi.h>
# #include <stdio.h>
#
# int main(int argc, char **argv) {
#     int rank, size;
#     MPI_Init(&argc, &argv);
#     MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#     MPI_Comm_size(MPI_COMM_WORLD, &size);
#     printf("rank %d of %d\n", rank, size);
#     MPI_Finalize();
# }
# ```
#
# Compile it with `mpicc hello.c -o hello`, which knows where `mpi.h` and the library are, and start it with
# `mpiexec -n 4 ./hello`.
#
# </details>
#
# ## Send and receive
#
# Ranks share no memory. If rank 1 needs to know what rank 0 holds, rank 0 has to *send* it and rank 1 has to *receive* it: two
# matching calls, on two ranks. Both ranks run the cell below, and the `if` gives each its part.

# %%
# %%ranks
if comm.rank == 0:
    comm.send({"epoch": 3, "loss": 0.25}, dest=1)
if comm.rank == 1:
    message = comm.recv(source=0)
    print("received", message)

# %% [markdown]
# `recv` is *blocking*: it returns only when the message has arrived. A message can carry a number, its `tag`, so that the
# receiver can tell messages apart.
#
# mpi4py has two versions of every call. Lower-case `send` takes any Python object and turns it into bytes. Upper-case `Send`
# takes an array and sends its memory as it is, into an array that the receiver has allocated. Use upper case for anything
# large. (In C you'd also say how many elements there are and of which type. mpi4py reads both from the array.)
#
# ## What does a message cost?
#
# In a *ping-pong* two ranks send the same message back and forth. Half of a round trip is the time one message takes. We'll
# measure it for messages from 8 bytes to 8 megabytes.

# %%
guess = predict("How many times longer do 2,048 bytes take than 8?", low=1, high=256, unit="times")
guess

# %%
# %%ranks
import time

import numpy as np


def ping_pong(nbytes, times=50):
    """Seconds for one message: the median of `times`, and the 10th and 90th percentile."""
    ball = np.zeros(nbytes, dtype=np.uint8)
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        if comm.rank == 0:
            comm.Send(ball, dest=1)
            comm.Recv(ball, source=1)
        else:
            comm.Recv(ball, source=0)
            comm.Send(ball, dest=0)
        seconds.append((time.perf_counter() - start) / 2)
    return np.percentile(seconds, [50, 10, 90])


ping_pong(8)  # the first messages open the connection: not measured
timings = [(nbytes, *ping_pong(nbytes)) for nbytes in 8 * 4 ** np.arange(11)]

# %%
nbytes, median_s, low_s, high_s = np.array(team.pull("timings")[0]).T
of_8, of_2048 = np.searchsorted(nbytes, [8, 2048])
spread = (low_s[of_2048] / high_s[of_8], high_s[of_2048] / low_s[of_8])
guess.compare(median_s[of_2048] / median_s[of_8], spread=spread)

# %% [markdown]
# 256 times the data, yet hardly any more time. Here are all sizes; both axes are logarithmic.

# %%
alpha_s = median_s.min()
beta_s_per_byte = (median_s[-1] - alpha_s) / nbytes[-1]
print(f"latency α {1e6 * alpha_s:.2f} µs, bandwidth 1/β {1e-9 / beta_s_per_byte:.2f} GB/s")
print(f"both cost the same at {alpha_s / beta_s_per_byte:,.0f} bytes")
figures.message_times(nbytes, [median_s, low_s, high_s], alpha_s, beta_s_per_byte)

# %% [markdown]
# On the left the curve is flat: a small message costs the same, however small it is. That's the *latency*, $\alpha$. On the
# right the time grows with the bytes: each one adds $\beta$ seconds, and $1/\beta$ is the *bandwidth*. Every cost estimate in
# this workshop starts from this little model, $\alpha + \beta \cdot \text{bytes}$.
#
# Remember the size at which the two cost the same. Below it, combine small messages into fewer, larger ones. Above it, only
# sending fewer bytes helps. (Over a network the numbers change, but the curve keeps its shape. Where it jumps off the line,
# MPI switches to a different method.)
#
# ## Deadlock
#
# Two ranks want to swap their arrays. Each sends its own first and then receives the other's. `Ssend` is a *synchronous* send:
# it returns only when the receiver has begun to receive. We give the cell five seconds.

# %%
# %%ranks --catch --timeout 5
mine = np.full(10, comm.rank)
theirs = np.empty_like(mine)
comm.Ssend(mine, dest=1 - comm.rank)
comm.Recv(theirs, source=1 - comm.rank)

# %% [markdown]
# Each rank waits for the other to receive, so neither ever reaches its own `Recv`. That's a *deadlock*. Nothing fails and
# nothing is computed. Plain MPI would wait indefinitely; here the message tells you on which line each rank is stuck.
#
# An ordinary `Send` may copy a small message into a *buffer* and return at once, but it waits like `Ssend` when the message is
# large. So a program with this mistake passes its tests on small data, then hangs on the real data. *Try it:* replace `Ssend`
# with `Send`, then send a million numbers instead of ten. (Run the notebook from the top again first, because these ranks are
# gone.)
#
# From here on we use four ranks, as many as in the pictures that follow.

# %%
team.restart(4)
print(f"{team.n} ranks on {usable_cores()} cores")

# %% [markdown]
# With more ranks than cores the machine is *oversubscribed*, and ranks take turns on a core. That's fine for seeing who gets
# what, but not for measuring speed.
#
# ## Exercise 1 (normal): swap without deadlock
#
# Neighbors swap data all the time, in simulations as well as in the ring below. Your `exchange` lets ranks swap their arrays
# in pairs, 0 with 1 and 2 with 3, without getting stuck. In the check, every send waits for its receiver, as `Ssend` does.
#
# <details><summary>Hint 1: the order</summary>
#
# What if only one of the two sends first? `comm.rank < partner` tells them apart.
#
# </details><details><summary>Hint 2: or let MPI do it</summary>
#
# `comm.Sendrecv(array, dest=…, recvbuf=…, source=…)` sends and receives at once. `Isend` and `Irecv` return a request
# immediately; call its `Wait()` before you use the array.
#
# </details><details><summary>Solution</summary>
#
# {solution of exchange}
#
# </details>


# %%
def exchange(comm, mine):
    """The partner's array, which has the length and type of `mine`. Leaves `mine` unchanged. Called on every rank."""
    partner = comm.rank ^ 1  # the number with its last bit flipped
    # <solution>
    theirs = np.empty_like(mine)
    comm.Sendrecv(mine, dest=partner, recvbuf=theirs, source=partner)
    return theirs
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.exchange(exchange)

# %% [markdown]
# *Break it:* let both partners receive first. Does a short message help this time?
#
# ## Deeper: it ran on your laptop. Would it always?
#
# A program that passes its tests has shown you one order of events. On the cluster, with larger messages and other delays,
# there will be others. For a small program you can try them all. `explore` plays every rank in this notebook, without real
# ranks, and decides for itself which message comes first and whether a send waits for its receiver (*rendezvous*) or returns
# because MPI has copied the message into a buffer (*eager*). It runs the program again for each order that could end
# differently.

# %%
from mpi4py import MPI


def swap(comm):
    mine = np.full(10, comm.rank)
    theirs = np.empty_like(mine)
    comm.Send(mine, dest=1 - comm.rank)
    comm.Recv(theirs, source=1 - comm.rank)
    return theirs


schedules.explore(swap, ranks=2)

# %% [markdown]
# With ten numbers, this program runs on any machine you're likely to try. Nothing in the standard promises that it will.
#
# Sends aren't the only thing MPI leaves open. `source=MPI.ANY_SOURCE` takes a message from whoever comes first, so that rank 0
# doesn't have to wait for a slow rank while others are ready. Here rank 0 takes whichever result comes first, and then rank
# 2's.


# %%
def two_results(comm):
    if comm.rank > 0:
        comm.send(comm.rank**2, dest=0)
        return None
    first = comm.recv(source=MPI.ANY_SOURCE)
    return first + comm.recv(source=2)


schedules.explore(two_results, ranks=3)

# %% [markdown]
# As long as rank 1 is quicker, all is well. One day rank 2 is, rank 0 takes its message first, and then waits for another one
# that nobody sends. This is a *message race*, and it's why such bugs show up once in a hundred jobs. *Try it:* replace the `2`
# in the last line with another `MPI.ANY_SOURCE`, and return `[first, second]` instead of the sum.
#
# ### Exercise 1b (normal): first come, first served
#
# Now take results as they come, and still return the same list each time. Your `collect` returns all ranks' results on rank 0,
# in the order of the ranks. The check tries every order in which they can arrive.
#
# <details><summary>Hint 1: who sent it?</summary>
#
# `status = MPI.Status()` makes a note that a receive fills in: after
# `value = comm.recv(source=MPI.ANY_SOURCE, status=status)`, `status.source` is the rank that sent the message, and
# `status.tag` its tag.
#
# </details><details><summary>Hint 2: a place for each rank</summary>
#
# Begin with `results = [None] * comm.size`. Rank 0's own result needs no message.
#
# </details><details><summary>Solution</summary>
#
# {solution of collect}
#
# </details>


# %%
def collect(comm, result):
    """On rank 0, a list of all ranks' results in the order of the ranks; None elsewhere. Called on every rank."""
    from mpi4py import MPI

    # <solution>
    if comm.rank > 0:
        comm.send(result, dest=0)
        return None
    results, status = [result] + [None] * (comm.size - 1), MPI.Status()
    for _ in range(comm.size - 1):
        value = comm.recv(source=MPI.ANY_SOURCE, status=status)
        results[status.source] = value
    return results
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.collect(collect)

# %%
schedules.explore(lambda comm: collect(comm, comm.rank**2), ranks=4)

# %% [markdown]
# *Break it:* send each result in two messages, first its length and then its values. What has to change on rank 0?
#
# The explorer works on small programs only: up to four ranks, and the calls of this notebook. It gives up after a thousand
# runs or six seconds, and says so. It tells you about mismatched collectives, wrong types and lengths, and arrays that are used
# before a `Wait`, too. Tools for real programs, such as ISP and MUST, look for the same faults.
#
# ## The collectives
#
# A *collective* is a call that all ranks of a communicator make together. With a handful of them you can write nearly every
# parallel program without a single `send`. The pictures show what each rank holds before and after, and they're drawn from the
# ranks' actual variables. In the value `10 * rank + i`, the tens digit tells you which rank it came from.
#
# In a **broadcast**, one rank, the *root*, gives the same thing to everyone. That's how all ranks begin training with the same
# weights.

# %%
# %%ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank = comm.rank
before = [10, 11] if rank == 1 else None
after = comm.bcast(before, root=1)


# %%
def picture(name):
    """What the ranks hold in `before` and `after`."""
    return figures.collective(name, team.pull("before"), team.pull("after"))


picture("bcast, root 1")

# %% [markdown]
# In a **scatter**, the root deals out a list, one element per rank. In training, these could be parts of the data. A
# **gather** is the reverse: the root gets a list with one element from each rank, such as their measurements.

# %%
# %%ranks
before = [10, 11, 12, 13] if rank == 1 else None
after = comm.scatter(before, root=1)

# %%
picture("scatter, root 1")

# %%
# %%ranks
before = 10 * rank
after = comm.gather(before, root=0)

# %%
picture("gather, root 0")

# %% [markdown]
# An **allgather** gives that list to everyone. When each rank keeps only a share of the weights, an allgather brings them
# together just before they're needed.

# %%
# %%ranks
before = 10 * rank
after = comm.allgather(before)

# %%
picture("allgather")

# %% [markdown]
# A **reduce** combines the ranks' values and gives the result to the root. It adds them unless you say otherwise (`op=MPI.MAX`
# takes the largest), and it combines arrays element by element. An **allreduce** gives the result to everyone. Training uses
# it in every single step, to add up all gradients, so its speed depends on this collective more than on any other. Stripes
# mark a sum.

# %%
# %%ranks
before = np.array([10 * rank, 10 * rank + 1])
after = comm.allreduce(before, op=MPI.SUM)

# %%
picture("allreduce")

# %% [markdown]
# A **reduce-scatter** adds up in the same way, but each rank gets only its own part of the sum. It's the collective behind
# ZeRO and FSDP, where a rank needs gradients only for the share of the weights that it updates.

# %%
# %%ranks
before = 10 * rank + np.arange(4)
after = np.empty(1, dtype=before.dtype)
comm.Reduce_scatter_block(before, after)

# %%
picture("reduce-scatter")

# %% [markdown]
# In an **all-to-all**, each rank has something for every rank: element `i` of rank `j`'s list becomes element `j` of rank
# `i`'s. Three kinds of training need it. In a *mixture of experts*, every token travels to the rank that holds its expert.
# *Sharded embeddings* send each index to the rank that holds its row. *Sequence parallelism* swaps a split by position for a
# split by attention head.

# %%
# %%ranks
before = [10 * rank + i for i in range(4)]
after = comm.alltoall(before)

# %%
picture("alltoall")

# %% [markdown]
# *Try it:* another root, `op=MPI.MAX`, or lists of strings. `picture` only looks at `before` and `after`.
#
# **The danger.** Collectives carry no labels. MPI matches the first collective of each rank with the first of the others, the
# second with the second, and so on. If one rank calls `bcast` while another calls `reduce`, or skips one because of an `if`,
# MPI promises nothing: the program may hang, crash, or go on with wrong numbers. Two rules help. Call the same collectives in
# the same order on every rank, and never put one inside an `if comm.rank == 0:`. *Try it:* in the scatter cell, put
# `if rank > 0:` in front of the last line. You probably won't get an error, but look at rank 0 in the picture: what it shows
# is left over from an earlier cell. Then add `--catch --timeout 5` to the cell and let the root skip the call, with
# `if rank != 1:`. (These ranks are gone afterwards: call `team.restart()` and run the broadcast cell again.)
#
# ## Inside an allreduce
#
# How would you build an allreduce from sends? The obvious way is for every rank to send its array to rank 0, which adds them
# up and sends the sum back. With $p$ ranks, rank 0 then receives $p - 1$ arrays and sends $p - 1$. The more ranks there are,
# the longer they all wait for rank 0.
#
# The *ring* spreads that work evenly. Each rank cuts its array into $p$ *chunks* and sends only to its neighbor on the right
# (for the last rank, that's rank 0). In the picture, each cell lists the ranks whose values have been added up in it, and a
# thick frame marks a chunk that has just come in from the left.

# %%
figures.ring(4)

# %% [markdown]
# In the first $p - 1$ steps each rank adds the chunk that arrives to its own, and sends this sum on in the next step.
# Afterwards each rank holds one chunk of the complete sum: that's a reduce-scatter. In another $p - 1$ steps the finished
# chunks go round until every rank has all of them: that's an allgather. So
#
# $$\text{allreduce} = \text{reduce-scatter} + \text{allgather}.$$
#
# In each of the $2(p-1)$ steps, a rank sends one chunk, which is $1/p$ of the array. Altogether it sends $\frac{2(p-1)}{p}$
# times the size of the array: less than twice, no matter how many ranks there are. As long as ranks only send messages to each
# other, no allreduce can do it with fewer bytes (Patarasuk and Yuan, 2009).

# %%
print("   ranks   ring: each rank sends   plain: rank 0 sends   ring: steps")
for p in (2, 4, 16, 256, 4096):
    print(f"{p:>8,}   {2 * (p - 1) / p:>14.3f} arrays   {p - 1:>12,} arrays   {2 * (p - 1):>11,}")

# %% [markdown]
# The last column is the price: the ring pays the latency $2(p-1)$ times. For small arrays, other algorithms are faster. In
# *recursive doubling*, for example, rank `r` swaps everything it has with rank `r ^ 2**k` in step `k`, counted from 0, and is
# done after $\log_2 p$ steps. MPI picks an algorithm by the size of the array.
#
# ## Exercise 2 (hard): the ring allreduce
#
# Horovod and NCCL add up large gradients this way, and you can write it in about ten lines. The check gives you a communicator
# that has only `rank`, `size`, sends and receives, and it counts what you send. Each rank must send $2(p-1)/p$ of the array,
# in $2(p-1)$ messages. In each round a rank can send one message and receive one, and you have $2(p-1)$ rounds.
#
# <details><summary>Hint 1: follow a chunk</summary>
#
# Follow one chunk through the picture. Then write down which chunk rank $r$ sends in each of the first few
# steps, and which one it receives.
# `(rank - 1) % p` wraps around the ring: for rank 0 it's $p - 1$.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `chunks = np.array_split(total, p)` cuts an array of any length into $p$ *views*: if you change one, you change `total`. In
# step $s$, counted from 0, rank $r$ sends `chunks[(r - s) % p]`, and what it receives belongs to `chunks[(r - s - 1) % p]`.
#
# </details><details><summary>Hint 3: the two phases</summary>
#
# Use `Sendrecv`, and receive into a new array that's as long as the arriving chunk, `incoming = np.empty_like(…)`. In the
# first $p - 1$ steps, *add* it to your own chunk (`chunk += incoming`). In the other steps, *replace* your chunk with it
# (`chunk[:] = incoming`).
#
# </details><details><summary>Solution</summary>
#
# {solution of ring_allreduce}
#
# </details>


# %%
def ring_allreduce(comm, values):
    """A new array: the sum of all ranks' `values`. All have the same length, which p need not divide."""
    p = comm.size
    right, left = (comm.rank + 1) % p, (comm.rank - 1) % p
    # <solution>
    total = values.copy()
    chunks = np.array_split(total, p)
    for step in range(2 * (p - 1)):
        outgoing = chunks[(comm.rank - step) % p]
        place = chunks[(comm.rank - step - 1) % p]  # the chunk that arrives now, and leaves in the next step
        incoming = np.empty_like(place)
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
        if step < p - 1:
            place += incoming  # reduce-scatter
        else:
            place[:] = incoming  # allgather
    return total
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.ring_allreduce(ring_allreduce)

# %% [markdown]
# *Beat it:* for eight numbers on four ranks, write a version with fewer rounds than six. (The check will complain about the
# bytes, and it's right to.)
#
# ## Out of the notebook
#
# So far the notebook has started the ranks. On your own, you'll write a file and start it with `mpiexec`, in a terminal or in
# a job script.
#
# ### Exercise 3 (normal): hello.py
#
# Run this program first on every new cluster, because it shows where your processes really are. Each process prints a line
# such as `rank 0 of 3 on node17`. Then rank 0 alone prints `3 ranks on 2 hosts`. `%%writefile` writes the cell into a file,
# and the check runs that file as three processes.
#
# <details><summary>Hint 1</summary>
#
# `socket.gethostname()` returns the name of the host. Which collective brings all names to rank 0?
#
# </details><details><summary>Hint 2</summary>
#
# After `hosts = comm.gather(host)`, `hosts` is a list on rank 0 and `None` elsewhere. `len(set(hosts))` counts the different
# names.
#
# </details><details><summary>Solution</summary>
#
# ```python
# import socket
#
# from mpi4py import MPI
#
# comm = MPI.COMM_WORLD
# host = socket.gethostname()
# print(f"rank {comm.rank} of {comm.size} on {host}", flush=True)
# hosts = comm.gather(host)
# if comm.rank == 0:
#     print(f"{comm.size} ranks on {len(set(hosts))} hosts")
# ```
#
# </details>

# %%
# %%writefile {folder}/hello.py
# <solution>
import socket

from mpi4py import MPI

comm = MPI.COMM_WORLD
host = socket.gethostname()
print(f"rank {comm.rank} of {comm.size} on {host}", flush=True)
hosts = comm.gather(host)
if comm.rank == 0:
    print(f"{comm.size} ranks on {len(set(hosts))} hosts")
# <stub>
# raise NotImplementedError("your code here")
# </stub>
# </solution>

# %%
programs.hello(folder / "hello.py")

# %% [markdown]
# *Beat it:* print the lines in rank order, whatever order the processes run in.
#
# ### When a program fails
#
# Here's a program whose rank 1 fails while rank 0 waits for it. `start` runs it like a terminal would, but for six seconds at
# most.

# %%
# %%writefile {folder}/fails.py
import os
import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 1:
    if sys.argv[1] == "exit":
        os._exit(3)
    raise ValueError("my data is broken")
comm.Barrier()


# %%
def start(*words):
    try:
        scripts.run(*mpi.mpiexec(), "-n", 2, sys.executable, *words, timeout_s=6)
    except ranks.RankError as error:
        print(error)


start(folder / "fails.py", "exit")

# %% [markdown]
# `mpiexec` notices when a process exits like this, or is killed, and ends the whole job. Now the same with a plain Python error,
# which you'd expect to do less harm:

# %%
start(folder / "fails.py", "raise")

# %% [markdown]
# Rank 1 prints its error, and then nothing happens until the six seconds are over. When Python exits, mpi4py calls
# `MPI_Finalize` first. That waits for rank 0, which is waiting for rank 1. So the process never exits, `mpiexec` sees nothing
# wrong, and on a cluster the job would burn through its hours. The cure is two words: with `-m mpi4py`, an uncaught error
# calls `MPI_Abort`, which ends all ranks.

# %%
start("-m", "mpi4py", folder / "fails.py", "raise")

# %% [markdown]
# Start every Python program that uses MPI with `mpiexec -n N python -m mpi4py program.py`.
#
# ## Deeper: objects and arrays
#
# What does it cost to send an array with lower-case `send`? `send` turns any object into bytes with *pickle*, and the receiver
# builds a new object from them.

# %%
guess = predict("How many times faster is Send than send, for a million numbers?", low=0.5, high=20, unit="times")
guess

# %%
# %%ranks
import time

array = np.random.default_rng(comm.rank).random(1_000_000)


def lower_case(array):
    if comm.rank == 0:
        comm.send(array, dest=1)
    elif comm.rank == 1:
        comm.recv(source=0)


def upper_case(array):
    if comm.rank == 0:
        comm.Send(array, dest=1)
    elif comm.rank == 1:
        comm.Recv(array, source=0)


# %%
# %%ranks
spent = {lower_case: [], upper_case: []}
for call in [lower_case, upper_case] * 20 if comm.rank < 2 else []:
    start = time.perf_counter()
    call(array)
    comm.sendrecv(None, dest=1 - comm.rank, source=1 - comm.rank)  # rank 1 has it
    spent[call].append(time.perf_counter() - start)
lower_s, upper_s = spent[lower_case][1:], spent[upper_case][1:]  # without the first

# %%
lower, upper = (np.percentile(team.pull(name)[0], [25, 50, 75]) for name in ("lower_s", "upper_s"))
print(f"send {1e3 * lower[1]:.2f} ms, Send {1e3 * upper[1]:.2f} ms")
guess.compare(lower[1] / upper[1], spread=(lower[0] / upper[2], lower[2] / upper[0]))

# %% [markdown]
# Pickling copies the data once more on each side and allocates memory for it. So use upper-case calls for arrays, and
# lower-case ones for settings, names and results. With upper case, the receiver's array must have the right type and enough
# room: MPI copies bytes and checks hardly anything.
#
# ## Deeper: computing in parallel
#
# Do more ranks really make a computation faster? Let's try it with $\pi = \int_0^1 \frac{4}{1+x^2}\,dx$. The *midpoint rule*
# cuts the range into $n$ intervals, adds up the function's values at their midpoints, and divides by $n$. Each rank takes its
# part of the intervals, and an allreduce adds up the parts.

# %%
team.push(repeats=3, fine=50_000_000)


# %%
# %%ranks
def part_of_pi(n, rank, size):
    """What the intervals of `rank` contribute, when n intervals are shared out among `size` ranks."""
    start, stop = n * rank // size, n * (rank + 1) // size
    total = 0.0
    for first in range(start, stop, 50_000):  # in pieces that fit into a core's cache
        x = (np.arange(first, min(first + 50_000, stop)) + 0.5) / n
        total += (4 / (1 + x * x)).sum()
    return total / n


for n in (10, 100, 1000, 10_000):
    pi = comm.allreduce(part_of_pi(n, comm.rank, comm.size))
    if comm.rank == 0:
        print(f"{n:>6,} intervals: {pi:.12f}, wrong by {abs(pi - np.pi):.1e}")

# %% [markdown]
# With ten times the intervals, the error is a hundred times smaller. The number of ranks changes only the rounding, because it
# changes the order of the additions. Now let's see how long it takes, with many more intervals. Rank 0 goes first, alone,
# while the others sleep.

# %%
guess = predict("How many times faster are four ranks than one, on this machine?", low=0.5, high=5, unit="times")
guess

# %%
# %%ranks
alone_s = []
for _ in range(repeats if comm.rank == 0 else 0):
    start = time.perf_counter()
    part_of_pi(fine, 0, 1)
    alone_s.append(time.perf_counter() - start)

# %% [markdown]
# Now all of them together. A parallel computation takes as long as its slowest rank.

# %%
# %%ranks
together_s = []
for _ in range(repeats):
    comm.Barrier()
    start = time.perf_counter()
    pi = comm.allreduce(part_of_pi(fine, comm.rank, comm.size))
    together_s.append(comm.allreduce(time.perf_counter() - start, op=MPI.MAX))

# %%
alone_s, together_s = team.pull("alone_s")[0], team.pull("together_s")[0]
print(f"one rank {np.median(alone_s):.3f} s, four ranks {np.median(together_s):.3f} s, cores: {usable_cores()}")
spread = (min(alone_s) / max(together_s), max(alone_s) / min(together_s))
guess.compare(np.median(alone_s) / np.median(together_s), spread=spread)

# %% [markdown]
# The ranks talk only once, with eight bytes, so nothing but the number of cores limits them. Four ranks can be four times
# faster if there are four cores; two cores make them at most twice as fast. If you see less than that, something else is using
# the cores. It may be the waiting ranks themselves: in a `Barrier` they keep checking for messages, which takes time away from
# the ranks that work.
#
# *Try it:* use fewer intervals, with `team.push(fine=100_000)`. How many do you need before sharing the work pays off?
#
# ### Exercise 4 (warm-up): the mean of all values
#
# You'll need this one whenever you train: a loss or an accuracy over all ranks is a mean over *samples*, and the last batch is
# rarely the same size everywhere. So the ranks have *different numbers* of values, and some may have none.
#
# <details><summary>Hint 1</summary>
#
# Say rank 0 has the value [1], and rank 1 has [3, 5]. The mean is 3, but the mean of the means is 2.5. Which sums do you need?
#
# </details><details><summary>Hint 2</summary>
#
# Lower-case `comm.allreduce(number)` returns the sum of all ranks' numbers, on every rank.
#
# </details><details><summary>Solution</summary>
#
# {solution of global_mean}
#
# </details>


# %%
def global_mean(comm, values):
    """The mean of all ranks' values together, on every rank. `values` is an array, and may be empty."""
    # <solution>
    total = comm.allreduce(values.sum())
    count = comm.allreduce(len(values))
    return total / count
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.global_mean(global_mean)

# %% [markdown]
# *Beat it:* do it with a single allreduce instead of two.
#
# ## Deeper: your ring against MPI's
#
# How does your ring compare with MPI's own allreduce, on a million numbers? It isn't a fair race: MPI's is compiled, and here
# the ranks may have to share cores.


# %%
def race(ring, times=5):
    """Seconds of `ring` and of MPI's allreduce, and how far their results differ."""
    import time

    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    values = np.random.default_rng(comm.rank).random(1_000_000)
    theirs, seconds = np.empty_like(values), []
    for _ in range(times):
        start = time.perf_counter()
        ours = ring(comm, values)
        middle = time.perf_counter()
        comm.Allreduce(values, theirs)
        seconds.append((middle - start, time.perf_counter() - middle))
    return *np.median(seconds, axis=0), np.abs(ours - theirs).max()


# %%
try:
    ring_s, mpi_s, apart = np.max(team.run(race, ring_allreduce), axis=0)
    print(f"your ring {1e3 * ring_s:.1f} ms, comm.Allreduce {1e3 * mpi_s:.1f} ms, largest difference {apart:.0e}")
except ranks.RankError as error:
    print(error)  # while exercise 2 is open

# %% [markdown]
# Both are right, though they may differ in the last digits because they add in a different order. You've just written what the
# training libraries do with gradients.
#
# ## Remember
#
# - A message costs $\alpha + \beta \cdot \text{bytes}$: a few large ones are cheaper than many small ones.
# - Sends may wait for their receiver. Use `Sendrecv` or collectives, and never rely on buffers.
# - A test shows you one order of messages. `ANY_SOURCE` and buffers allow others.
# - Upper-case calls for arrays, lower-case calls for objects.
# - Every rank calls the same collectives in the same order.
# - A ring allreduce sends less than two arrays per rank, however many ranks there are, and pays the latency $2(p-1)$ times.
# - Start programs with `mpiexec -n N python -m mpi4py program.py`, or an error on one rank can hang them all.
#
# **Sources.** Message Passing Interface Forum, *MPI: A Message-Passing Interface Standard* (mpi-forum.org); tutorials by Argonne
# National Laboratory at mcs.anl.gov/research/projects/mpi. R. Hockney, *The communication challenge for MPP* (Parallel Computing
# 20, 1994) for latency and bandwidth. P. Patarasuk and X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of
# workstations* (Journal of Parallel and Distributed Computing 69, 2009) for the ring; A. Gibiansky, *Bringing HPC Techniques to
# Deep Learning* (2017) brought it to deep learning. R. Thakur, R. Rabenseifner and W. Gropp, *Optimization of collective
# communication operations in MPICH* (IJHPCA 19, 2005) for recursive doubling. A. Vo et al.,
# *Formal Verification of Practical MPI Programs* (PPoPP 2009) for trying all orders; M. Laurent, E. Saillard and M. Quinson, *The MPI Bugs Initiative* (SC21
# Correctness workshop) for the kinds of faults. N. Shazeer et al., *Outrageously Large Neural
# Networks* (arXiv:1701.06538) for mixtures of experts. L. Dalcin and Y. Fang, *mpi4py: Status Update After 12 Years of
# Development* (Computing in Science & Engineering 23, 2021).

# %%
ranks.stop()
