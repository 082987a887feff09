# %% [markdown] track="core path"
# # MPI basics
#
# Every training step on many devices ends with the same question: what's the sum of all our gradients? A thousand GPUs answer
# it within milliseconds for a small model, and within a second for one of 7 billion parameters. How, if no GPU could even
# receive a thousand gradients of the large model in that time?
#
# **You will** measure what a message costs, cause a deadlock and cure it, write the operation that adds up gradients, and start
# a program without a notebook.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. If `%%ranks` is new to you,
# begin with [00_start_here](00_start_here.ipynb).

# %%
import numpy as np

from workshop_lib import picture, predict, ranks

from lessons import mpi_basics as lesson

team = ranks.start(2)
team

# %%
# %%ranks
from mpi4py import MPI

comm = MPI.COMM_WORLD
print(f"rank {comm.rank} of {comm.size}")

# %% [markdown]
# ## Send and receive
#
# Ranks share no memory. If rank 1 needs a value that rank 0 holds, rank 0 has to *send* it and rank 1 has to *receive* it.
# Both ranks run the cell below, and the `if` gives each rank its part.

# %%
# %%ranks
if comm.rank == 0:
    comm.send({"epoch": 3, "loss": 0.25}, dest=1)
if comm.rank == 1:
    print("received", comm.recv(source=0))

# %% [markdown]
# `recv` is *blocking*: it returns only when the message has arrived. Each message also carries a number, its `tag`, so that the
# receiver can tell messages apart.
#
# mpi4py has two versions of most calls. Lower-case `send` takes any Python object and turns it into bytes, which is fine for
# settings, names and results. Upper-case `Send` sends an array's bytes as they are, into an array that the receiver has
# allocated.
#
# ## What does a message cost?
#
# In a *ping-pong*, two ranks send the same message back and forth. Half of a round trip is the time that one message takes.

# %%
guess = predict(
    "How many times as long as 8 bytes do 2,048 bytes take?",
    low=1,
    high=256,
    unit="times",
)
guess

# %%
# %%ranks
import time

import numpy as np


def ping_pong(nbytes):
    """Seconds that one message takes."""
    ball = np.ones(nbytes, dtype=np.uint8)
    for _ in range(2):  # the first round trip only warms up
        start = time.perf_counter()
        if comm.rank == 0:
            comm.Send(ball, dest=1)
            comm.Recv(ball, source=1)
        else:
            comm.Recv(ball, source=0)
            comm.Send(ball, dest=0)
    return (time.perf_counter() - start) / 2


sizes = [8 * 4**k for k in range(11)]
seconds = [[ping_pong(nbytes) for nbytes in sizes] for _ in range(50)]
# Slower messages had to wait for other programs on this machine.
fastest_s = np.min(seconds, axis=0)
message_s = dict(zip(sizes, fastest_s, strict=True))

# %%
message_s = team.pull("message_s")[0]
guess.compare(message_s[2048] / message_s[8])

# %% [markdown]
# 256 times the data, but nothing like 256 times as long. Here are all sizes.

# %%
alpha_s = min(message_s.values())
beta_s_per_byte = (max(message_s.values()) - alpha_s) / max(message_s)
print(
    f"latency α {1e6 * alpha_s:.2f} µs, bandwidth 1/β {1e-9 / beta_s_per_byte:.2f} GB/s"
)
lesson.figures.message_times(message_s, alpha_s, beta_s_per_byte)

# %% [markdown]
# On the left the curve hardly rises: a message of a hundred bytes takes about as long as one of eight. This time is the
# *latency*, $\alpha$. On the right, every additional byte adds $\beta$ seconds, and $1/\beta$ is the *bandwidth*. Every
# cost estimate in this workshop starts from this little model: a message takes $\alpha + \beta \cdot \text{bytes}$.
#
# It's a rough model, and in the middle it may be wrong by a factor of three, because MPI has a different way of sending for
# each range of sizes. For example, MPI puts a small message straight into a buffer at the receiver, but asks the receiver
# before it sends a large one.
#
# So trust what you've measured. Combine messages that take less than twice the latency into fewer, larger ones. For much larger
# messages, only sending fewer bytes helps. (Over a network the numbers change, but the curve keeps its shape.)
#
# ## Deadlock
#
# Two ranks want to swap their arrays. Each rank first sends its own array and then receives its partner's. `Ssend` is a
# *synchronous* send, which returns only when the receiver has begun to receive. We give the cell five seconds.

