# %% [markdown]
# # Feeding the ranks
#
# **You will** measure five ways in which ranks can get their data, and count the bytes that each of them moves; work out
# which bytes of a file are a rank's; see what the operating system keeps in memory, and how it misleads measurements; and read
# the next batch while the network computes on this one.
#
# **Time** about 35 minutes. **Needs** two cores and 400 MB of disk; no GPU, no network. Notebook
# [02](02_synchronous_sgd.ipynb) first.

# %%
import shutil
from statistics import median

import numpy as np
import pandas as pd

from workshop_lib import ranks
from workshop_lib.comm import feeding
from workshop_lib.data import mnist
from workshop_lib.exercises import feeding as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.figures import costs
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD

sizes = profile.current()
repeats = sizes.repeats
team = ranks.start(max(2, sizes.ranks))

# %% [markdown]
# ## The third bottleneck
#
# A step of training needs computing, communication, and *input*. How much input a second? As much as the network uses up. Let
# each rank measure how many images of MNIST it can train on.

# %%
# %%ranks
import time

import numpy as np
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib.comm import feeding
from workshop_lib.data import mnist
from workshop_lib.models import torch_cnn

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
labels = torch.tensor(mnist.load("train").labels).long()
model = torch_cnn.build(seed=1)


def compute(images, first_row):
    """The gradient of these images, uint8 [n, 784], whose labels begin at `first_row` of the training set."""
    model.zero_grad()
    pixels = torch_cnn.normalise(torch.tensor(images.reshape(-1, 28, 28)))
    cross_entropy(model(pixels), labels[first_row : first_row + len(images)]).backward()


images = mnist.load("train").images[:64]
compute(images, 0)
began = time.perf_counter()
for _ in range(5):
    compute(images, 0)
images_per_s = 5 * len(images) / (time.perf_counter() - began)
print(f"{images_per_s:,.0f} images/s x 784 bytes = {784 * images_per_s / 1e6:.1f} MB/s")

# %% [markdown]
# A few megabytes a second are nothing to a disk: on a laptop, training on MNIST does not wait for its input. But on a cluster
# the storage is *shared*. Two machines from the documents behind this workshop, when all of their nodes read at once:

# %%
machines = [("Theta", 210e9, 4_392), ("Summit", 2.5e12, 4_608)]
for name, bytes_per_s, nodes in machines:
    share = bytes_per_s / nodes
    print(
        f"{name}: {bytes_per_s / 1e9:,.0f} GB/s / {nodes:,} nodes = {share / 1e6:.0f} MB/s a node: "
        f"{share / 784:,.0f} images of MNIST, or {share / (3 * 224 * 224):,.0f} of 224 x 224 pixels"
    )

# %% [markdown]
# An image of 224 × 224 pixels with a byte for each of three colours has 150,528 bytes. A GPU that trains on a thousand of
# them a second needs 150 MB/s, and six of them, as a node of Summit has, more than the node's share. More nodes bring more
# computing and, from some number on, not one byte a second more.
#
# So every byte should come from the storage once, and be waited for as little as possible.
#
# ## Five ways to get the data
#
# One file, as MNIST has it: a header of 16 bytes, then the images, 784 bytes each. It holds the training images
# `sizes.feed_copies` times, so that there is something to measure.

