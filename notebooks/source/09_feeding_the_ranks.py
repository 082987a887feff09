# %% [markdown] track="clusters and data"
# # Feeding the ranks
#
# You double the GPUs, and the training gets no faster. Communication is fine, yet every rank is busy only half of the time.
# What is it waiting for in the other half? Often it's the next batch, because all ranks read from the same storage, and that
# didn't double.
#
# **You will** measure five ways for ranks to get their data, and count the bytes that each way moves. Then you'll read the
# next batch while the network computes on this one, and see what `DataLoader`'s workers do for you. If you like, you'll also
# give every rank its own random numbers, which survive a restart.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores and 400 MB of disk; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first.

# %%
import json
import shutil

import numpy as np
import pandas as pd

from workshop_lib import ranks
from workshop_lib.data import mnist
from workshop_lib.lessons.feeding_the_ranks import feeding, figures, readers
from workshop_lib.lessons.feeding_the_ranks import judge as check
from workshop_lib.lessons.feeding_the_ranks import judge_augmentation as augmentation
from workshop_lib.notebook import profile
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, SCRIPTS
from workshop_lib.ranks import scripts

sizes = profile.current()
repeats = sizes.repeats
team = ranks.start(max(2, sizes.ranks))

# %% [markdown]
# ## The third bottleneck
#
# A training step needs computing, communication, and *input*. How much input per second? As much as the network can use up.
# Let's measure how many images of MNIST each rank can train on per second.

# %%
# %%ranks
import time

import numpy as np
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist
from workshop_lib.lessons.feeding_the_ranks import feeding
from workshop_lib.models import torch_cnn

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
labels = torch.tensor(mnist.load("train").labels).long()
model = torch_cnn.build(seed=1)


def compute(images, first_row):
    """The gradient of these images, uint8 [n, 784], whose labels begin at `first_row` of the training set."""
    model.zero_grad()
    pixels = torch_cnn.normalize(torch.tensor(images.reshape(-1, 28, 28)))
    cross_entropy(model(pixels), labels[first_row : first_row + len(images)]).backward()


# %%
# %%ranks
images = mnist.load("train").images[:64]
compute(images, 0)
began = time.perf_counter()
for _ in range(5):
    compute(images, 0)
images_per_s = 5 * len(images) / (time.perf_counter() - began)
print(f"{images_per_s:,.0f} images/s x 784 bytes = {784 * images_per_s / 1e6:.1f} MB/s")

# %% [markdown]
# For a disk, a few megabytes per second are nothing. On a laptop, training on MNIST never waits for its input. But on a cluster
# everybody *shares* the storage. The documents behind this workshop describe two machines. Here's what one node gets on each
# of them when all nodes read at once:

# %%
machines = [("Theta", 210e9, 4_392), ("Summit", 2.5e12, 4_608)]
for name, bytes_per_s, nodes in machines:
    share = bytes_per_s / nodes
    print(
        f"{name}: {bytes_per_s / 1e9:,.0f} GB/s / {nodes:,} nodes = {share / 1e6:.0f} MB/s per node: "
        f"{share / 784:,.0f} images of MNIST, or {share / (3 * 224 * 224):,.0f} of 224 x 224 pixels"
    )

# %% [markdown]
# An image of 224 × 224 pixels, with one byte for each of three colors, takes 150,528 bytes.
# A GPU that trains on a thousand of them
# per second needs 150 MB/s, and a node of Summit had six GPUs. That's more than the node's share. Adding nodes adds computing
# power, but beyond some point not a single byte per second.
# So read every byte from the storage once, and wait for it as little as
# possible.
#
# ## Five ways to get the data
#
# We'll work with one file in MNIST's own format: a header of 16 bytes, then the images, 784 bytes each.
# It holds the training images
# several times, so there's something to measure.