# %%
# %%ranks --catch --timeout 5
# The number with its last bit flipped: 0 and 1 are partners, and so are 2 and 3.
partner = comm.rank ^ 1
mine = np.full(10, comm.rank)
theirs = np.empty_like(mine)
comm.Ssend(mine, dest=partner)
comm.Recv(theirs, source=partner)

# %% [markdown]
# Each rank waits for the other to receive, so neither ever reaches its own `Recv`. That's a *deadlock*. Nothing fails, and plain
# MPI would wait indefinitely. The workshop noticed it within five seconds and ended the ranks. Start four new ranks, which have
# to import everything again. (On fewer than four cores, ranks take turns, which is fine unless you measure speed.)

# %%
team.restart(4)

# %%
# %%ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD

# %% [markdown]
# An ordinary `Send` may copy a small message into a *buffer* and return at once, but it waits like `Ssend` when the message is
# large. A program with this mistake passes its tests on small data and hangs on the real data. *Try it:* go back to the
# deadlock, replace `Ssend` with `Send`, then send a million numbers instead of ten. Each time the ranks hang, run the two cells
# directly above this text to get new ranks.
#
# ## Exercise 1 (warm-up): swap without deadlock
#
# Neighboring ranks exchange data in many simulations, and in the ring below. With your `exchange`, ranks swap their arrays in
# pairs and never get stuck. In the check, every send waits for its receiver, as `Ssend` does.
#
# <details><summary>Hint 1: the order</summary>
#
# What if only one of the two sends first? `comm.rank < partner` tells them apart.
#
# </details><details><summary>Hint 2: or let MPI do it</summary>
#
# `comm.Sendrecv(array, dest=…, recvbuf=…, source=…)` sends and receives in one call. `Isend` and `Irecv` return a request
# immediately; call its `Wait()` before you use the array.
#
# </details><details><summary>Solution</summary>
#
# {solution of exchange}
#
# </details>


# %%
def exchange(comm, mine):
    """The partner's array, which has the length and type of `mine`.

    Leaves `mine` unchanged. Called on every rank.
    """
    partner = comm.rank ^ 1
    # <solution>
    theirs = np.empty_like(mine)
    comm.Sendrecv(mine, dest=partner, recvbuf=theirs, source=partner)
    return theirs
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.exchange(exchange)

# %% [markdown]
# *Break it:* let both partners receive first. Does a short message help this time?
#
# ## The collectives
#
# A *collective* is a call that all ranks of a communicator make together. Many programs communicate only through collectives.
#
# - In a **broadcast**, one rank, the *root*, sends the same values to all ranks. That's how all ranks begin training with the
#   same weights.
# - In a **scatter**, the root deals out a list, one element per rank. A **gather** is the reverse: the root gets one element from
#   each rank, such as their measurements.
# - An **allgather** gives the gathered list to all ranks. When each rank keeps only a share of the weights, an allgather puts the
#   shares together just before they're needed.
# - A **reduce** adds up the ranks' lists, element by element, and gives the sum to the root. An **allreduce** gives it to all
#   ranks. Training adds up all gradients with an allreduce in every single step, so its speed depends on this collective more
#   than on any other. A reduce or an allreduce doesn't have to add: with `MPI.MAX`, it finds the largest elements.
# - A **reduce-scatter** adds up in the same way, but each rank gets only its own part of the sum. ZeRO and FSDP use it, because
#   each rank updates only a share of the weights.
# - In an **all-to-all**, element `i` of rank `j`'s list becomes element `j` of rank `i`'s. Notebook [11d](11d_experts.ipynb) uses
#   it to send each word to the right subnetwork.
#
# Let every rank begin with four numbers. The tens digit of each number tells you its rank.

