# %% [markdown] track="clusters and data"
# # Feeding the ranks
#
# You double the GPUs, and the training gets no faster. Communication is fine, yet every rank is busy only half of the time. What
# is it waiting for? Often it's the next batch, because all ranks read from the same storage, and that didn't double.
#
# **You will** compare ways for ranks to get their data, and write one of them. Then you'll read the next batch while the network
# computes on this one, and see what `DataLoader`'s workers do for you.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores and 400 MB of disk; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first.

# %%
import json
import shutil

import numpy as np

from workshop_lib import mnist, paths, predict, profile, ranks, scripts

from lessons import feeding_the_ranks as lesson

sizes = profile.current()
repeats = sizes.repeats
team = ranks.start(max(2, sizes.ranks))

# %% [markdown]
# ## The third bottleneck
#
# A training step needs computing, communication, and *input*. How much input per second? Let's measure how many images of MNIST
# each rank can train on.

# %%
# %%ranks
import numpy as np
from mpi4py import MPI

from lessons import feeding_the_ranks as lesson

comm = MPI.COMM_WORLD
images_per_s = lesson.training.images_per_s()
print(f"{images_per_s:,.0f} images/s x 784 bytes = {784 * images_per_s / 1e6:.1f} MB/s")

# %% [markdown]
# For a disk, a few megabytes per second are nothing. But on a cluster everybody *shares* the storage. Summit's file system
# delivered 2.5 TB/s. When all of its 4,608 nodes read at once, each of them got 543 MB/s. (On Theta the share was 48 MB/s.) Is
# that a lot? An image of 224 × 224 pixels has 150,528 bytes. A GPU that trains on a thousand of them per second needs 150 MB/s,
# and a Summit node had six. Together they needed more than its share.
#
# So read every byte from the storage once, and wait for it as little as possible.
#
# ## Ways to get the data
#
# We'll work with one file in MNIST's own format: a header of 16 bytes, then the images, 784 bytes each, several times over. For
# each rank, `parts` has the offset of its part in the file, and the number of bytes.

# %%
folder = paths.BUILD / "feeding"
path = folder / "images.idx"
rows = lesson.feeding.write_idx(
    path, mnist.load("train").images, copies=sizes.feed_copies
)
parts = lesson.feeding.parts_of(rows, team.n)
team.push(path=path, parts=parts, repeats=repeats)
parts

# %% [markdown]
# Here are three ways to get this rank's part. The first reads the whole file and takes a slice of it. The second reads only the
# bytes that the rank needs. The third does the same through MPI: all ranks call `Read_at_all` together, so the library knows
# what all of them want before anyone reads.


# %%
# %%ranks
def everyone_reads_all(comm, parts):
    offset, nbytes = parts[comm.rank]
    whole = np.fromfile(path, np.uint8)
    return whole[offset : offset + nbytes]


def own_part(comm, parts):
    offset, nbytes = parts[comm.rank]
    return np.fromfile(path, np.uint8, nbytes, offset=offset)


def mpi_io(comm, parts):
    offset, nbytes = parts[comm.rank]
    mine = np.empty(nbytes, np.uint8)
    file = MPI.File.Open(comm, path, MPI.MODE_RDONLY)
    file.Read_at_all(offset, mine)
    file.Close()
    return mine


# %% [markdown]
# ### Exercise 1 (normal): one rank reads for all
#
# In the fourth way, a single rank reads, and sends each rank its part. Large jobs do this with one reader per node.
# `read(offset, nbytes)` returns bytes of the file, as an array. `parts` has the `(offset, nbytes)` of every rank in `comm`, and
# the parts follow one another in the file.
#
# <details><summary>Hint 1: how much does rank 0 read?</summary>
#
# It starts at the first part's offset, and reads as many bytes as all parts together have. That's a single call of `read`.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `comm.scatter(pieces)` takes a list on rank 0, with one piece per rank, and `None` on the other ranks
# ([01](01_mpi_basics.ipynb)). The array that rank 0 has read begins at the first part, so a part that begins at `offset` in the
# file begins at `offset - first` in the array.
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
    pieces = None
    if comm.rank == 0:
        first = parts[0][0]
        whole = read(first, sum(nbytes for _, nbytes in parts))
        pieces = [
            whole[offset - first : offset - first + nbytes] for offset, nbytes in parts
        ]
    return comm.scatter(pieces)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.read_and_scatter(read_and_scatter)

