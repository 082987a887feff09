# %% [markdown] track="clusters and data"
# # Feeding the ranks
#
# You double the GPUs, and the training gets no faster. Communication is fine, yet every rank is busy only half of the time.
# What is it waiting for in the other half? Often it's the next batch, because all ranks read from the same storage, and that
# didn't double.
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

from workshop_lib import predict, profile, ranks
from workshop_lib.data import mnist
from workshop_lib.lessons.feeding_the_ranks import feeding, figures, pieces
from workshop_lib.lessons.feeding_the_ranks import judge as check
from workshop_lib.paths import BUILD, SCRIPTS
from workshop_lib.ranks import scripts

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

from workshop_lib.lessons.feeding_the_ranks import feeding, pieces, training

comm = MPI.COMM_WORLD
images_per_s = training.images_per_s()
print(f"{images_per_s:,.0f} images/s x 784 bytes = {784 * images_per_s / 1e6:.1f} MB/s")

# %% [markdown]
# For a disk, a few megabytes per second are nothing. On a laptop, training on MNIST never waits for its input.
#
# On a cluster everybody *shares* the storage. Summit's file system delivered 2.5 TB/s. When all of its 4,608 nodes read at
# once, each of them got 543 MB/s. (On Theta the share was 48 MB/s.) Is that a lot? An image of 224 × 224 pixels has 150,528
# bytes (and as a JPEG, an image of ImageNet has about 110,000). A GPU that trains on a thousand of them per second needs 150
# MB/s, and a node of Summit had six GPUs. That's more than its share.
#
# So read every byte from the storage once, and wait for it as little as possible.
#
# ## Ways to get the data
#
# We'll work with one file in MNIST's own format: a header of 16 bytes, then the images, 784 bytes each. It holds the training
# images several times, so there's something to measure. For each rank, `parts` has the offset of its part in the file, and the
# number of bytes.

# %%
folder = BUILD / "feeding"
path = folder / "images.idx"
rows = feeding.write_idx(path, mnist.load("train").images, copies=sizes.feed_copies)
parts = feeding.parts_of(rows, team.n)
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
# In the fourth way, a single rank reads, and sends each rank its part. You'll use your function twice: here with all ranks, and
# later with one reader per node, as large jobs do. `read(offset, nbytes)` returns bytes of the file, as an array. `parts` has the
# `(offset, nbytes)` of every rank in `comm`, and the parts follow one another in the file.
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
    """Rank 0 reads all parts in one piece, and sends each rank its own; return this rank's part, uint8 [bytes]."""
    # <solution>
    pieces = None
    if comm.rank == 0:
        first = parts[0][0]
        whole = read(first, sum(nbytes for _, nbytes in parts))
        pieces = [whole[offset - first : offset - first + nbytes] for offset, nbytes in parts]
    return comm.scatter(pieces)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.read_and_scatter(read_and_scatter)

# %% [markdown]
# ## What comes from where
#
# Between your program and the storage sits the *page cache*: the operating system uses spare memory to keep what programs have
# read. If you read a file again, the system only copies it from there, and the time tells you nothing about the storage. Such a
# read is *warm*.
#
# So we measure each way *cold* first, after asking the system to forget the file, and then warm. And we count two kinds of
# bytes: what the ranks *asked* for, and what the system had to *fetch from the storage* for them.

# %%
file_mb = path.stat().st_size / 1e6
guess = predict(
    f"Each of {team.n} ranks reads the whole file of {file_mb:.0f} MB, cold. How many MB come from the storage?",
    low=0,
    high=2 * team.n * file_mb,
    unit="MB",
)
guess

# %%
team.push(read_and_scatter=check.written(read_and_scatter))

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
measured = feeding.measure(comm, path, parts, ways, repeats)

# %%
measured = team.pull("measured")[0]
display(figures.feeding_ways(measured))
figures.compare_storage(guess, measured, "everyone reads all")

# %% [markdown]
# Part of the time of *one reads* is `comm.scatter`, which copies the pieces several times and sends them to the other ranks.
# How many bytes each way needs doesn't depend on how busy the machine is:
#
# - *Everyone reads all* asks for $p$ times the file. The file still comes from the storage about once, because the ranks of one
#   machine share a page cache. On several nodes it comes once *per node*, and every rank needs the memory for all of it.
# - *One reads* asks for the file once, on any number of nodes. But the reader needs the memory for all of it, everybody waits
#   while it reads, and then all bytes leave through one node's network card.
# - *Own part* and *MPI-IO* ask for each byte once, and all ranks read at the same time. On a single disk that helps less than on
#   a file system that's spread over many disks.
#
# The seconds do depend on how busy the machine is. Before you believe a ranking, compare the gaps between the points with the
# length of their bars.
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
check.prefetch(prefetch)