# %%
# %%ranks
mine = 10 * comm.rank + np.arange(4)
total = np.empty_like(mine)
comm.Allreduce(mine, total)
part = np.empty(1, dtype=mine.dtype)
comm.Reduce_scatter_block(mine, part)
after = {
    "broadcast from rank 1": comm.bcast(mine, root=1),
    "scatter from rank 1": comm.scatter(mine, root=1),
    "gather to rank 0": comm.gather(mine[0], root=0),
    "allgather": comm.allgather(mine[0]),
    "allreduce": total,
    "reduce-scatter": part,
    "all-to-all": comm.alltoall(mine),
}

# %%
guess = predict(
    "Which number does rank 2 hold after the reduce-scatter?", low=0, high=100
)
guess

# %%
after = team.pull("after")
guess.compare(after[2]["reduce-scatter"][0])

# %%
lesson.figures.collectives(team.pull("mine"), after)

# %% [markdown]
# In the first row, each rank has its own color. A sum has stripes in the colors of all ranks whose numbers are in it.
#
# ### The danger
#
# Collectives have no tags. In each communicator, MPI matches the first collective of each rank with the first one of every
# other rank, the second with the second, and so on. Here an `if` lets only rank 0 take part in the first broadcast:

# %%
# %%ranks
held = "weights" if comm.rank == 0 else None
if comm.rank == 0:
    comm.bcast("settings")
received = comm.bcast(held)
print(f"rank {comm.rank} received the {received}")
if comm.rank > 0:
    # This receives what was left over, so the collectives of later cells match again.
    comm.bcast(None)

# %% [markdown]
# Nothing failed, but three ranks now hold the settings where they should hold the weights. Call the same collectives in the same
# order on every rank, and never put a collective inside `if comm.rank == 0:`.
#
# ## Inside an allreduce
#
# How would you build an allreduce from sends? The obvious way is for every rank to send its array to rank 0, which adds up the
# arrays and sends the sum back. With $p$ ranks, rank 0 then receives $p - 1$ arrays and sends $p - 1$. The more ranks there are,
# the longer they all wait.
#
# A *ring* spreads this work evenly. Each rank cuts its array into $p$ *chunks* and sends only to its neighbor on
# the right (for the last rank, that's rank 0). In the picture, each cell lists the ranks whose values have been added up in it,
# and a thick frame marks a chunk that has just arrived from the left.

# %%
picture("ring")

# %% [markdown]
# In the first $p - 1$ steps, each rank adds the chunk that arrives to its own, and sends the sum on in the next step.
# Afterwards rank $r$ holds the complete sum in chunk $r + 1$ (the last rank in chunk 0), so the ranks have done a
# reduce-scatter. In another $p - 1$ steps, the finished chunks travel on until every rank has all of them, which is an
# allgather:
#
# $$\text{allreduce} = \text{reduce-scatter} + \text{allgather}.$$
#
# In each of the $2(p-1)$ steps, a rank sends one chunk, which is $1/p$ of the array. Altogether it sends $\frac{2(p-1)}{p}$
# times the size of the array: less than twice, no matter how many ranks there are. Unless the network itself adds, no allreduce
# gets by with fewer bytes per rank. Notebook [06](06_zero_and_fsdp.ipynb) uses the two halves separately.
#
# The price of the ring is $2(p-1)$ latencies. *Rabenseifner's algorithm* sends just as few bytes with only $2 \log_2 p$
# latencies, if $p$ is a power of two. MPI picks an algorithm by the size of the array and the number of ranks, and so does NCCL
# on GPUs.
#
# ## Exercise 2 (hard): the first half of the ring
#
# Write the first $p - 1$ steps. The check gives you a communicator that has only `rank`, `size`, sends and receives, and it
# counts what you send: $p - 1$ chunks per rank, in at most $p - 1$ rounds. In each round a rank can send one message and
# receive one.
#
# <details><summary>Hint 1: two steps of rank 0</summary>
#
# Look at rank 0 in the picture. Which chunk does it send in step 1, and which one does it receive? What are the answers for
# step 2?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `comm.Sendrecv(chunk, dest=right, recvbuf=incoming, source=left)` sends and receives in one call. Receive into a new array
# that's as long as the arriving chunk, `incoming = np.empty_like(…)`, and then add it to your own chunk. `% p` wraps around the
# ring: `(0 - 1) % p` is $p - 1$.
#
# </details><details><summary>Hint 3: which chunk when?</summary>
#
# In step $s$, counted from 0, rank $r$ sends `chunks[(r - s) % p]`. It adds what it receives to `chunks[(r - s - 1) % p]`, and
# sends that chunk in the next step.
#
# </details><details><summary>Solution</summary>
#
# {solution of reduce_scatter}
#
# </details>