# %% [markdown]
# ## What comes from where
#
# Between your program and the storage sits the *page cache*: the operating system uses spare memory to keep what programs have
# read. If you read a file again, the system only copies it from there. Such a read is *warm*, and its time tells you nothing
# about the storage. So we measure each way *cold* first, after asking the system to forget the file, and then warm. And we count
# what the ranks *asked* for, and what the system had to *fetch from the storage* for them.

# %%
file_mb = path.stat().st_size / 1e6
guess = predict(
    f"Each of {team.n} ranks reads the whole file of {file_mb:.0f} MB, cold. "
    "How many MB come from the storage?",
    low=0,
    high=2 * team.n * file_mb,
    unit="MB",
)
guess

# %%
team.push(read_and_scatter=lesson.check.written(read_and_scatter))

# %%
# %%ranks --timeout 300
def read(offset, nbytes):
    return np.fromfile(path, np.uint8, nbytes, offset=offset)


ways = {
    "everyone reads all": everyone_reads_all,
    "one reads": lambda comm, parts: read_and_scatter(comm, read, parts),
    "own part": own_part,
    "MPI-IO": mpi_io,
}
measured = lesson.feeding.measure(comm, path, parts, ways, repeats)

# %%
measured = team.pull("measured")[0]
display(lesson.figures.feeding_ways(measured))
lesson.figures.compare_storage(guess, measured, "everyone reads all")

# %% [markdown]
# How many bytes does each way need?
#
# - *Everyone reads all* asks for $p$ times the file. The file still comes from the storage about once, because the ranks of one
#   machine share a page cache. On several nodes it comes once *per node*, and every rank needs the memory for all of it.
# - *One reads* asks for the file once, on any number of nodes. But everybody waits while the reader reads, and then all bytes leave
#   through one node's network card.
# - *Own part* and *MPI-IO* ask for each byte once, and all ranks read at the same time. That helps most on a file system
#   with many disks.
#
# ## Read while you compute
#
# If reading a batch takes $r$ and computing on it takes $c$, a step takes $r + c$. But training doesn't have to stop while data
# is being read. Let another thread read the *next* batch meanwhile, and a step takes only $\max(r, c)$. That's *prefetching*,
# and every input pipeline does it.
#
# ### Exercise 2 (normal): prefetch
#
# With `prefetch`, your ranks will soon train from storage that's as slow as they are, and hardly wait for it. `read(i)` returns
# batch `i`, for `i` from 0 to `n - 1`. It takes a while, and may raise an error. Write a generator that yields all batches in
# order. While the consumer uses one batch, read the next in the background, but no more than that, because the data may not fit
# into memory.
#
# <details><summary>Hint 1: a read that doesn't wait</summary>
#
# `helper.submit(read, i)` starts `read(i)` in the helper's thread, and returns a *future* at once. `future.result()` waits until
# it's done. It returns the batch, or raises the error that `read` raised.
#
# </details><details><summary>Hint 2: when does a generator run?</summary>
#
# Only until `yield`. There it pauses until somebody asks for the next batch. So the next read has to be submitted *before*
# `yield`, and its `result()` belongs after.
#
# </details><details><summary>Solution</summary>
#
# {solution of prefetch}
#
# </details>

# %%
from concurrent.futures import ThreadPoolExecutor


def prefetch(read, n):
    """Yield read(0), …, read(n - 1), with one read ahead."""
    with ThreadPoolExecutor(max_workers=1) as helper:
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

# %% [markdown]
# To see the effect we need slow storage, and yours may be fast. So after the real read, the thread sleeps until the read has taken
# *as long as computing does*, because that's where prefetching can do the most.

