# %% [markdown] track="clusters and data"
# # Feeding the ranks
#
# You double the GPUs, and the training gets no faster. Communication is fine, yet every rank is busy only a fraction of the
# time. What are the ranks waiting for? Often it's the next batch, because all ranks read from the same storage, and you didn't
# double the storage.
#
# **You will** see this happen on 1, 2, 4 and 8 ranks, find out what the ranks wait for, and make training scale again: with
# shards, with a prefetcher that you write, and with data that one rank reads for all.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first.

# %%
import json
import shutil

import numpy as np

from workshop_lib import mnist, paths, predict, profile, ranks, scripts

from lessons import feeding_the_ranks as lesson

sizes = profile.current()
team = ranks.start(8, machine="h100")

# %% [markdown]
# ## The third bottleneck
#
# A training step needs computing, communication, and *input*. How much input does training need per second? Eight ranks
# emulate the GPUs of a DGX H100: they run real code and exchange real messages, and each rank has a clock that says how long
# this would take on the GPUs. Their small neural network stands for ResNet-50, and each MNIST image for an image of 224 × 224
# pixels in three colors, so 784 bytes count as 150,528.

# %%
# %%ranks
from mpi4py import MPI

from lessons import feeding_the_ranks as lesson

comm = MPI.COMM_WORLD
computing = lesson.training.computing_images_per_s()
if comm.rank == 0:
    needed_mb = 150_528 * computing / 1e6
    print(f"{computing:,.0f} images/s x 150,528 bytes = {needed_mb:.0f} MB/s per GPU")

# %% [markdown]
# Is that a lot? A single fast disk can deliver it. But on a cluster everybody *shares* the storage. Summit's file system
# delivered 2.5 TB/s. When all 4,608 nodes read at once, each node got 543 MB/s for its six GPUs, which is less than a single
# one of your emulated GPUs needs. (On Theta, the share was 48 MB/s per node.)
#
# So let's emulate the storage, too. All ranks share an imagined file server. It sends 4 GB/s, needs 0.25 ms for each file that
# it opens, and divides its time equally among the ranks that are reading. The files are real. Only the time for reading them
# is emulated, as if each image had 150,528 bytes.
#
# Our training set has 4,096 images. We write it to the disk in three forms: as a file per image, as *shards* of 256 images
# each, and as one large file.

# %%
folder = paths.BUILD / "feeding"
images = np.resize(mnist.load("train").images, (4096, 28, 28))
for name, rows in (("images", 1), ("shards", 256), ("whole", 4096)):
    lesson.server.write_files(folder / name, images, rows)
path = folder / "whole" / "0"
steps = 8
team.push(folder=folder, path=path, steps=steps)

# %% [markdown]
# ## Twice the ranks
#
# In every step, each rank reads its next 64 images, computes a gradient, and takes part in an allreduce. Many data sets have one
# file per image, so we begin with that. This function returns what a rank reads for its batch `i`: the files, and for each of them
# the offset and the number of bytes.


# %%
# %%ranks
def one_file_per_image(rank, i):
    first = 64 * (steps * rank + i)
    return [(folder / "images" / str(n), 0, 784) for n in range(first, first + 64)]


# %%
guess = predict(
    "Each rank reads its own files. How many times as fast as 1 rank do 8 ranks train?",
    0.5,
    8,
    unit="times",
)
guess

# %%
# %%ranks --timeout 300
files = lesson.training.scaling(comm, steps, one_file_per_image)

# %%
curves = {"a file per image": team.pull("files")[0]}
computing = team.pull("computing")[0]
display(lesson.figures.scaling(curves, computing))
one, *_, four, eight = [row["images_per_s"] for row in curves["a file per image"]]
print(f"8 ranks are {eight / one:.2f} times as fast as 1 rank,")
print(f"and {eight / four:.2f} times as fast as 4 ranks")
guess.compare(eight / one)