# %% [markdown]
# To see the effect we need slow storage, and yours may be fast. So we make each read take *as long as computing does*, because
# that's where prefetching can do the most. After the real read, the thread sleeps for the rest of the time. A thread that waits
# for a disk does nothing else either.

# %%
guess = predict(
    "Reading takes as long as computing. How many times as fast is training with `prefetch`?", 0.5, 4, unit="times"
)
guess

# %%
team.push(n=sizes.feed_batches, prefetch=check.written(prefetch))

# %%
# %%ranks --timeout 300
first_row = 64 * n * comm.rank


def read_batch(i):
    return pieces.read_block(path, first_row + 64 * i, rows=64)


bytes_per_s = 784 * comm.allreduce(training.images_per_s(), MPI.MIN)
slow = training.throttled(read_batch, bytes_per_s)
ways = {
    "read, then compute": lambda: (slow(i) for i in range(n)),
    "prefetch": lambda: prefetch(slow, n),
}
spent = training.measure(comm, ways, first_row, repeats)

# %%
spent = team.pull("spent")[0]
display(figures.feeding_shares(spent, f"An epoch of {sizes.feed_batches} batches on each of {team.n} ranks"))
ratios = spent["read, then compute"].sum(axis=1) / spent["prefetch"].sum(axis=1)
guess.compare(ratios)

# %% [markdown]
# Prefetching hides the shorter of the two times behind the longer one, so it gains a factor of two at most, when both are
# equal. If you gained much less, then other programs, or the ranks themselves, had the core that the reading thread needed. On
# two real machines, more threads gave TensorFlow up to 2.3 and up to 7.8 times the bandwidth, and prefetching hid the input
# completely [12].
#
# If a data set fits into memory, read all of it before the first epoch, and keep it. That's *preloading*. From then on, nothing
# is read from the storage.
#
# *Beat it:* what if reading takes three times as long as computing? Try `slow = training.throttled(read_batch, bytes_per_s / 3)`
# on the ranks, and a `prefetch` with three threads.
#
# ## What people really use
#
# PyTorch's `DataLoader` prefetches for you, with *processes* in place of your thread. `num_workers=2` starts two, and each
# prepares whole batches ahead. Why processes? Python's lock lets only one thread at a time run Python code. A thread that waits
# for a disk doesn't mind, nor does one inside a C library, such as a JPEG decoder. But the Python code around them, such as
# your own transforms, has to take turns.
#
# The script `loader.py` reads through a `DataLoader`. Reading an image takes as long as computing on it, as above. First the
# read *waits*, as your thread did, and then it *works*, as a decoder does.

# %%
guess = predict(
    "Now reading is work. How many times as fast does training get with 2 workers?", 0.2, 4, unit="times"
)
guess

# %%
times = folder / "loader.json"
scripts.run("python", SCRIPTS / "loader.py", times, sizes.feed_batches, min(3, repeats), timeout_s=2 * sizes.timeout_s)
spent = {name: np.array(seconds) for name, seconds in json.loads(times.read_text()).items()}
display(figures.feeding_shares(spent, "An epoch in one process, with a DataLoader and its workers"))
ratios = spent["work, 0 workers"].sum(axis=1) / spent["work, 2 workers"].sum(axis=1)
guess.compare(ratios)