# %%
guess = predict(
    "Reading takes as long as computing. "
    "How many times as fast is training with `prefetch`?",
    0.5,
    4,
    unit="times",
)
guess

# %%
team.push(n=sizes.feed_batches, prefetch=lesson.check.written(prefetch))

# %%
# %%ranks --timeout 300
first_row = 64 * n * comm.rank


def read_batch(i):
    return lesson.feeding.read_rows(path, first_row + 64 * i, rows=64)


bytes_per_s = 784 * comm.allreduce(lesson.training.images_per_s(), MPI.MIN)
slow = lesson.training.throttled(read_batch, bytes_per_s)
ways = {
    "read, then compute": lambda: (slow(i) for i in range(n)),
    "prefetch": lambda: prefetch(slow, n),
}
spent = lesson.training.measure(comm, ways, first_row, repeats)

# %%
spent = team.pull("spent")[0]
display(
    lesson.figures.feeding_shares(
        spent, f"An epoch of {sizes.feed_batches} batches on each of {team.n} ranks"
    )
)
ratios = spent["read, then compute"].sum(axis=1) / spent["prefetch"].sum(axis=1)
guess.compare(ratios)

# %% [markdown]
# Prefetching hides the shorter of the two times behind the longer one, so it gains a factor of two at most. If you gained much
# less, then other programs, or the ranks themselves, had the core that the reading thread needed. On two real machines,
# prefetching hid TensorFlow's input completely [1]. And if a data set fits into memory, *preload* it before the first epoch. From
# then on, nothing is read from the storage.
#
# *Beat it:* what if reading takes three times as long as computing? Try `slow = lesson.training.throttled(read_batch, bytes_per_s / 3)`
# on the ranks, and a `prefetch` with three threads.
#
# ## What people really use
#
# PyTorch's `DataLoader` prefetches for you, with *processes* in place of your thread, because Python's lock lets only one thread
# at a time run Python code. `num_workers=2` starts two, and each prepares whole batches ahead. (In TensorFlow, `tf.data` does it:
# [loader_tf.py](scripts/loader_tf.py) measures its `map`, `interleave` and `prefetch`.)
#
# The script `loader.py` reads through a `DataLoader`. Reading an image takes as long as computing on it, as above. First the
# read *waits*, as your thread did, and then it *works*, as a JPEG decoder does.

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
    min(3, repeats),
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
# - On a GPU, set `pin_memory=True`, so that the GPU can fetch batches by itself. `images.to("cuda", non_blocking=True)` then returns
#   at once, and your program goes ahead while they travel.
#
# ## Deeper: different random numbers on every rank
#
# *Augmentation* changes samples at random, for example by shifting or mirroring images. The network gets more to learn from, and
# you don't read a single extra byte. Every good script sets a seed. But if every rank sets the same one, image *i* of every rank's
# batch is shifted by the same amount. Nothing fails, and the loss falls. You just got less variety than you paid for.
#
# ### Exercise 3 (warm-up): a generator for each rank and step
#
# Return a NumPy generator, `np.random.default_rng(…)`, that draws different numbers for every rank, every step and every seed. If
# you ask again for the same three, you get the same numbers, so a run that's stopped and resumed draws what it would have drawn.
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
team.push(generator=lesson.check.written(generator))

# %%
# %%ranks
for name, numbers in {
    "the same seed": np.random.default_rng(1),
    "generator": generator(1, comm.rank, 1),
}.items():
    print(f"{name}: my first images move by", *numbers.integers(-3, 4, (4, 2)).tolist())