# %% [markdown]
# The last four GPUs bought almost nothing: with 8 ranks, each of them waits for nine tenths of its time. You can compute the
# limit in advance. An image costs the server one `open`, 0.25 ms, and 150,528 bytes at 4 GB/s, which is 0.04 ms. So the
# server can deliver 3,477 images per second, no matter how many ranks ask for them. A single GPU could train on more. (In the
# figure, 8 ranks get a little less, because the server has nothing to do while they all compute.)
#
# When a training run doesn't scale, count how many files all ranks open per second, and how many bytes they read. Then
# compare both with what the storage can do.
#
# ## Fewer files
#
# Opening the files takes longer than reading them, so open fewer files. A *shard* holds many samples, and is read from front
# to back. Real shards hold a few hundred megabytes.


# %%
# %%ranks
def from_shards(rank, i):
    shard, row = divmod(64 * (steps * rank + i), 256)
    return [(folder / "shards" / str(shard), 784 * row, 784 * 64)]


# %%
guess = predict(
    "How many times as fast do 8 ranks train with shards as with a file per image?",
    0.5,
    12,
    unit="times",
)
guess

# %%
# %%ranks --timeout 300
shards = lesson.training.scaling(comm, steps, from_shards)

# %%
curves["shards"] = team.pull("shards")[0]
for name, rows in curves.items():
    opens, mb = rows[-1]["opens"], rows[-1]["nbytes"] / 1e6
    print(f"{name:>16}, 8 ranks: {opens:5,} opens, {mb:.0f} MB")
guess.compare(curves["shards"][-1]["images_per_s"] / eight)

# %% [markdown]
# The ranks read as many bytes as before, but they no longer wait for the server to open files. Large file systems have the
# same weak spot: every `open` goes to one of a few *metadata servers*. Perlmutter has 16 of them, and 274 servers for the data
# [2].
#
# ## Read while you compute
#
# The ranks still read, then compute, then read. If reading a batch takes $r$ and computing on it takes $c$, a step takes
# $r + c$. But training doesn't have to stop while data is being read. If a second thread reads the *next* batch while you
# compute, a step takes only $\max(r, c)$. This is called *prefetching*, and every input pipeline does it.
#
# ### Exercise 1 (normal): prefetch
#
# With your `prefetch`, the ranks will read their shards while they compute. There are `n` batches (`n` may be 0), and
# `read(i)` returns batch `i`, counted from 0. Such a call takes a while. It may also raise an error, which should reach the
# consumer. `helper` is a thread that reads for you. Write a generator that yields all batches in order. While the consumer
# uses one batch, let the helper read the next one, but no further, because the data may not fit into memory.
#
# <details><summary>Hint 1: a read that doesn't wait</summary>
#
# `helper.submit(read, i)` starts `read(i)` in the helper's thread, and returns a *future* at once. `future.result()` waits
# until the read is done, and then returns the batch or raises the error that `read` raised.
#
# </details><details><summary>Hint 2: when does a generator run?</summary>
#
# It runs only until `yield`. There it pauses until the consumer asks for the next batch. So the next read has to be submitted
# *before* `yield`, and its `result()` belongs after.
#
# </details><details><summary>Solution</summary>
#
# {solution of prefetch}
#
# </details>


# %%
def prefetch(read, n, helper):
    """Yield read(0), …, read(n - 1), with one read ahead in the helper's thread.

    `helper` is a concurrent.futures.ThreadPoolExecutor with one thread, or the
    same under the emulated clock. Only the helper calls `read`.
    """
    # <solution>
    coming = helper.submit(read, 0) if n else None
    for i in range(n):
        batch = coming.result()
        if i + 1 < n:
            coming = helper.submit(read, i + 1)
        yield batch
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.prefetch(prefetch)

# %%
guess = predict(
    "How many times as fast does `prefetch` make 8 ranks that read shards?",
    0.5,
    4,
    unit="times",
)
guess

# %%
team.push(prefetch=lesson.check.written(prefetch))

# %%
# %%ranks --timeout 300
prefetched = lesson.training.scaling(comm, steps, from_shards, prefetch)