# %%
def reduce_scatter(comm, chunks):
    """Add up the ranks' `chunks`, a list of p arrays, in place.

    Afterwards, `chunks[(rank + 1) % p]` holds the sum over all ranks. The other
    chunks may hold anything. Chunks may differ in length.
    """
    p = comm.size
    right, left = (comm.rank + 1) % p, (comm.rank - 1) % p
    # <solution>
    for step in range(p - 1):
        outgoing = chunks[(comm.rank - step) % p]
        # The chunk that arrives now, and leaves in the next step
        place = chunks[(comm.rank - step - 1) % p]
        incoming = np.empty_like(place)
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
        place += incoming
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.reduce_scatter(reduce_scatter)

# %% [markdown]
# ## Exercise 3 (warm-up): the second half
#
# Now every rank has one finished chunk. Pass the finished chunks around, again in $p - 1$ rounds, until every rank has all of
# them.
#
# <details><summary>Hint 1: what changes?</summary>
#
# In step 4 of the picture, which chunk does rank 0 send? And what does a rank do with a finished chunk that arrives?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# Start from your first half, and let rank $r$ begin with chunk $r + 1$. `place[:] = incoming` replaces what's in an array.
#
# </details><details><summary>Solution</summary>
#
# {solution of allgather}
#
# </details>


# %%
def allgather(comm, chunks):
    """Give every rank all finished chunks, in place.

    `chunks` is a list of p arrays. Before the call, `chunks[(rank + 1) % p]` is
    finished. Afterwards, all of them are.
    """
    p = comm.size
    right, left = (comm.rank + 1) % p, (comm.rank - 1) % p
    # <solution>
    for step in range(p - 1):
        outgoing = chunks[(comm.rank + 1 - step) % p]
        place = chunks[(comm.rank - step) % p]
        incoming = np.empty_like(place)
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
        place[:] = incoming
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.allgather(allgather)

# %% [markdown]
# ## On sixteen ranks
#
# A few cores can't show what a ring gains, so the next sixteen ranks *emulate* sixteen imagined machines on 10 Gb Ethernet. The
# processes and messages are real, but `time.perf_counter()` reads a clock on which each message takes as long as it would on
# that network.

# %%
team = ranks.start(16, machine="ethernet-10g")
team.push(reduce_scatter=lesson.check.written(reduce_scatter))
team.push(allgather=lesson.check.written(allgather))
guess = predict(
    "4 MB on 16 ranks: how many times as fast is the ring as the way through rank 0?",
    low=0.5,
    high=30,
)
guess

# %%
# %%ranks --timeout 120
import numpy as np
from mpi4py import MPI

from lessons import mpi_basics as lesson

comm = MPI.COMM_WORLD


def ring_allreduce(comm, values):
    """The sum of all ranks' `values`, in a new array."""
    chunks = [chunk.copy() for chunk in np.array_split(values, comm.size)]
    reduce_scatter(comm, chunks)
    allgather(comm, chunks)
    return np.concatenate(chunks)


sizes = [128 * 8**k for k in range(6)]
through_rank_0 = lesson.allreduces.seconds(
    comm, lesson.allreduces.through_rank_0, sizes
)
your_ring = lesson.allreduces.seconds(comm, ring_allreduce, sizes)

# %%
through_rank_0, your_ring = team.pull("through_rank_0")[0], team.pull("your_ring")[0]
guess.compare(through_rank_0[2**22] / your_ring[2**22], emulated_on="ethernet-10g")

# %%
lesson.figures.allreduces(through_rank_0, your_ring, ranks=16, machine="ethernet-10g")