# %%
folder = BUILD / "feeding"
path = folder / "images.idx"
rows = feeding.write_idx(path, mnist.load("train").images, copies=sizes.feed_copies)
print(f"{path.name}: {rows:,} images, {path.stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# Each of $p$ ranks wants the same number of images, from a file of $n$ bytes:
#
# | way | what a rank reads | messages |
# |---|---|---|
# | everyone reads all | the whole file, $n$, to keep only its part | none |
# | rank 0 scatters | rank 0 reads the file, the other ranks nothing | $p - 1$ from rank 0, one part each |
# | own part | $n/p$: it opens the file, and reads from the first byte of its part on | none |
# | MPI-IO | the same with `MPI.File.Open` and `Read_at_all`, which all ranks call together | the library decides |
# | a file per rank | $n/p$: its own file, which somebody has cut out beforehand | none |
#
# All five are in `workshop_lib/lessons/feeding_the_ranks/feeding.py`, a few lines each. But first, somebody has to say which bytes belong to which
# rank.
#
# ### Exercise 1 (warm-up): which bytes are mine?
#
# Your `my_bytes` will tell all five ways where a rank's rows are. A file has a header of `header_bytes`, then `rows` rows of
# `row_bytes` each. For rank `rank` of `size`, return the offset of its first byte in the file, and how *many* bytes it reads.
# Together, the ranks read every row exactly once, and no row is torn in two. Their numbers of rows differ by at most one, even
# where `size` doesn't divide `rows`.
#
# <details><summary>Hint 1: rows first</summary>
#
# Forget the bytes for a moment. Which row is your first, and which is your last?
# If every rank begins where the one before it ends,
# nothing is lost.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `rows * rank // size` is the first row of `rank`, and the first row of `rank + 1` is where yours end. Multiply by `row_bytes`;
# the header only moves the offset.
#
# </details><details><summary>Solution</summary>
#
# {solution of my_bytes}
#
# </details>


# %%
def my_bytes(rows, row_bytes, header_bytes, rank, size):
    """(offset, bytes) of this rank's rows in the file."""
    # <solution>
    first, end = rows * rank // size, rows * (rank + 1) // size
    return header_bytes + first * row_bytes, (end - first) * row_bytes
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.my_bytes(my_bytes)

# %% [markdown]
# From here on, your function says what each rank reads (or the library's, until yours is written).

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
# Between your program and the storage sits the *page cache*. In memory that nobody else needs, the operating system keeps what
# programs have read or written. Reading a file again only copies it from there, and tells you nothing about the storage. Such
# a read is *warm*.
#
# So we measure each way *cold* first, and then warm. For a cold read we ask the system to forget the file. And we count two
# kinds of bytes: what the ranks *asked* for,
# and what the system had to *fetch from the storage* for them. Linux keeps both counts for
# each process. (A disk, a virtual machine's host or a file server may keep data in *its* memory, too. We can neither see that
# memory nor empty it.)

# %%
file_mb = path.stat().st_size / 1e6
guess = predict(
    f"Each of {team.n} ranks reads the whole file of {file_mb:.0f} MB, cold. How many MB come from the storage?",
    low=0,
    high=2 * team.n * file_mb,
    unit="MB",
)
guess

# %% [markdown]
# In each round every way gets a turn, so a hiccup affects all of them equally. After each turn, `measure` checks that every
# rank got exactly the bytes of its part.

# %%
team.push(path=path, parts=parts, repeats=repeats)

# %%
# %%ranks --timeout 300
feeding.cut_files(comm, path, parts)  # for "a file per rank"
measured = feeding.measure(comm, path, parts, repeats)

# %%
measured = team.pull("measured")[0]
figures.feeding_table(measured)

# %%
stored = next(row for row in measured if row["way"] == "everyone reads all" and row["cold"])["storage_bytes"]
if None in stored:
    print("This system doesn't count what comes from the storage.")
elif max(stored) == 0:
    print("Nothing came from the storage: this file system lives in memory, or doesn't forget when asked.")
else:
    stored_mb = np.array(stored) / 1e6
    display(guess.compare(np.median(stored_mb), spread=(stored_mb.min(), stored_mb.max())))

# %%
figures.feeding_ways(measured)

# %% [markdown]
# The bytes don't depend on how busy the machine is:
#
# - *Everyone reads all* asks for $p$ times the file. The file still comes from the storage about once, because
#   the ranks of one machine
#   share a page cache. On several nodes it comes once *per node*, and every rank needs the memory for all of it.
# - *Rank 0 scatters* asks for the file once, on any number of nodes. But rank 0 needs the memory for all of it, everybody waits
#   while it reads, and then all bytes leave through one node's network card.
# - *Own part*, *MPI-IO* and *a file per rank* ask for each byte once,
#   and all ranks read at the same time. On a single disk that
#   helps less than on a file system that's spread over many.
#
# The seconds do depend on how busy the machine is. Before
# you believe a ranking, compare the gaps between the points with the length of their bars.
#
# *Think about it:* which bars on the right would grow on ten nodes, each with its own page cache, and by how much?
#
# ## Read while you compute
#
# If reading a batch takes $r$ and computing on it takes $c$, a step takes $r + c$. But training doesn't have to stop while data
# is being read. Let another thread read the *next* batch meanwhile, and a step takes only $\max(r, c)$. That's *prefetching*,
# and every input pipeline does it.
#
# ### Exercise 2 (normal): prefetch
#
# With `prefetch`, your ranks will soon train from storage that's as slow as they are, and hardly wait for it.
# `read(i)` returns batch `i`, for `i` from 0
# to `n - 1`. It takes a while, and may raise an error. Write a generator that yields all batches in order. While the consumer
# uses one batch, read the next in the background, but no more than that, because the data may not fit into memory.
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
# that's where prefetching can do the most. After the real read, it sleeps for the rest of the time. That emulates only the
# *waiting*, but a thread that waits for a disk does nothing else either. The images and the gradients are real, too.

# %%
team.push(n_batches=sizes.feed_batches, epochs=2, prefetch=prefetch)

# %%
# %%ranks
batch_rows = 64
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
share = 784 * batch_rows / compute_s  # bytes per second
slow = feeding.throttled(read, share)

# %%
compute_s, share = team.pull("compute_s")[0], team.pull("share")[0]
print(
    f"{1e3 * compute_s:.1f} ms for a batch of 64 images, on the slowest rank: as if storage gave it {share / 1e6:.1f} MB/s"
)
print(f"for comparison, four ranks on each node of Theta: {210 / 4_392 / 4 * 1e3:.1f} MB/s each")
guess_prefetch = predict(
    "Reading takes as long as computing. How many times as fast is training with `prefetch`?",
    low=0.5,
    high=4,
    unit="times",
)
guess_prefetch

# %% [markdown]
# A third way is to *preload*: read everything before the first epoch, and keep it. We split the time as the training loop sees
# it, into waiting for batches and computing on them.


# %%
# %%ranks
def epoch(batches):
    """Seconds that this rank spends on preloading (none), on waiting for batches, and on computing on them."""
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


# %%
# %%ranks --timeout 300
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
    of_ranks = np.array([of_rank[name] for of_rank in spent])  # [rank, repeat, kind]
    if of_ranks.size:
        slowest = of_ranks.sum(axis=2).argmax(axis=0)
        runs[name] = of_ranks[slowest, np.arange(of_ranks.shape[1])]
caption = (
    f"2 epochs of {sizes.feed_batches} batches of 64 images on each of {team.n} ranks, from storage that gives "
    f"{share / 1e6:.1f} MB/s per rank; median of {repeats} runs, bars from the fastest to the slowest; the slowest rank counts"
)
figures.feeding_shares(runs, caption)

# %%
in_turn = runs["read, then compute"]
read_s, compute_s = np.median(in_turn[:, 1:], axis=0) / (2 * sizes.feed_batches)
most = (read_s + compute_s) / max(read_s, compute_s)
print(f"a batch: {1e3 * read_s:.1f} ms reading, {1e3 * compute_s:.1f} ms computing: at most {most:.2f} times as fast")
if "prefetch" in runs:
    ratios = in_turn.sum(axis=1) / runs["prefetch"].sum(axis=1)
    display(guess_prefetch.compare(np.median(ratios), spread=(ratios.min(), ratios.max())))
    if np.median(ratios) < 1 + 0.5 * (most - 1):
        print(
            "Much less than that: other programs, or the ranks themselves, had the core that the reading thread needed."
        )

# %% [markdown]
# Prefetching hides the shorter of the two behind the longer, so it gains a factor of two at most, where both are equal. The first
# batch of an epoch has nothing to hide behind. If reading takes longer than computing, some waiting remains, and only fewer bytes
# or more readers help.
#
# *Preloading* pays for everything once. It needs the memory, and it fixes which rank has which samples. In this workshop every
# epoch deals out all samples again, so each rank keeps all of MNIST, 47 MB. If a data set only fits into memory when the ranks
# share it, they shuffle what they have, or swap some of it between epochs.
#
# *Beat it:* what if reading takes three times as long as computing? Try `slow = feeding.throttled(read, share / 3)` on the ranks,
# and a `prefetch` with three threads.
#
# ## What people really use
#
# PyTorch's `DataLoader` prefetches for you, with *processes* in place of your thread. `num_workers=2` starts two, and each
# prepares whole batches ahead. Why processes? Python's lock lets only one thread at a time run Python code. A thread that
# waits for a disk doesn't mind, but a thread that unpacks JPEGs in Python does.
#
# Here's a plain script that reads through a `DataLoader`, with nothing from this repository. Reading an image takes as long as
# computing on it, as above. First the read *waits*, like your thread did, and then it *works*, like a decoder does.

# %%
guess_work = predict(
    "Now reading is work. How many times as fast does it get with 2 workers?", low=0.2, high=4, unit="times"
)
guess_work

# %%
times = folder / "loader.json"
scripts.run("python", SCRIPTS / "loader.py", times, sizes.feed_batches, min(3, repeats), timeout_s=2 * sizes.timeout_s)

# %%
runs = {name: np.array(seconds) for name, seconds in json.loads(times.read_text()).items()}
figures.feeding_shares(runs, "An epoch in one process, with a DataLoader and its workers", first="until the first batch")

# %%
totals = {name: seconds.sum(axis=1) for name, seconds in runs.items()}
ratios = totals["work, 0 workers"] / totals["work, 2 workers"]
display(guess_work.compare(np.median(ratios), spread=(ratios.min(), ratios.max())))
for kind in ("waiting", "work"):
    steady = [np.median(runs[f"{kind}, {workers} workers"][:, 1]) for workers in (0, 1, 2)]
    print(
        f"{kind}: after its first batch, the training waits {', '.join(f'{s:.2f}' for s in steady)} s with 0, 1, 2 workers"
    )

# %% [markdown]
# - Workers take time to start. Every epoch pays for it again, unless you say `persistent_workers=True`.
# - Where reading means waiting, one worker hides it. Where reading is work, each worker needs a core *of its own*. If there's
#   a rank on every core already, whatever the workers gain, the ranks lose.
#   That's why a rank on a cluster gets several cores, and why
#   [10](10_compute_nodes.ipynb) insists on `--cpus-per-task`.
# - `prefetch_factor=2`, the default, means two batches per *worker*. Your one batch ahead becomes four batches with two
#   workers, so keep an eye on the memory.
#
# On a GPU, two more settings matter. A GPU can only fetch data by itself from *pinned* memory, which the operating system
# promises not to move. With `pin_memory=True` the loader puts batches there. Then `images.to("cuda", non_blocking=True)`
# returns at once, and your program can go ahead while the GPU is still busy with the batch before. Without pinned memory, your
# program waits for the copy. To copy one batch while the GPU is still computing on another, put the copy on a second CUDA
# stream. (The script sets
# `pin_memory` and `non_blocking` where there is a GPU. On a CPU they do nothing.)
#
# ## Deeper: different random numbers on every rank
#
# *Augmentation* changes samples at random, for example by shifting or mirroring images.
# The network gets more to learn from, and you don't read a single extra byte from the storage.
# Which changes are allowed depends on your data: a shifted 6 is still a 6, but a 6 upside down
# isn't.
#
# On several ranks, random numbers get dangerous. Every good script sets a seed, but what if every rank sets the same one? Then
# in each step, image *i* of every rank's batch is shifted by the same amount.
# Nothing fails, and the loss falls. You just got less variety
# than you paid for. (`DataLoader`'s workers had a famous version of this: each was a copy of the same process, with the same state
# of NumPy's generator.)
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
augmentation.generator(generator)

# %% [markdown]
# How much variety do you gain? Each rank shifts its 64 images by up to 3 pixels in each of 50 steps. First, all ranks set the
# same seed once at the start. Then they use your generator. (Until you've written it, you'll see only the first.)

# %%
team.push(generator=generator)


# %%
# %%ranks
def shift(images, rng):
    """Each image moved by -3 to 3 pixels in both directions, and by how much: ([n, 28, 28], [n, 2])."""
    moves = rng.integers(-3, 4, (len(images), 2))
    return np.stack([np.roll(image, move, axis=(0, 1)) for image, move in zip(images, moves, strict=True)]), moves


images = mnist.load("train").images[comm.rank :: comm.size][:64]
shared = np.random.default_rng(1)
drawn = {"the same seed": [shift(images, shared)[1] for _ in range(50)]}
try:
    drawn["your generator"] = [shift(images, generator(1, comm.rank, step))[1] for step in range(50)]
except NotImplementedError:
    pass
for way, moves in drawn.items():
    others = comm.allgather(np.stack(moves))
    alike = np.mean((others[0] == others[-1]).all(axis=2))
    if comm.rank == 0:
        print(
            f"{way}: rank 0 and rank {comm.size - 1} shift {alike:.0%} of their images alike (by chance: {1 / 49:.0%})"
        )

# %% [markdown]
# ## Deeper: resume exactly
#
# Your generator needs no state: seed, rank and step are enough. Do the same for the *order* of the samples, and a checkpoint
# only has to hold the step. What goes wrong otherwise? Say a job is stopped after 60 % of an epoch, and you resume it in three
# ways. How often does it see each sample in this epoch?

# %%
n, stopped = 60_000, 36_000
order = np.random.default_rng([1, 3]).permutation(n)  # seed 1, epoch 3
resumed = {
    "from the step in the checkpoint": order[stopped:],
    "a new order for the rest of the epoch": np.random.default_rng().permutation(n)[stopped:],
    "the epoch from its start": order,
}
for way, rest in resumed.items():
    seen = np.bincount(np.concatenate([order[:stopped], rest]), minlength=n)
    print(f"{way:>38}: {(seen == 0).sum():6,} never, {(seen == 1).sum():6,} once, {(seen == 2).sum():6,} twice")

# %% [markdown]
# The second way is what happens to everybody who saves the weights and nothing else. Over many epochs it averages out. But
# language models see most of their data in a single pass, and there it leaves a hole in the data. And if somebody wants to
# know *which* sample made the loss jump at step 41,307, only the first way can answer. With workers, the loader is ahead of
# the training, so save the step of the *training*. (`torchdata`'s `StatefulDataLoader` keeps such a state for you.)
#
# ## Deeper: small pieces
#
# So far each rank read one large piece. But samples should come in random order, and in a different order every epoch. Let's
# compare four ways to read the same number of images: a *block* of neighbors, in one read; *scattered rows* of the file, one
# read per row; *a file per image*, the form that many data sets come in; and
# a *tar shard*, which holds each sample as two small
# files, an image and its label. Each rank reads its own choice of images, cold.

# %%
n_pieces = sizes.feed_pieces
singles = folder / "singles"
singles.mkdir(exist_ok=True)
some = slice(n_pieces * team.n)
for number, image in enumerate(mnist.load("train").images[some]):
    image.tofile(singles / f"{number}.raw")
shards = readers.write_shards(folder, mnist.load("train").images[some], mnist.load("train").labels[some], n_pieces)
team.push(singles=singles, shards=shards, n_pieces=n_pieces, rows=rows)

# %%
# %%ranks --timeout 120
from workshop_lib.lessons.feeding_the_ranks import readers

files = [singles / f"{comm.rank * n_pieces + i}.raw" for i in range(n_pieces)]
scattered = np.random.default_rng(comm.rank).choice(rows, n_pieces, replace=False)
start, shard = 16 + 784 * n_pieces * comm.rank, shards[comm.rank]
ways = {
    "a block": ([path], lambda: feeding.read_block(path, start, 784, n_pieces)),
    "scattered rows": ([path], lambda: feeding.read_rows(path, 16, 784, scattered)),
    "a file per image": (files, lambda: feeding.read_files(files)),
    "a tar shard": ([shard], lambda: readers.read_shard(shard)),
}
pieces = {name: [] for name in ways}
for _ in range(repeats):
    for name, (needed, way) in ways.items():
        for file in needed:
            feeding.drop_cache(file)
        comm.Barrier()
        got, seconds, counts = feeding.counted(way)
        pieces[name].append((seconds, counts.storage_bytes if counts else 0, counts.asked_bytes if counts else 0))

# %%
pieces = team.pull("pieces")
lines = {}
for name in pieces[0]:
    of_ranks = np.array([of_rank[name] for of_rank in pieces])  # [rank, repeat, kind]
    slowest_ms = 1e3 * of_ranks[:, :, 0].max(axis=0)
    lines[name] = {
        "files opened": team.n * (n_pieces if name == "a file per image" else 1),
        "images, MB": round(784 * n_pieces * team.n / 1e6, 2),
        "asked for, MB": round(np.median(of_ranks[:, :, 2].sum(axis=0)) / 1e6, 2),
        "from the storage, MB": round(np.median(of_ranks[:, :, 1].sum(axis=0)) / 1e6, 2),
        "ms, slowest rank": round(np.median(slowest_ms), 1),
        "fastest to slowest round": f"{slowest_ms.min():.1f} to {slowest_ms.max():.1f}",
    }
pd.DataFrame(lines).T

# %% [markdown]
# The system fetches whole *pages*, mostly of 4,096 bytes, so a row of 784 costs one page or two.
# And each scattered read waits on its own.
#
# With a file per image, every read needs an `open` as well.
# Here that's a lookup in memory. On a parallel file system every `open` asks a *metadata
# server*, and the whole machine has only a few. With a job of a thousand ranks that opens a file per image, a single user can
# slow down everybody.
#
# That's why people pack their data sets. In **tar shards**, the format that WebDataset made popular,
# a sample's files follow one another and share
# a name: `000042.raw`, `000042.cls`. You pay for it in bytes, since tar adds a header of 512 bytes to each file and pads it to
# a multiple of 512.
# That's a lot for our 784 bytes, and nothing for a photo. In return, a shard is read from front to back, over a
# network if need be, and any tool can make one.
#
# Random order then comes in two steps. Each epoch deals out the *shards* to ranks and workers in a new order, and a buffer of a
# few thousand samples mixes neighbors. Have many more shards than ranks, or some ranks get two and the rest get one. And some
# rank always runs out of samples first. So decide whether the epoch ends there, or whether you fix the number of steps for
# every rank.
#
# ## Deeper: several readers that scatter
#
# In *rank 0 scatters* one rank reads, and in *own part* every rank does. There's a way in between: *several* ranks read, and
# each sends its neighbors their parts.
# One of the documents behind this workshop calls that the most practical in large runs [1]. With one reader
# per node, the storage serves a few readers with large pieces, and the rest of the way stays inside the node. Let's try four
# ranks with one, two and four readers:

# %%
team = ranks.start(4)
small = folder / "small.idx"
rows_small = feeding.write_idx(small, mnist.load("test").images)
parts_small = feeding.parts_of(rows_small, 784, 16, 4)
team.push(path=path, small=small, parts_small=parts_small, parts=feeding.parts_of(rows, 784, 16, 4), repeats=repeats)

# %%
# %%ranks --timeout 120
from functools import partial

from mpi4py import MPI

from workshop_lib.lessons.feeding_the_ranks import feeding, readers

comm = MPI.COMM_WORLD
ways = {f"readers: {n}": partial(readers.readers_scatter, readers=n) for n in (1, 2, 4)}
scattering = feeding.measure(comm, small, parts_small, repeats, ways)

# %%
figures.feeding_table(team.pull("scattering")[0])

# %% [markdown]
# MPI's own collective read, `Read_at_all`, may do the same without telling you. The library knows what *all* ranks want before
# anyone reads. So it can let a few of them read large pieces, and pass the rest on in messages: *two-phase I/O*. Your program
# can't tell which ranks really read, but the operating system's counts can:

# %%
# %%ranks
for name in ("own part", "MPI-IO"):
    way = feeding.WAYS[name]
    comm.Barrier()
    (mine, cost), _, counts = feeding.counted(lambda way=way: way(comm, small, parts_small))
    asked = "an unknown number of MB" if counts is None else f"{counts.asked_bytes / 1e6:.2f} MB"
    print(f"{name}: got {len(mine) / 1e6:.2f} MB, asked the operating system for {asked}")

# %% [markdown]
# In *own part* every rank asks for what it gets. If in *MPI-IO* one rank asks for everything and the other ranks for nothing, the
# library has chosen a single reader. How many readers it takes depends on the library, on the sizes, and on the number of
# ranks and nodes. You can change it with *hints* to `MPI.File.Open`.
#
# And what about the files that we cut for a different number of ranks?

# %%
# %%ranks
try:
    mine, cost = feeding.own_file(comm, path, parts)
except ValueError as error:
    print(error)

# %% [markdown]
# A file per rank needs no offsets and no library, but it ties the data to one number of ranks. The usual way out is to have
# many more files than ranks, so that each rank takes several.
#
# ## Deeper: who downloads?
#
# "If the file isn't there, download it" is fine in a script for one process. On several ranks it's a race. Each rank below
# checks whether the file is there, and if not, writes it (slowly, as a download does). The ranks start a moment apart.
# How many bytes does each of them see?

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


target = small.with_name("downloaded")
comm.Barrier()
time.sleep(0.05 * comm.rank)
if not target.exists():
    download(target)
print(f"I read {target.stat().st_size:,} bytes of 1,000,000")

# %% [markdown]
# A rank that finds the file takes what's there, and half a file may well look like a whole one. The scripts that this workshop
# grew out of gave each rank its own folder. That works, but it downloads everything $p$ times. The fix has two parts. One
# rank downloads, and all other ranks wait until it's done. And that rank writes under a temporary name first, so the file
# appears whole or not at all, even if the download is cut off:

# %%
# %%ranks
target = small.with_name("downloaded once")
if comm.rank == 0 and not target.exists():
    download(target.with_suffix(".part"))
    os.replace(target.with_suffix(".part"), target)
comm.Barrier()
print(f"I read {target.stat().st_size:,} bytes of 1,000,000")

# %% [markdown]
# If rank 0 hangs or fails here, the other ranks wait at the barrier forever. So give the download a time limit, and let rank 0
# reach the barrier even if it fails. And where each node has its own disk, one rank *per node* has to copy, the one with local
# rank 0.
#
# ## Deeper: tf.data
#
# In TensorFlow you describe the pipeline as a chain of steps, and TensorFlow runs it in its own threads, outside Python's
# lock. These are the steps that matter:
# `map` does something to each element, and with `num_parallel_calls` to several at once; `interleave` reads from several
# files at once; `prefetch` is what you wrote. In the script, reading a batch takes as long as using it, and both are emulated
# by waiting.

# %%
guess_tf = predict("With `prefetch`, how many times as fast as with `map` alone?", low=0.5, high=4, unit="times")
guess_tf

# %%
times_tf = folder / "loader_tf.json"
try:
    words = ["python", SCRIPTS / "loader_tf.py", times_tf, sizes.feed_batches, min(3, repeats)]
    scripts.run(*words, only="Error", timeout_s=2 * sizes.timeout_s)
    runs = {name: np.array(seconds) for name, seconds in json.loads(times_tf.read_text()).items()}
    ratio = np.median(runs["map"].sum(axis=1)) / np.median(runs["map, prefetch"].sum(axis=1))
    display(figures.feeding_shares(runs, "An epoch with tf.data", first="until the first batch"), guess_tf.compare(ratio))
except ranks.RankError as error:
    print(error, "Is TensorFlow installed? Everything else here works without it.")

# %% [markdown]
# Today TensorFlow adds a `prefetch` by itself where you leave it out, so the script switches that off to show the difference. On
# several ranks, `dataset.shard(size, rank)` comes *first* in the chain: before `shuffle`, and before anything that reads. If
# it comes at the end of the chain, every rank reads everything, and throws most of it away.
#
# ## Deeper: on a cluster
#
# Here's what the documents behind this workshop advise, and what the machines' own guides add:
#
# | advice | why |
# |---|---|
# | read in parallel: each rank from its own files, or with MPI-IO, or several ranks that read and scatter | a single reader has only its own link; [1] calls the last of the three the most practical at scale |
# | stripe large files that many ranks read: `lfs setstripe -c 8 FOLDER` *before* the file is written there | unless you tell it otherwise, Lustre keeps a file on a single storage target, and a file is no faster than its targets [1, 2] |
# | don't stripe small files | more servers to ask for the same few bytes [2] |
# | or let the file decide, with a *progressive layout*: `lfs setstripe -E 4M -c 1 -E 1G -c 4 -E -1 -c 16 FOLDER` | the first 4 MiB lie on one target, what follows up to 1 GiB on four, the rest on 16. Some machines do this for all files and ask you not to stripe by hand [10] |
# | a few large files instead of a file per sample | each `open` asks a metadata server, and too many of them slow it down for everybody; Perlmutter has 16 such servers, and 274 for the data [3] |
# | copy the data to the SSD in the node at the start of a job, and read it from there | each node adds its own speed: on Summit 26.7 TB/s together, against 2.5 TB/s from the file system [4]; Theta had 128 GB in each node [5], Polaris has `/local/scratch` [6] |
# | a *burst buffer*, fast storage between the nodes and the disks, where there is one | on Cori each of its servers gave about 6.5 GB/s, so spread your files over many; pieces below 512 KiB were slow [7] |
# | on Aurora, DAOS: an object store without spinning disks, which also looks like a folder (`dfuse`) | opening and naming files through the folder is the slow part; a library in `LD_PRELOAD` lets reads and writes bypass it [11] |
# | preload what fits into memory; prefetch what doesn't, with several threads | the input then costs nothing, as long as reading takes less time than computing [1, 8] |
# | give the readers cores: bind a rank to more than one | helpers that share a core with the computing don't help [9] |
#
# Copying the data to the nodes is called *staging*, and it's *own part* once more: one node reads each byte from the file
# system once, and the faster network takes it wherever else it's needed.
#
# ## Remember
#
# - Input is the third bottleneck. Samples per second times bytes per sample is what a rank needs. Compare it with its *share* of
#   the storage.
# - Count bytes, asked for and fetched. Seconds alone mislead, because a second read comes from memory.
# - Share out rows first, then turn them into bytes.
# - Prefetching turns $r + c$ into $\max(r, c)$. Workers that *work* need cores of their own.
# - Random numbers drawn from seed, rank and step are different everywhere, and the same after a restart.
# - Every small file costs an `open`. Pack small files into shards, and have many more shards than ranks.
#
# **Sources**, looked up by 2026-11-23. [1] ALCF, *Computational Performance Workshop* 2022, Scaling deep learning, best
# practices (github.com/argonne-lcf/CompPerfWorkshop, 05_scaling-DL). [2] *Lustre Striping Best Practices* (wiki.lustre.org).
# [3] NHR@ZIB, file systems of HLRN (user.nhr.zib.de); NERSC, *Perlmutter Scratch* (docs.nersc.gov). [4] S. Oral et al.,
# *End-to-end I/O Portfolio for the Summit Supercomputing Ecosystem* (SC 2019). [5] V. Vishwanath, *Deep Learning at Scale*
# (ALCF, 2018), also for the speeds and nodes of Theta and Summit. [6] *ALCF File Systems* (docs.alcf.anl.gov). [7] NERSC,
# *Burst Buffer*, on Cori (nersc.gitlab.io). [8] S. Chien et al., *Characterizing Deep-Learning I/O Workloads in TensorFlow*
# (arXiv:1810.03035): more threads gave up to 7.8 times the bandwidth, and prefetching
# hid the input completely. [9] ALCF, *PyTorch
# on Polaris* (docs.alcf.anl.gov). [10] The manual of `lfs setstripe` (Lustre); Pawsey, on Setonix's `/scratch`. [11] *DAOS, File
# System* (docs.daos.io). Two-phase I/O: R. Thakur, W. Gropp and E. Lusk, *Data Sieving and Collective I/O in ROMIO*
# (Frontiers 1999). The page cache and its counts: the Linux manual, posix_fadvise(2) and proc_pid_io(5). Loaders: the pages on
# `torch.utils.data`, `tf.data` and WebDataset.

# %%
ranks.stop()
shutil.rmtree(folder)