# %%
curves["shards, prefetch"] = team.pull("prefetched")[0]
display(lesson.figures.scaling(curves, computing))
rates = [curves[name][-1]["images_per_s"] for name in ("shards", "shards, prefetch")]
guess.compare(rates[1] / rates[0])

# %% [markdown]
# Prefetching hides the shorter of the two times behind the longer one, so it gains a factor of two at most. Up to 4 ranks,
# that's enough to keep the GPUs busy, because reading takes less time than computing, and the GPUs only wait for the first
# batch. With 8 ranks, the server's 4 GB/s become the limit, because 8 GPUs need more. In a study on two real machines,
# prefetching hid the time for TensorFlow's input completely [1].
#
# ## Read once
#
# What else can you do? Read fewer bytes. If a data set fits into the memory of all ranks together, *preload* it: each rank gets
# its part before the first epoch, and from then on nothing is read from the storage.
#
# How do the ranks get their parts of one large file? For each rank, the list `parts` says where its part begins in the file,
# and how many bytes the part has. Here are three ways. In the first, each rank reads the whole file and takes a slice of it.
# In the second, each rank reads only the bytes that it needs. The third does the same through MPI: all ranks call MPI's
# `Read_at_all` together, and the file is opened only once for all of them.


# %%
# %%ranks
def everyone_reads_all(comm, storage, parts):
    offset, nbytes = parts[comm.rank]
    whole = storage.read([(path, 0, path.stat().st_size)])
    return whole[offset : offset + nbytes]


def own_part(comm, storage, parts):
    return storage.read([(path, *parts[comm.rank])])


def mpi_io(comm, storage, parts):
    return storage.read_at_all(path, *parts[comm.rank])


# %% [markdown]
# ### Exercise 2 (normal): one rank reads for all
#
# In the fourth way, a single rank reads the file, and sends each rank its part. Large jobs do this with one reader per node.
# Your ranks will train on what this function returns. `read(offset, nbytes)` returns this many bytes of the file, from
# `offset` on, as an array. `parts` has the `(offset, nbytes)` of every rank in `comm`, and the parts follow one another in the
# file.
#
# <details><summary>Hint 1: how much does rank 0 read?</summary>
#
# It starts at the first part's offset, and reads as many bytes as all parts together have. That's a single call of `read`.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `comm.Scatterv([whole, sizes], mine)` cuts the array `whole` of rank 0 into pieces of these sizes, one after the other, and
# writes each rank's piece into its array `mine`. The other ranks pass `None` in place of the list. `Scatterv` sends the
# array's memory as it is. The lowercase `scatter` would pickle the pieces first, which copies every byte.
#
# </details><details><summary>Solution</summary>
#
# {solution of read_and_scatter}
#
# </details>


# %%
def read_and_scatter(comm, read, parts):
    """This rank's part, uint8 [bytes].

    Rank 0 reads all parts in one piece, and sends each rank its own.
    """
    # <solution>
    sizes = [nbytes for _, nbytes in parts]
    mine = np.empty(sizes[comm.rank], np.uint8)
    sending = None
    if comm.rank == 0:
        sending = [read(parts[0][0], sum(sizes)), sizes]
    comm.Scatterv(sending, mine)
    return mine
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.read_and_scatter(read_and_scatter)

# %%
guess = predict(
    "How many times as long as `own_part` does it take if each of 8 ranks reads all?",
    0.5,
    16,
    unit="times",
)
guess

# %%
per_rank = 784 * 4096 // team.n
parts = [(rank * per_rank, per_rank) for rank in range(team.n)]
team.push(read_and_scatter=lesson.check.written(read_and_scatter), parts=parts)


# %%
# %%ranks --timeout 300
def one_reads(comm, storage, parts):
    def read(offset, nbytes):
        return storage.read([(path, offset, nbytes)], alone=True)

    return read_and_scatter(comm, read, parts)