# %% [markdown]
# ## Deeper: shuffled shards that resume
#
# Your generator needs no saved state. Neither does the *order* of the samples, if it's a function of seed and step: a
# checkpoint only has to hold the step. Say four ranks stop after 60 % of an epoch, and three go on. How often does the epoch
# see each sample?


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
# first can tell you *which* sample made the loss jump at step 41,307. `torchdata`'s `StatefulDataLoader`, last released in
# February 2025, saves each rank's loader state instead, with a part per worker, so it can't resume with another number of ranks
# [2]. Loaders read ahead, so save the step of the *training*.
#
# Random order has a price, though. A file per sample costs an `open` each, which on a cluster asks one of a few *metadata
# servers*: Perlmutter has 16, next to 274 servers for the data [3]. Scattered rows of a large file cost one wait each. So data
# sets are packed into **shards**, files of some hundred megabytes that are read from front to back. Whatever tool you use, it
# does this:
#
# - Each epoch deals out the *shards* to ranks and workers in a new order, drawn from seed and epoch. Have many more shards than
#   ranks, or some ranks get two and the rest get one.
# - A buffer of a few thousand samples, drawn from with the same kind of generator, mixes neighbors.
# - To resume, compute which shards are done, and skip to the sample within the shard. Fix the number of steps for every rank,
#   because some rank runs out first.
# - Texts have different lengths. *Packing* puts them one after the other and cuts rows of equal length, so no rank computes on
#   padding. A mask keeps each text from attending to the others.
#
# ## Deeper: what changes on a large machine
#
# - **A reader per node.** Call your `read_and_scatter` with `comm.Split_type(MPI.COMM_TYPE_SHARED)`, the ranks of one node. The
#   storage then serves a few readers with large pieces. `Read_at_all` may do the same by itself (*two-phase I/O*).
# - **Who downloads?** "If the file isn't there, download it" is a race on several ranks: one writes, and another finds half a file
#   that looks like a whole one. Let one rank per disk download under a temporary name, `os.replace` it, and have the others wait at
#   a barrier, with a time limit.
# - **Importing.** `import torch` opens some thousand files, on every rank. On eight nodes of Frontier, a small script that imports
#   PyTorch took 236 s from NFS, 51 s from Lustre, and 2 s from the nodes' own disks, after 49 s of unpacking [4]. So past some
#   hundred nodes, your Python environment is one more data set: `conda pack` it and send it to every node with `sbcast`, or use a
#   container, which the file system sees as one large file [5]. On Aurora, *Copper* shares the reads among the nodes [6].
# - **Lustre** keeps a file on a single storage target, unless your center has set another default (`lfs getstripe
#   FOLDER` tells) or you *stripe* it: `lfs setstripe -c 8 FOLDER`, before you write a large file there, spreads it over
#   eight. Don't stripe small files [7].
# - **Disks in the nodes** are faster still, because each node adds its own: on Summit 26.7 TB/s together, against 2.5 TB/s [8].
#   Copy your data there when the job starts. On Polaris they're at `/local/scratch` [9], and Aurora has *DAOS* instead [10].
#
# ## Remember
#
# - Input is the third bottleneck. Samples per second times bytes per sample is what a rank needs. Compare it with its *share* of
#   the storage.
# - Count bytes, asked for and fetched. Seconds alone mislead, because a second read comes from memory.
# - Prefetching turns $r + c$ into $\max(r, c)$. Workers that *work* need cores of their own.
# - Draw random numbers from seed, rank and step, and orders from seed and epoch: a restart then changes neither.
# - Every small file costs an `open`. Pack small files into shards, and past some hundred nodes, pack your environment, too.
#
# **Sources**, looked up by 2026-11-27. [1] S. Chien et al., arXiv:1810.03035. [2] *Stateful DataLoader* (docs.pytorch.org/data).
# [3] NERSC, *Perlmutter Scratch*. [4] OLCF, *Sbcast Conda Environments* (docs.olcf.ornl.gov). [5] NERSC, *Python, Scaling Up*. [6]
# ALCF, *Copper* (docs.alcf.anl.gov). [7] *Lustre Striping Best Practices* (wiki.lustre.org). [8] S. Oral et al., SC 2019. [9]
# *ALCF File Systems*. [10] *DAOS, File System* (docs.daos.io). Theta and Summit: V. Vishwanath, *Deep Learning at Scale* (ALCF,
# 2018). Two-phase I/O: R. Thakur, W. Gropp and E. Lusk, Frontiers 1999. Page cache and counts: posix_fadvise(2), proc_pid_io(5).

# %%
ranks.stop()
shutil.rmtree(folder)