# %% [markdown]
# - Workers take time to start, and they start again in every epoch unless you set `persistent_workers=True`.
# - If reading means waiting, one worker hides it. If reading is work, each worker needs a core *of its own*. When every core
#   already has a rank, the ranks lose what the workers gain. That's why a rank on a cluster gets several cores, and why
#   [10](10_compute_nodes.ipynb) insists on `--cpus-per-task`.
# - `prefetch_factor=2`, the default, means two batches per *worker*. With two workers that's four batches ahead, so keep an eye
#   on the memory.
#
# On a GPU, also set `pin_memory=True`. The loader then puts batches into *pinned* memory, which the operating system promises
# not to move, so a GPU can fetch them by itself. `images.to("cuda", non_blocking=True)` returns at once, and your program can go
# ahead while the GPU is still busy.
#
# ## Deeper: different random numbers on every rank
#
# *Augmentation* changes samples at random, for example by shifting or mirroring images. The network gets more to learn from, and
# you don't read a single extra byte.
#
# On several ranks, random numbers get dangerous. Every good script sets a seed, but what if every rank sets the same one? Then
# in each step, image *i* of every rank's batch is shifted by the same amount. Nothing fails, and the loss falls. You just got
# less variety than you paid for. `DataLoader`'s workers had a famous version of this: each was a copy of the same process, with
# the same state of NumPy's generator.
#
# ### Exercise 3 (warm-up): a generator for each rank and step
#
# With `generator`, each rank shifts its images differently in every step, and a run that's stopped and resumed draws the same
# numbers as one that never stopped. Return a NumPy generator, `np.random.default_rng(…)`, that draws different numbers for
# every rank, every step and every seed. If you ask again for the same three, you get the same numbers.
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
check.generator(generator)

# %%
team.push(generator=check.written(generator))

# %%
# %%ranks
for name, numbers in {"the same seed": np.random.default_rng(1), "generator": generator(1, comm.rank, 1)}.items():
    print(f"{name}: my first images move by", *numbers.integers(-3, 4, (4, 2)).tolist())

# %% [markdown]
# ## Deeper: resume exactly
#
# Your generator needs no state: seed, rank and step are enough. Do the same for the *order* of the samples, and a checkpoint
# only has to hold the step. What goes wrong otherwise? Say a job is stopped after 60 % of an epoch, and you resume it in three
# ways. How often does it see each sample in this epoch?

# %%
n, stopped = 60_000, 36_000
# Seed 1, epoch 3. NumPy takes missing numbers as 0, so without the last two this would be `generator(1, 3, 0)`.
order = np.random.default_rng([1, 3, 0, 1]).permutation(n)
resumed = {
    "from the step in the checkpoint": order[stopped:],
    "a new order for the rest of the epoch": np.random.default_rng().permutation(n)[stopped:],
    "the epoch from its start": order,
}
for way, rest in resumed.items():
    seen = np.bincount(np.concatenate([order[:stopped], rest]), minlength=n)
    print(f"{way:>38}: {(seen == 0).sum():6,} never, {(seen == 1).sum():6,} once, {(seen == 2).sum():6,} twice")

# %% [markdown]
# The second way is what happens if you save the weights and the step, but not what the order was drawn from. If you save only
# the weights, you get the third. Over many epochs the differences average out. But a language model reads most of its data only
# once, so it would never see some samples. And if you want to know *which* sample made the loss jump at step 41,307, only the
# first way can answer. A loader with workers is ahead of the training, so save the step of the *training*. `torchdata`'s
# `StatefulDataLoader` does that for you.
#
# ## Deeper: an input pipeline in TensorFlow
#
# In TensorFlow's `tf.data` you describe the pipeline as a chain of steps. `map` with `num_parallel_calls` changes several
# elements at once, `interleave` reads from several files at once, and `prefetch` is what you wrote. On several ranks, put
# `dataset.shard(size, rank)` *first* in the chain, or every rank reads everything and throws most of it away. The script
# [loader_tf.py](scripts/loader_tf.py) measures such chains.
#
# ## Deeper: small pieces
#
# So far each rank read one large piece. But samples should arrive in random order, and in a different order every epoch. Let's
# compare four ways to read the same number of images: a *block* of neighbors, in one read; *scattered rows* of the file, one
# read per row; *a file per image*, the form that many data sets come in; and a *tar shard*, which holds each sample as two small
# files, an image and its label.

# %%
n_pieces = sizes.feed_pieces
some = slice(n_pieces * team.n)
pieces.write(folder, mnist.load("train").images[some], mnist.load("train").labels[some], n_pieces)
team.push(folder=folder, n_pieces=n_pieces)

# %%
# %%ranks --timeout 120
table = pieces.measure(comm, path, folder, n_pieces, repeats)

# %%
team.pull("table")[0]