ways = {
    "everyone reads all": everyone_reads_all,
    "own part": own_part,
    "MPI-IO": mpi_io,
    "one reads": one_reads,
}
measured = lesson.storage.measure_ways(comm, parts, ways)

# %%
measured = team.pull("measured")[0]
display(lesson.figures.ways(measured))
seconds = {row["way"]: row["seconds"] for row in measured}
guess.compare(seconds["everyone reads all"] / seconds["own part"])

# %% [markdown]
# - *Everyone reads all* asks for the file 8 times, and every rank needs the memory for all of it. Real ranks of one node share
#   a *page cache*, in which the operating system keeps what it has read, so there the file comes from the storage once per
#   node. (Because of the page cache, a second run of your own benchmark says nothing about the storage.)
# - *Own part* asks for each byte once, but every rank opens the file. With thousands of ranks, these opens become a bottleneck
#   again. *MPI-IO* opens the file only once, for all ranks together.
# - *One reads* needs one `open` and reads the file once. Then all bytes pass through one rank's link, which is fast here.
#   A link between nodes may be slower, and everybody waits while the reader reads.
#
# With 8 ranks the last three ways take about equally long, because seven more opens cost the server only 2 ms. With 8,000
# ranks, the opens alone would take 2 s. Now let the ranks train from memory, on what your function returns:

# %%
# %%ranks --timeout 300
mine = one_reads(comm, lesson.storage.Storage(comm), parts)


def from_memory(read, n, helper):
    return (mine[784 * 64 * i : 784 * 64 * (i + 1)] for i in range(n))


preloaded = lesson.training.scaling(comm, steps, from_shards, from_memory)

# %%
curves["preloaded"] = team.pull("preloaded")[0]
display(lesson.figures.scaling(curves, computing))
print("8 ranks, as a multiple of 1 rank that reads a file per image:")
for name, rows in curves.items():
    print(f"{name:>18} {rows[-1]['images_per_s'] / one:5.1f}")

# %% [markdown]
# GPUs, network and images are the same as at the start. Only the way in which the images reach the ranks has changed. (The
# preloaded rate leaves out the loading itself. Here it takes about as long as an epoch from memory, but it happens only
# once.) If your data doesn't fit into memory, copy it to the nodes' own disks, which no other job slows down.
#
# *Try it:* a file per image, but with your `prefetch`. Before you run
# `lesson.training.scaling(comm, steps, one_file_per_image, prefetch)` on the ranks, predict how fast 8 ranks will be.
#
# ## Deeper: `DataLoader` and its workers
#
# PyTorch's `DataLoader` prefetches for you, with *processes* in place of your thread, because Python's lock lets only one
# thread at a time run Python code. `num_workers=2` starts two worker processes, and each of them prepares whole batches ahead
# of time. (In TensorFlow, `tf.data` prefetches: [loader_tf.py](scripts/loader_tf.py) measures its `map`, `interleave` and
# `prefetch`.)
#
# The script `loader.py` runs in real time, on this machine, and reads through a `DataLoader`. Reading a batch takes as long as
# computing on it. In half of the runs, reading means *waiting*, as for a disk. In the other half it's *work*, as for a JPEG
# decoder.

# %%
guess = predict(
    "Now reading is work. How many times as fast does training get with 2 workers?",
    0.2,
    4,
    unit="times",
)
guess

# %%
times = folder / "loader.json"
scripts.run(
    "python",
    paths.SCRIPTS / "loader.py",
    times,
    sizes.feed_batches,
    min(3, sizes.repeats),
    timeout_s=2 * sizes.timeout_s,
)
spent = {
    name: np.array(seconds) for name, seconds in json.loads(times.read_text()).items()
}
display(
    lesson.figures.feeding_shares(
        spent, "An epoch in one process, with a DataLoader and its workers"
    )
)
ratios = spent["work, 0 workers"].sum(axis=1) / spent["work, 2 workers"].sum(axis=1)
guess.compare(ratios)