# %% [markdown]
# By construction, the points lie on the lines: the emulator charges $\alpha + \beta \cdot \text{bytes}$ for each message. What
# the figure shows is how these costs add up. For an array of $n$ bytes, the ring takes $2(p-1)(\alpha + \beta n/p)$. The way
# through rank 0 takes $2\alpha + 2(p-1)\beta n$, because its latencies overlap. So the ring wins for large arrays only. *Write
# down:* what should a library do with small arrays?
#
# ## A thousand GPUs
#
# What would the sum from the top of this page cost, with *your* $\alpha$ and $\beta$?

# %%
for name, nbytes in (
    ("this workshop's network", 82e3),
    ("7 billion parameters in 16 bits", 14e9),
):
    print(
        f"{name}: {1998 * alpha_s:.1g} s of latencies, "
        f"{2 * nbytes * beta_s_per_byte:.1g} s of bytes"
    )

# %% [markdown]
# That's how: in a ring of 1,000 ranks, each rank pays 1,998 latencies, but sends less than twice its array. You measured
# $\beta$ between two processes on one machine, where messages travel through memory. On many clusters, each GPU has a network
# port of 400 Gb/s, which is 50 GB/s. Twice 14 GB takes 0.56 s through such a port.
#
# ## Deeper: the mean of all values

# %%
team = ranks.start(4)

# %% [markdown]
# ### Exercise 4 (warm-up): sums and counts
#
# A loss or an accuracy over all ranks is a mean over *samples*, but the last batch rarely has the same size on every rank. Your
# `global_mean` averages correctly anyway: the ranks that call it have *different numbers* of values, and some may have none.
#
# <details><summary>Hint 1</summary>
#
# Suppose rank 0 has the values [1], and rank 1 has the values [3, 5]. The mean is 3, but the mean of the means is 2.5. Which
# sums do you need?
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
    """The mean of all ranks' values together, on every rank.

    `values` is an array, and may be empty.
    """
    # <solution>
    total = comm.allreduce(values.sum())
    count = comm.allreduce(len(values))
    return total / count
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.global_mean(global_mean)

# %% [markdown]
# *Beat it:* do it with a single allreduce instead of two.
#
# ## Deeper: out of the notebook
#
# On your own, you'll start programs with `mpiexec`, in a job script or in a terminal. In a terminal, first type
# `source .venv/bin/activate` in the workshop's folder. In the next program, rank 1 fails while rank 0 waits for it.
# `%%writefile` writes the cell into a file, and `lesson.programs.mpiexec` ends a program that's still running after six
# seconds.

# %%
folder = lesson.programs.folder()

# %%
# %%writefile {folder}/fails.py
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 1:
    raise ValueError("my data is broken")
comm.Barrier()

# %%
lesson.programs.mpiexec(2, "python", folder / "fails.py")

# %% [markdown]
# Rank 1 prints its error, and then nothing happens until the six seconds are over. Before Python exits, mpi4py calls
# `MPI_Finalize`, which waits for rank 0, and rank 0 waits in `Barrier` for rank 1. With `-m mpi4py`, an uncaught error calls
# `MPI_Abort`, which ends all ranks.

# %%
lesson.programs.mpiexec(2, "python", "-m", "mpi4py", folder / "fails.py")

# %% [markdown]
# ### Exercise 5 (warm-up): hello.py
#
# Run this program first on every new cluster, because it shows on which hosts your processes are. Each process already prints a
# line such as `rank 0 of 3 on node17`. Now let rank 0, and no other rank, also print a line such as `3 ranks on 2 hosts`. The
# check runs the file as three processes.
#
# <details><summary>Hint 1</summary>
#
# Which collective brings all hosts' names to rank 0?
#
# </details><details><summary>Hint 2</summary>
#
# After `hosts = comm.gather(host)`, `hosts` is a list on rank 0 and `None` elsewhere. `len(set(hosts))` counts the different
# names.
#
# </details><details><summary>Solution</summary>
#
# ```python
# hosts = comm.gather(host)
# if comm.rank == 0:
#     print(f"{comm.size} ranks on {len(set(hosts))} hosts")
# ```
#
# </details>

# %%
# %%writefile {folder}/hello.py
import socket

from mpi4py import MPI

comm = MPI.COMM_WORLD
host = socket.gethostname()
print(f"rank {comm.rank} of {comm.size} on {host}", flush=True)
# <solution>
hosts = comm.gather(host)
if comm.rank == 0:
    print(f"{comm.size} ranks on {len(set(hosts))} hosts")