# %% [markdown]
# The system fetches whole *pages*, mostly of 4,096 bytes, so a row of 784 costs one page or two. When you read in order it also
# reads ahead, but each scattered read waits on its own.
#
# With a file per image, every read needs an `open` as well. Here that's a lookup in memory. On a parallel file system every
# `open` asks a *metadata server*, and the whole machine has only a few: Perlmutter has 16, next to 274 servers for the data [1].
# So a job of a thousand ranks that opens a file per image slows down everybody.
#
# That's why people pack their data sets. In **tar shards**, the format that WebDataset made popular, a sample's files follow one
# another and share a name: `000042.raw`, `000042.cls`. Tar adds 512 bytes or more to each file, which is a lot for our 784 bytes,
# and nothing for a photo. In return, a shard is read from front to back, over a network if need be.
#
# Random order then comes in two steps. Each epoch deals out the *shards* to ranks and workers in a new order, and a buffer of a
# few thousand samples mixes neighbors. Have many more shards than ranks, or some ranks get two and the rest get one. Even then
# some rank runs out of samples first, so fix the number of steps for every rank.
#
# ## Deeper: a reader per node
#
# Your `read_and_scatter` works for any group of ranks. In large jobs, one rank of each *node* reads for its neighbors. The
# storage then serves a few readers with large pieces, and the bytes spread inside the nodes. Let's play two nodes with two ranks
# each:

# %%
team = ranks.start(4)
parts = feeding.parts_of(rows, 4)
team.push(path=path, parts=parts, read_and_scatter=check.written(read_and_scatter))

# %%
# %%ranks --timeout 120
import numpy as np
from mpi4py import MPI

from workshop_lib.lessons.feeding_the_ranks import feeding

comm = MPI.COMM_WORLD
node = comm.rank // 2
group = comm.Split(node)  # on a real cluster: comm.Split_type(MPI.COMM_TYPE_SHARED)


def read(offset, nbytes):
    return np.fromfile(path, np.uint8, nbytes, offset=offset)


mine, _, counts = feeding.measured(lambda: read_and_scatter(group, read, parts[2 * node : 2 * node + 2]))
print(f"I got {len(mine) / 1e6:.1f} MB" + (f", and asked for {counts.asked_bytes / 1e6:.1f} MB" if counts else ""))

# %% [markdown]
# MPI-IO may do the same without telling you. In `Read_at_all` the library can let a few ranks read large pieces, and pass the
# rest on in messages: *two-phase I/O*.
#
# ## Deeper: who downloads?
#
# "If the file isn't there, download it" is fine in a script for one process. On several ranks it's a race. Each rank below
# checks whether the file is there, and if not, writes it slowly, as a download does. The ranks start a moment apart. How many
# bytes does each of them see?

# %%
# %%ranks
import os
import time


def download(target):
    """Write a file of 1,000,000 bytes in ten pieces, as if it came over a slow network."""
    with open(target, "wb") as file:
        for _ in range(10):
            file.write(b"x" * 100_000)
            file.flush()
            time.sleep(0.02)


target = path.with_name("downloaded")
if comm.rank == 0:
    target.unlink(missing_ok=True)
comm.Barrier()
time.sleep(0.05 * comm.rank)
if not target.exists():
    download(target)
print(f"I read {target.stat().st_size:,} bytes of 1,000,000")

# %% [markdown]
# A rank that finds the file takes what's there, and half a file may well look like a whole one. The fix has two parts. One rank
# downloads, and all other ranks wait until it's done. And that rank writes under a temporary name first, so the file appears
# whole or not at all, even if the download is cut off:

# %%
# %%ranks
target = path.with_name("downloaded once")
if comm.rank == 0 and not target.exists():
    download(target.with_suffix(".part"))
    os.replace(target.with_suffix(".part"), target)
comm.Barrier()
print(f"I read {target.stat().st_size:,} bytes of 1,000,000")

# %% [markdown]
# If rank 0 hangs or fails here, the other ranks wait at the barrier forever. So give the download a time limit, and let rank 0
# reach the barrier even if it fails. And where each node has its own disk, one rank *per node* has to download.
#
# ## Deeper: importing at scale
#
# Before a job reads its first sample, every rank starts Python and imports PyTorch. How many files is that?