# %% [markdown]
# - Workers take time to start, and they start again in every epoch unless you set `persistent_workers=True`.
# - If reading means waiting and takes no longer than computing, one worker can hide it, except for the first batch. If
#   reading is work, each worker needs a core *of its own*. That's why a rank on a cluster gets several cores, and why
#   [10](10_compute_nodes.ipynb) insists on `--cpus-per-task`.
# - `prefetch_factor=2`, the default, means two batches per *worker*, so keep an eye on the memory.
# - On a GPU, set `pin_memory=True`, so that the GPU can fetch batches by itself. `images.to("cuda", non_blocking=True)` then
#   returns at once, and your program continues while the images travel.
#
# ## Deeper: different random numbers on every rank
#
# *Augmentation* changes samples at random, for example by shifting or mirroring images. The network gets more to learn from, and
# you don't read a single extra byte. Every good script sets a seed. But if every rank sets the same one, image *i* of every rank's
# batch is shifted by the same amount. Nothing fails, and the loss falls. You just got less variety than you paid for.
#
# ### Exercise 3 (warm-up): a generator for each rank and step
#
# Return a NumPy generator, `np.random.default_rng(…)`, that draws different numbers for every rank, every step and every seed.
# For the same seed, rank and step, it must always draw the same numbers. Then a run that you stop and resume draws what it
# would have drawn without the stop.
#
# <details><summary>Hint 1: is a sum enough?</summary>
#
# `seed + rank + step` differs between ranks, and between steps. But what about rank 1 in step 0, and rank 0 in step 1?
#
# </details><details><summary>Hint 2: the piece</summary>
#
# `np.random.default_rng` also takes a list of numbers.
#
# </details><details><summary>Solution</summary>
#
# {solution of generator}
#
# </details>


# %%
def generator(seed, rank, step):
    """A NumPy generator for what this rank draws in this step."""
    # <solution>
    return np.random.default_rng([seed, rank, step])
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.generator(generator)

# %%
generator = lesson.check.written(generator)
for rank in range(3):
    for name, numbers in {
        "the same seed": np.random.default_rng(1),
        "generator": generator(1, rank, 1),
    }.items():
        moves = numbers.integers(-3, 4, (4, 2)).tolist()
        print(f"rank {rank}, {name:>13}: its first images move by", *moves)

# %% [markdown]
# ## Deeper: shuffled shards that resume
#
# Your generator needs no saved state. Neither does the *order* of the samples, if it's a function of seed and step: a
# checkpoint only has to hold the step. Say four ranks stop after 60 % of an epoch, and three ranks resume. How often does each
# sample occur in that epoch?


# %%
def samples_of(step, rank, ranks, batch=480, seed=1, n=60_000):
    """The samples of this rank in this step.

    All ranks together take `batch` samples, however many ranks there are.
    """
    epoch, at = divmod(step * batch, n)
    order = np.random.default_rng([seed, epoch, 0, 1]).permutation(n)
    return order[at : at + batch][rank::ranks]


before = [samples_of(step, rank, 4) for step in range(75) for rank in range(4)]
ways = {
    "from the step in the checkpoint": [
        samples_of(step, rank, 3) for step in range(75, 125) for rank in range(3)
    ],
    "with an order of another seed": [
        samples_of(step, rank, 3, seed=2)
        for step in range(75, 125)
        for rank in range(3)
    ],
    "the epoch from its start": [
        samples_of(step, rank, 3) for step in range(125) for rank in range(3)
    ],
}
for way, after in ways.items():
    seen = np.bincount(np.concatenate(before + after), minlength=60_000)
    print(
        f"{way:>32}: {(seen == 0).sum():6,} never, "
        f"{(seen == 1).sum():6,} once, {(seen == 2).sum():6,} twice"
    )