# %%
folder = BUILD / "feeding"
path = folder / "images.idx"
rows = feeding.write_idx(path, mnist.load("train").images, copies=sizes.feed_copies)
print(f"{path.name}: {rows:,} images, {path.stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# Each of $p$ ranks is to get the same number of images, in a file of $n$ bytes:
#
# | way | what a rank reads | messages |
# |---|---|---|
# | everyone reads all | the file, $n$; and keeps its part | none |
# | rank 0 scatters | rank 0 the file, the others nothing | $p - 1$ from rank 0, one part each |
# | own part | $n/p$: it opens the file, and reads from its first byte on | none |
# | MPI-IO | the same with `MPI.File.Open` and `Read_at_all`, which all ranks call together | the library decides |
# | a file a rank | $n/p$, a file of its own, that somebody has cut before | none |
#
# All five are in `workshop_lib/comm/feeding.py`, a few lines each. And all of them have to know which bytes are whose.
#
# ## Exercise 1: which bytes are mine?
#
# A file has a header of `header_bytes`, then `rows` rows of `row_bytes` each. Return, for one of `size` ranks, the offset of its
# first byte in the file and how *many* bytes it reads. Together the ranks must read every row, each once and whole; and no rank
# more than one row more than another, also where `size` does not divide `rows`.


# %%
def my_bytes(rows, row_bytes, header_bytes, rank, size):
    # <solution>
    first, end = rows * rank // size, rows * (rank + 1) // size
    return header_bytes + first * row_bytes, (end - first) * row_bytes
    # <stub>
    # # which rows are mine? and where do they lie?
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.my_bytes(my_bytes)

# %% [markdown]
# Now the parts of all ranks, with your function, or the library's as long as yours is not written.

# %%
try:
    parts = [my_bytes(rows, 784, 16, rank, team.n) for rank in range(team.n)]
except NotImplementedError:
    parts = feeding.parts_of(rows, 784, 16, team.n)
for rank, (offset, nbytes) in enumerate(parts):
    print(f"rank {rank}: {nbytes:,} bytes from {offset:,} on, which are {nbytes // 784:,} images")

# %% [markdown]
# ## What comes from where
#
# Between a program and the storage is the *page cache*: the operating system keeps what was read or written in memory that is
# not needed otherwise. A second read is a copy from memory, and says nothing about the storage: it is *warm*.
#
# So each way is measured *cold* first, and then warm. For a cold read we ask the system to forget the file (`posix_fadvise` with
# `DONTNEED`). And bytes are counted twice: what ranks *asked* for in all their `read` calls, and what had to be *fetched from the
# storage* for it. Linux keeps both counts for each process, in `/proc/self/io`. What a disk, a virtual machine's host or a file
# server keeps in *its* memory, we can neither see nor empty.

# %%
file_mb = path.stat().st_size / 1e6
guess = predict(
    f"Cold, and each of {team.n} ranks reads the whole file of {file_mb:.0f} MB: how many MB come from the storage?",
    low=0,
    high=2 * team.n * file_mb,
    unit="MB",
)
guess

# %%
guess_cold = predict(
    "Each rank reads its own part. How many times as long as warm does it take cold?", low=0, high=50, unit="times"
)
guess_cold

# %% [markdown]
# In each round every way has its turn, so that a slow moment touches all. After each the bytes are compared with those of the
# part.

# %%
team.push(path=path, parts=parts, repeats=repeats)

# %%
# %%ranks --timeout 300
feeding.cut_files(comm, path, parts)  # for "a file a rank"
measured = feeding.measure(comm, path, parts, repeats)

# %%
measured = team.pull("measured")[0]
costs.feeding_table(measured)


# %%
def row_of(way, cold):
    return next(row for row in measured if row["way"] == way and row["cold"] == cold)


stored = row_of("everyone reads all", cold=True)["storage_bytes"]
if None in stored:
    print("This system does not count what comes from the storage.")
elif max(stored) == 0:
    print("Nothing came from the storage: this file system is in memory, or does not forget when asked. Cold is warm here.")
else:
    stored_mb = np.array(stored) / 1e6
    display(guess.compare(np.median(stored_mb), spread=(stored_mb.min(), stored_mb.max())))

# %%
cold_s, warm_s = (row_of("own part", cold)["seconds"] for cold in (True, False))
guess_cold.compare(
    median(cold_s) / median(warm_s), spread=(min(cold_s) / max(warm_s), max(cold_s) / min(warm_s))
)

# %%
costs.feeding_ways(measured)

# %% [markdown]
# Read the picture:
#
# - *Everyone reads all* asks for $p$ times the file. From the storage it comes about once all the same, because the ranks of one
#   machine share its page cache. On several nodes it comes once *for each node*, and every rank needs the memory for all of it.
# - *Rank 0 scatters* asks for the file once, on any number of nodes. But rank 0 needs the memory for all, everybody waits
#   while it reads, and then all bytes go through one rank's network.
# - *Own part*, *MPI-IO* and *a file a rank* ask for each byte once, and all ranks read at the same time. On one disk that gains
#   less than on a file system that is spread over many.
# - Warm reads are copies from memory. What still separates them is how many bytes are copied, and how often.
#
# Look at the spread before you believe an order: a disk that others use as well is the noisiest part of a machine.
#
# *Try it:* which bars on the right would grow on ten nodes, each with a page cache of its own, and how far?
#
# ## Small pieces
#
# So far each rank read one large piece. But samples should come in random order, and in another one in each epoch. Three ways to
# the same number of images: a *block* of neighbours from the file, in one read; *scattered rows* of the file, a read each; and *a
# file an image*, as many data sets come. Each rank takes its own choice of images, cold; scattered rows may fall on the same
# page of the file as another rank's.

# %%
n_pieces = sizes.feed_pieces
singles = folder / "singles"
singles.mkdir(exist_ok=True)
for number, image in enumerate(mnist.load("train").images[: n_pieces * team.n]):
    image.tofile(singles / f"{number}.raw")
team.push(singles=singles, n_pieces=n_pieces, rows=rows)

# %%
# %%ranks --timeout 120
files = [singles / f"{comm.rank * n_pieces + i}.raw" for i in range(n_pieces)]
scattered = np.random.default_rng(comm.rank).choice(rows, n_pieces, replace=False)
start = 16 + 784 * n_pieces * comm.rank
ways = {
    "a block": ([path], lambda: feeding.read_block(path, start, 784, n_pieces)),
    "scattered rows": ([path], lambda: feeding.read_rows(path, 16, 784, scattered)),
    "a file an image": (files, lambda: feeding.read_files(files)),
}
pieces = {name: [] for name in ways}
for _ in range(repeats):
    for name, (needed, way) in ways.items():
        for file in needed:
            feeding.drop_cache(file)
        comm.Barrier()
        got, seconds, counts = feeding.counted(way)
        pieces[name].append((seconds, counts.storage_bytes if counts else 0, got.nbytes))

# %%
pieces = team.pull("pieces")
lines = {}
for name in pieces[0]:
    found = np.array([of_rank[name] for of_rank in pieces])  # [rank, repeat, kind]
    slowest_ms = 1e3 * found[:, :, 0].max(axis=0)
    lines[name] = {
        "files opened": team.n * (n_pieces if name == "a file an image" else 1),
        "reads": team.n * (1 if name == "a block" else n_pieces),
        "images, MB": round(found[:, 0, 2].sum() / 1e6, 2),
        "from the storage, MB": round(np.median(found[:, :, 1].sum(axis=0)) / 1e6, 2),
        "ms, slowest rank": round(np.median(slowest_ms), 1),
        "fastest to slowest round": f"{slowest_ms.min():.1f} to {slowest_ms.max():.1f}",
    }
pd.DataFrame(lines).T

# %% [markdown]
# The system fetches whole *pages*, mostly of 4,096 bytes: one or two of them for a row of 784. A block can make it fetch too much
# for another reason: it reads ahead of whoever reads in order. And each scattered read is a wait of its own.
#
# A file an image costs an `open` on top. Here that is a lookup in memory. On a parallel file system every `open` asks a
# *metadata server*, of which there are few, for the whole machine: a job of a thousand ranks that opens a file for each image
# is how a single user slows down everybody. So data sets are packed into large files, and shuffled in two steps: the order of
# large blocks, and within a few blocks that are in memory.
#
# ## Reading while computing
#
# What is read need not be waited for. If reading a batch takes $r$ and computing on it $c$, a step takes $r + c$ one after the
# other; and with the *next* batch being read by another thread while this one is used, *prefetching*, only $\max(r, c)$.
#
# ## Exercise 2: prefetch
#
# `read(i)` returns batch `i`, for `i` from 0 to `n - 1`; it takes a while, and may raise an error. Write a generator: it yields
# all batches in order, and while the consumer uses one, the next is already being read. Not more than that: the data need not fit
# into memory.
#
# `helper.submit(read, i)` starts `read(i)` in the helper's thread and returns a *future* at once. `future.result()` waits
# until it is done, and returns the batch, or raises the error that `read` raised.

# %%
from concurrent.futures import ThreadPoolExecutor


def prefetch(read, n):
    with ThreadPoolExecutor(max_workers=1) as helper:
        # <solution>
        coming = helper.submit(read, 0) if n else None
        for i in range(n):
            batch = coming.result()
            if i + 1 < n:
                coming = helper.submit(read, i + 1)
            yield batch
        # <stub>
        # # submit read(0); then for each batch: wait for it, submit the next one, and only then `yield`
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>


# %%
check.prefetch(prefetch)

# %% [markdown]
# To see the effect we need storage that is slow, and this machine's may be fast. So each read is made to take *as long as
# computing does*, which is where prefetching can do most: it sleeps for the rest. That emulates the *waiting* only, but a
# thread that waits for a disk does nothing else either. Reading, images and gradients are real. First, how long is that?

# %%
team.push(n_batches=sizes.feed_batches, epochs=2)

# %%
# %%ranks
batch_rows = 64
batch_bytes = 784 * batch_rows
first_row = batch_rows * n_batches * comm.rank


def read(i):
    return feeding.read_block(path, 16 + 784 * (first_row + batch_rows * i), 784, batch_rows)


seconds = []
for i in range(n_batches):
    images = read(i)
    began = time.perf_counter()
    compute(images, first_row + batch_rows * i)
    seconds.append(time.perf_counter() - began)
compute_s = comm.allreduce(float(np.median(seconds)), MPI.MAX)
share = batch_bytes / compute_s  # bytes a second
slow = feeding.throttled(read, share)

# %%
compute_s, share = team.pull("compute_s")[0], team.pull("share")[0]
print(f"{1e3 * compute_s:.1f} ms for a batch of 64 images, on the slowest rank: as if storage gave it {share / 1e6:.1f} MB/s")
print(f"for comparison, four ranks on each node of Theta: {210 / 4_392 / 4 * 1e3:.1f} MB/s each")
guess_prefetch = predict(
    "Reading takes as long as computing. How many times as fast is a training with `prefetch`?", low=0.5, high=4, unit="times"
)
guess_prefetch

# %%
team.push(prefetch=prefetch)

# %% [markdown]
# The third way is to *preload*: read everything before the first epoch, and keep it. The time is taken apart as the consumer
# of the batches sees it: waiting for one, and computing on it.

# %%
# %%ranks --timeout 300
def epoch(batches):
    """Seconds that this rank waits for batches, and computes on them, after none of preloading."""
    waiting, computing, clock = 0.0, 0.0, time.perf_counter()
    for i, images in enumerate(batches):
        came = time.perf_counter()
        compute(images, first_row + batch_rows * i)
        done = time.perf_counter()
        waiting, computing, clock = waiting + came - clock, computing + done - came, done
    return np.array([0.0, waiting, computing])


def in_turn():
    return sum(epoch(slow(i) for i in range(n_batches)) for _ in range(epochs))


def prefetched():
    return sum(epoch(prefetch(slow, n_batches)) for _ in range(epochs))


def preloaded():
    began = time.perf_counter()
    kept = [slow(i) for i in range(n_batches)]
    return [time.perf_counter() - began, 0, 0] + sum(epoch(kept) for _ in range(epochs))


ways = {"read, then compute": in_turn, "prefetch": prefetched, "preload": preloaded}
spent = {name: [] for name in ways}
for _ in range(repeats):
    for name, way in ways.items():
        comm.Barrier()
        try:
            spent[name].append(way())
        except NotImplementedError:
            pass
if not spent["prefetch"] and comm.rank == 0:
    print("prefetch is not written yet: it is left out")

# %%
spent = team.pull("spent")
runs = {}
for name in spent[0]:
    found = np.array([of_rank[name] for of_rank in spent])  # [rank, repeat, kind]
    if found.size:
        slowest = found.sum(axis=2).argmax(axis=0)
        runs[name] = found[slowest, np.arange(found.shape[1])]
caption = (
    f"2 epochs of {sizes.feed_batches} batches of 64 images on each of {team.n} ranks, from storage that gives "
    f"{share / 1e6:.1f} MB/s a rank; the median of {repeats} runs, bars from the fastest to the slowest; the slowest rank counts"
)
costs.feeding_shares(runs, caption)

# %%
in_turn = runs["read, then compute"]
read_s, compute_s = np.median(in_turn[:, 1:], axis=0) / (2 * sizes.feed_batches)
print(f"a batch: {1e3 * read_s:.1f} ms reading, {1e3 * compute_s:.1f} ms computing")
most = (read_s + compute_s) / max(read_s, compute_s)
print(f"by these medians, prefetching can make it about {most:.2f} times as fast, at most")
if "prefetch" in runs:
    ratios = in_turn.sum(axis=1) / runs["prefetch"].sum(axis=1)
    display(guess_prefetch.compare(np.median(ratios), spread=(ratios.min(), ratios.max())))

# %% [markdown]
# Prefetching hides the shorter of the two behind the longer, so it gains a factor of two at the most, where both are equal. The
# first batch of an epoch has nothing to hide behind. If reading is the longer, waiting remains: then only fewer bytes, or more
# readers, help. And if "reading" is really *work*, as unpacking JPEG is, the helper needs a core of its own.
#
# Preloading pays for everything once, and for nothing after:

# %%
epoch_mb, batch_mb = 64 * 784 * sizes.feed_batches / 1e6, 64 * 784 / 1e6
for name, read_mb, held_mb in (
    ("read, then compute", 2 * epoch_mb, batch_mb),
    ("prefetch", 2 * epoch_mb, 2 * batch_mb),
    ("preload", epoch_mb, epoch_mb),
):
    print(f"{name:>18}: each rank reads {read_mb:.2f} MB in 2 epochs, and holds {held_mb:.2f} MB")

# %% [markdown]
# It needs the memory, and it fixes which rank has which samples. In this workshop every epoch deals out all samples anew, so each
# rank keeps all of MNIST, 47 MB. With a data set that fits only when it is shared out, ranks shuffle what they have, or swap some
# of it between epochs.
#
# *Try it:* `slow = feeding.throttled(read, 3 * share)` on the ranks, and a third of `share`. What can prefetching still hide?
#
# ## Who reads in a collective read?
#
# `Read_at_all` is collective: the library knows what *all* ranks want before anyone reads. It may let a few of them read
# large pieces for all and pass the rest on in messages, *two-phase I/O*. That pays when every rank wants many small pieces,
# and on file systems that like few large readers. Which ranks read, the program does not say; the counts of the operating
# system show it. With four ranks:

# %%
team = ranks.start(4)
small = folder / "small.idx"
rows_small = feeding.write_idx(small, mnist.load("test").images)
parts_small = feeding.parts_of(rows_small, 784, 16, 4)
team.push(path=path, small=small, parts_small=parts_small, parts=feeding.parts_of(rows, 784, 16, 4))

# %%
# %%ranks
from mpi4py import MPI

from workshop_lib.comm import feeding

comm = MPI.COMM_WORLD
for name in ("own part", "MPI-IO"):
    way = feeding.WAYS[name]
    comm.Barrier()
    (mine, cost), _, counts = feeding.counted(lambda way=way: way(comm, small, parts_small))
    asked = "not told" if counts is None else f"{counts.asked_bytes / 1e6:.2f} MB"
    print(f"{name}: got {len(mine) / 1e6:.2f} MB, asked the operating system for {asked}")

# %% [markdown]
# In *own part* every rank asks for what it gets. If in *MPI-IO* one rank asks for everything and the others for nothing, the
# library has chosen a single reader; together they ask for every byte once. (How many readers there are depends
# on the library, on sizes and on the number of ranks and nodes. *Hints* given to `MPI.File.Open` change it.)
#
# And the files that were cut for fewer ranks?

# %%
# %%ranks
try:
    mine, cost = feeding.own_file(comm, path, parts)
except ValueError as error:
    print(error)

# %% [markdown]
# A file a rank needs no offsets and no library, and it ties the data to a number of ranks. The usual way out is more files than
# ranks, a hundred or a thousand, of which each rank takes several.
#
# ## On a cluster
#
# What the documents that this workshop grew out of advise, and what machines' own guides add:
#
# | advice | why |
# |---|---|
# | read in parallel: each rank from its own files, or with MPI-IO, or several ranks that read and scatter | one reader has only its own link; the last is called most practical at scale [1] |
# | stripe large files that many ranks read: `lfs setstripe -c 8 FOLDER` *before* the file is written there | Lustre keeps a file on one storage target unless told otherwise, whose speed is then that of all [1, 2] |
# | do not stripe small files | more servers to ask for the same few bytes [2] |
# | few large files instead of a file a sample | each `open` asks a metadata server, and many overload it for everybody; Perlmutter has 16, and 274 servers for the data [3] |
# | copy the data to the SSD in the node at the start of a job, and read it from there | each node adds its own: on Summit 26.7 TB/s together, against 2.5 TB/s of the file system [4]; Theta had 128 GB in each node [5], Polaris has `/local/scratch` [6] |
# | a *burst buffer*, fast storage between the nodes and the disks, where there is one | on Cori about 6.5 GB/s for each of its servers, so spread over many; pieces below 512 KiB were slow [7] |
# | preload what fits into memory; prefetch what does not, with several threads | the input then costs nothing, as long as it is the shorter [1, 8] |
# | give the readers cores: bind a rank to more than one | helpers on the core that computes do not help [9] |
#
# Staging is *own part* once more: read every byte from the file system once, by one node, and let the network, which is faster,
# bring it wherever else it is needed.
#
# ## Remember
#
# - Input is the third bottleneck. What a rank needs is samples a second times bytes a sample; compare that with its *share*
#   of the storage.
# - Count bytes: asked for, and fetched from the storage. Seconds alone mislead, because a second read comes from memory.
# - Whole rows, and every one once: share out rows first, and turn them into bytes then.
# - Everyone reads all: once a node from the storage. Rank 0 scatters: once, through one rank. Own part, MPI-IO, a file a
#   rank: once, by all together.
# - Many small files cost an open each. Pack them.
# - Prefetching turns $r + c$ into $\max(r, c)$. Preloading pays $r$ once, in memory.
#
# **Sources**, looked up on 2026-11-22. [1] ALCF, *Computational Performance Workshop* 2022, Scaling deep learning, best
# practices (github.com/argonne-lcf/CompPerfWorkshop, 05_scaling-DL). [2] *Lustre Striping Best Practices* (wiki.lustre.org).
# [3] NHR@ZIB, file systems of HLRN (user.nhr.zib.de); NERSC, *Perlmutter Scratch* (docs.nersc.gov). [4] S. Oral et al.,
# *End-to-end I/O Portfolio for the Summit Supercomputing Ecosystem* (SC 2019). [5] V. Vishwanath, *Deep Learning at Scale*
# (ALCF, 2018), also for the speeds and nodes of Theta and Summit. [6] *ALCF File Systems* (docs.alcf.anl.gov). [7] NERSC,
# *Burst Buffer*, on Cori (nersc.gitlab.io). [8] S. Chien et al., *Characterizing Deep-Learning I/O Workloads in TensorFlow*
# (arXiv:1810.03035): more threads up to 7.8 times the bandwidth, and prefetching hid the input completely. [9] ALCF, *PyTorch
# on Polaris* (docs.alcf.anl.gov). Two-phase I/O: R. Thakur, W. Gropp and E. Lusk, *Data Sieving and Collective I/O in ROMIO*
# (Frontiers 1999). The page cache and its counts: the Linux manual, posix_fadvise(2) and proc_pid_io(5).

# %%
ranks.stop()
shutil.rmtree(folder)