# %%
count = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
import torch
print(f"import torch opens {len(opened):,} files")
"""
scripts.run("python", "-c", count, timeout_s=sizes.timeout_s)

# %% [markdown]
# Python also looks for each module in several folders. In total, this import asked our file system about 20,000 questions. On
# 1,000 nodes with four ranks each, that's 80 million questions. Ranks of a node share its cache, but even a quarter of that is
# far too much for a few metadata servers at once. NERSC warns of slow starts from about 100 nodes on [2], and ALCF has seen
# jobs on Aurora idle for up to 20 minutes in a single line [3]. At that scale your Python environment is one more data set that
# all ranks have to read, and what helps with data helps here, too:
#
# - **Copy it to every node.** Pack the environment into one file, send it to the nodes' own disks or memory, and unpack it
#   there. On eight nodes of Frontier, a small script that imports PyTorch took 236 s from NFS, 51 s from Lustre, and 2 s from
#   the nodes' own disks, after 49 s of unpacking [4]. `sbcast` sends the file from node to node:
#
#   ```bash
#   conda pack -p /path/to/env -o env.tar.gz    # once, since a plain copy points to its old place
#
#   sbcast env.tar.gz /tmp/env.tar.gz           # in the job script
#   srun -n $SLURM_NNODES --ntasks-per-node=1 mkdir -p /tmp/env
#   srun -n $SLURM_NNODES --ntasks-per-node=1 tar -xzf /tmp/env.tar.gz -C /tmp/env
#   source /tmp/env/bin/activate
#   srun -n $SLURM_NNODES --ntasks-per-node=1 --export=ALL conda-unpack
#   ```
# - **Put it into a container or a SquashFS image.** The file system then sees one large file, and each node looks up small files
#   inside of it by itself. NERSC recommends containers for large Python jobs [2], and Pawsey has a guide to SquashFS [5].
# - **Share the reads.** On Aurora, *Copper* mounts a folder on every node. When all nodes read a file there, only one of them asks
#   the file system, and passes the bytes on along a tree of nodes. You put `/tmp/$USER/copper` in front of your paths. ALCF
#   recommends Copper beyond 2,000 nodes [6].
#
# ## Deeper: files on Lustre, and faster storage
#
# Unless you tell it otherwise, *Lustre* keeps a file on a single storage target, and no file is faster than its targets [7]. So
# *stripe* a large file that many ranks read. `lfs setstripe -c 8 FOLDER`, before you write the file there, spreads it over eight
# targets. Don't stripe small files. Some machines choose by the file's size, in a *progressive layout*, and ask you not to
# stripe by hand [8].
#
# Disks in the nodes are faster still, because each node adds its own speed: on Summit 26.7 TB/s together, against 2.5 TB/s from
# the file system [9]. Copy your data there when the job starts. On Polaris, these disks are mounted at `/local/scratch` [10].
# Aurora has *DAOS*, an object store that you can also use like a folder. Opening, reading and writing through the folder are
# slow. With `libpil4dfs.so` in `LD_PRELOAD`, all three bypass it [11].
#
# ## Remember
#
# - Input is the third bottleneck. Samples per second times bytes per sample is what a rank needs. Compare it with its *share* of
#   the storage.
# - Count bytes, asked for and fetched. Seconds alone mislead, because a second read comes from memory.
# - Prefetching turns $r + c$ into $\max(r, c)$. Workers that *work* need cores of their own.
# - Random numbers drawn from seed, rank and step are different everywhere, and the same after a restart.
# - Every small file costs an `open`. Pack small files into shards, and past some hundred nodes, pack your environment, too.
#
# **Sources**, looked up by 2026-11-26. [1] NERSC, *Perlmutter Scratch* (docs.nersc.gov). [2] NERSC, *Python, Scaling Up*, and
# *Containers* (docs.nersc.gov). [3] ALCF, *2024 Annual Report*, on Copper (argonne-lcf.github.io/AR2024). [4] OLCF, *Sbcast Conda
# Environments* (docs.olcf.ornl.gov). [5] Pawsey, *How to avoid Conda breaking your file quota*. [6] ALCF, *Copper*
# (docs.alcf.anl.gov). [7] *Lustre Striping Best Practices* (wiki.lustre.org). [8] Pawsey, on Setonix's `/scratch`. [9] S. Oral et
# al., *End-to-end I/O Portfolio for the Summit Supercomputing Ecosystem* (SC 2019). [10] *ALCF File Systems* (docs.alcf.anl.gov).
# [11] *DAOS, File System* (docs.daos.io). [12] S. Chien et al., *Characterizing Deep-Learning I/O Workloads in TensorFlow*
# (arXiv:1810.03035). Theta and Summit: V. Vishwanath, *Deep Learning at Scale* (ALCF, 2018). Two-phase I/O:
# R. Thakur, W. Gropp and E. Lusk, *Data Sieving and Collective I/O in ROMIO* (Frontiers 1999). The page cache and its counts: the
# Linux manual, posix_fadvise(2) and proc_pid_io(5). Loaders: the pages on `torch.utils.data`, `tf.data` and WebDataset.

# %%
ranks.stop()
shutil.rmtree(folder)