# <stub>
# raise NotImplementedError("your code here")
# </stub>
# </solution>

# %%
lesson.programs.hello(folder / "hello.py")

# %% [markdown]
# *Beat it:* print the lines in rank order, whatever order the processes run in.
#
# ## Deeper: it ran on your laptop. Would it always?
#
# A program that passes its tests has shown you only one order of events. On a cluster, with larger messages and different
# delays, events will happen in a different order. In the next program, ranks 1 and 2 each send a result, and rank `late` sends
# its result half a second after the other rank. With `source=MPI.ANY_SOURCE`, rank 0 first takes whichever result arrives
# first. Then it takes rank 2's result.

# %%
from mpi4py import MPI

team = ranks.start(4)

# %%
# %%ranks
import time

from mpi4py import MPI

comm = MPI.COMM_WORLD


def two_results(late):
    if comm.rank == late:
        time.sleep(0.5)
    if comm.rank in (1, 2):
        comm.send(comm.rank**2, dest=0)
    if comm.rank == 0:
        first = comm.recv(source=MPI.ANY_SOURCE)
        return first + comm.recv(source=2)


two_results(late=2)

# %% [markdown]
# As long as rank 1 is quicker, everything works. One day rank 2 is quicker:

# %%
# %%ranks --catch --timeout 3
two_results(late=1)

# %% [markdown]
# Rank 0 has taken rank 2's message first, and waits for a second message from rank 2, which never arrives. Such a *message race*
# may show up once in a hundred runs. To find one before it finds you, delay one rank after the other, as we did here.
# *Try it:* replace the `2` in the last line of `two_results` with another `MPI.ANY_SOURCE`, and return a list instead of the sum.
#
# ### Exercise 6 (normal): first come, first served
#
# Now take results as they arrive, and still return the same list each time. Your `collect` returns all ranks' results on rank
# 0, in the order of the ranks. In the check, rank 2 sends first, then rank 3, then rank 1.
#
# <details><summary>Hint 1: who sent it?</summary>
#
# `status = MPI.Status()` is an empty record that `recv` fills in: after
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
    """All ranks' results in the order of the ranks, on rank 0; None elsewhere.

    Called on every rank.
    """
    # <solution>
    if comm.rank > 0:
        comm.send(result, dest=0)
        return None
    results = [result] + [None] * (comm.size - 1)
    status = MPI.Status()
    for _ in range(comm.size - 1):
        value = comm.recv(source=MPI.ANY_SOURCE, status=status)
        results[status.source] = value
    return results
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
team.restart(4)

# %%
lesson.check.collect(collect)

# %% [markdown]
# You can't delay every rank of a real program in every possible way. The tool ISP runs a program again with every order of
# messages that matters. MUST looks for deadlocks and wrong calls while a program runs.
#
# ## Remember
#
# - A message costs $\alpha + \beta \cdot \text{bytes}$: a few large ones are cheaper than many small ones.
# - A send may wait for its receiver. Use `Sendrecv` or collectives, and never rely on buffers.
# - Every rank calls the same collectives in the same order.
# - To average over ranks, add up sums and counts, and divide last.
# - A ring allreduce sends less than two arrays per rank, and pays $2(p-1)$ latencies.
# - Start programs with `mpiexec -n N python -m mpi4py program.py`, or an error on one rank may leave the other ranks waiting.
#
# **Sources.** MPI: the standard (mpi-forum.org); Argonne's tutorials (mcs.anl.gov/research/projects/mpi). mpi4py: L. Dalcin and
# Y. Fang (doi:10.1109/MCSE.2021.3083216). Latency and bandwidth: R. Hockney (Parallel Computing 20, 1994). The ring: P. Patarasuk
# and X. Yuan (JPDC 69, 2009); A. Gibiansky (2017) for deep learning. Rabenseifner's algorithm: R. Thakur et al. (IJHPCA 19,
# 2005). NCCL: Z. Hu et al. (arXiv:2507.04786). Mixtures of experts: N. Shazeer et al. (arXiv:1701.06538). Trying all orders: A.
# Vo et al. (PPoPP 2009).

# %%
ranks.stop()