# %% [markdown]
# A language model reads most of its data only once, so the second way would hide a part of it from the model. And only the
# first way can tell you *which* sample made the loss jump at step 41,307. `torchdata`'s `StatefulDataLoader`, last released
# in February 2025, saves the state of each rank's loader and its workers instead, so it can't resume with a different number
# of ranks [3]. Loaders read ahead, so save the step that the *training* has reached, not the step of the loader.
#
# Random order has a price, though, because the storage has to look up each sample in a large file separately. So this is how
# tools read shards:
#
# - Each epoch deals out the *shards* to ranks and workers in a new order, drawn from seed and epoch. Have many more shards than
#   ranks, or some ranks get two and the rest get one.
# - A buffer of a few thousand samples mixes neighbors: the same kind of generator draws each sample from this buffer.
# - To resume, compute which shards are done, and in the shard that was interrupted, skip the samples that were used already.
#   Fix the number of steps for every rank, because the ranks don't all run out of samples at the same time.
# - Texts have different lengths. *Packing* puts them one after the other and cuts rows of equal length, so no rank computes on
#   padding. A mask keeps each text from attending to the others.
#
# ## Deeper: what changes on a large machine
#
# - **A reader per node.** Call your `read_and_scatter` with the communicator `comm.Split_type(MPI.COMM_TYPE_SHARED)`, which
#   holds the ranks of one node. Then only a few ranks read from the storage, and each of them asks for large pieces. MPI's
#   `Read_at_all` may do something similar by itself (*two-phase I/O*).
# - **Who downloads?** "If the file isn't there, download it" is a race on several ranks: one writes, and another finds half a
#   file that looks like a whole one. Let one rank per disk download under a temporary name, `os.replace` it, and have the
#   other ranks wait at a barrier, with a time limit.
# - **Importing.** `import torch` opens about a thousand files, on every rank. On eight nodes of Frontier, a small script that
#   imports PyTorch took 236 s from NFS, 51 s from Lustre, and 2 s from the nodes' own disks, after 49 s of unpacking [4]. So
#   on hundreds of nodes, your Python environment is one more data set: `conda pack` it and send it to every node with
#   `sbcast`, or use a container, which the file system sees as one large file [5]. On Aurora, *Copper* shares the reads among
#   the nodes [6].
# - **Lustre** keeps a file on a single storage target, unless your center has set another default (`lfs getstripe FOLDER`
#   shows it) or you *stripe* the file: run `lfs setstripe -c 8 FOLDER` before you write a large file there, and it's spread
#   over eight targets. Don't stripe small files [7].
# - **Disks in the nodes** are faster still, because each node adds its own: on Summit, the disks deliver 26.7 TB/s together,
#   and the file system 2.5 TB/s [8]. Copy your data to these disks when the job starts. On Polaris they're at `/local/scratch`
#   [9]. Aurora has the shared store *DAOS* instead [10].
#
# ## Remember
#
# - Input is the third bottleneck. Samples per second times bytes per sample is what a rank needs. Compare this rate with the
#   rank's *share* of the storage.
# - Every small file costs an `open`. Pack small files into shards.
# - Prefetching turns $r + c$ into $\max(r, c)$. It hides all reading until reading takes longer than computing.
# - Read every byte once: each rank its own part, or one reader for all. Nobody waits for what's already in memory.
#
# **Sources**, looked up by 2026-11-27. [1] S. Chien et al., arXiv:1810.03035. [2] NERSC, *Perlmutter Scratch*. [3] *Stateful
# DataLoader* (docs.pytorch.org/data). [4] OLCF, *Sbcast Conda Environments* (docs.olcf.ornl.gov). [5] NERSC, *Python, Scaling
# Up*. [6] ALCF, *Copper* (docs.alcf.anl.gov). [7] *Lustre Striping Best Practices* (wiki.lustre.org). [8] S. Oral et al.,
# *End-to-end I/O portfolio for the Summit supercomputing ecosystem* (SC 2019). [9] *ALCF File Systems*. [10] *DAOS, File
# System* (docs.daos.io). Theta and Summit: V. Vishwanath, *Deep Learning at Scale* (ALCF, 2018). Two-phase I/O: R. Thakur, W.
# Gropp and E. Lusk, Frontiers 1999.

# %%
ranks.stop()
shutil.rmtree(folder)
