# %% [markdown]
# # DeepSpeed, ZeRO and FSDP: when the model no longer fits
#
# **You will** count what a parameter costs in training, write the first two stages of ZeRO yourself, turn a DDP script into a
# DeepSpeed script, measure what each stage saves and sends, try what else makes room, and decide when to use which.
#
# **Time** about 60 minutes. **Needs** two cores and DeepSpeed, which `make setup` installs; no GPU, no network. Notebooks
# [02](02_synchronous_sgd.ipynb) and [05](05_ddp.ipynb) first.

# %%
import difflib
import time

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown, display
from torch.nn.functional import cross_entropy, pad
from torch.utils.checkpoint import checkpoint_sequential

from workshop_lib import ranks
from workshop_lib.comm import ring
from workshop_lib.data import mnist
from workshop_lib.exercises import zero as check
from workshop_lib.models import torch_cnn
from workshop_lib.notebook import figures, profile
from workshop_lib.notebook.calculators import calculator
from workshop_lib.notebook.figures.forecasts import MEMORY_LOOKS
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD
from workshop_lib.ranks import scripts
from workshop_lib.scaling.zero_memory import state_bytes
from workshop_lib.training import backends
from workshop_lib.training.options import TrainOptions

backends.require("deepspeed")
torch.set_num_threads(1)
sizes = profile.current()
folder = BUILD / "06_deepspeed_zero"
folder.mkdir(parents=True, exist_ok=True)
MIB = 2**20

# %% [markdown]
# ## What a parameter costs
#
# The workshop's network is too small for memory to matter, so here is a larger one. It has 12 outputs for the ten digits,
# two of which never occur: 12 divides by 2 and by 4.


# %%
def perceptron(width=1024, hidden=3):
    """784 inputs, hidden layers of this width, 12 outputs; the same weights wherever it is built."""
    torch.manual_seed(1)
    layers = [torch.nn.Flatten(), torch.nn.Linear(784, width), torch.nn.ReLU()]
    for _ in range(hidden - 1):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 12))


model = perceptron()
parameters = sum(p.numel() for p in model.parameters())
print(f"{parameters:,} parameters")

# %%
guess = predict(
    "Adam, all numbers of 4 bytes: how many bytes does a parameter cost in training?", low=0, high=40, unit="B"
)
guess

# %% [markdown]
# We take one step, and add up the bytes of the tensors that are there between backward and the next one.

# %%
split = mnist.load("train")
images = torch_cnn.normalise(torch.tensor(split.images[:1024]))
labels = torch.tensor(split.labels[:1024]).long()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
cross_entropy(model(images[:64]), labels[:64]).backward()
optimizer.step()

held = {
    "weights": sum(p.nbytes for p in model.parameters()),
    "gradients": sum(p.grad.nbytes for p in model.parameters()),
    "Adam's state": sum(t.nbytes for state in optimizer.state.values() for t in state.values()),
}
for name, size in held.items():
    print(f"{name:>12}: {size / MIB:5.1f} MiB, {size / parameters:.2f} bytes a parameter")
guess.compare(sum(held.values()) / parameters)

# %% [markdown]
# Adam keeps two numbers for each weight, a mean of its gradients and one of their squares; this is the *optimizer's state*.
#
# Large networks are trained in *mixed precision*: weights and gradients in a 16-bit format, 2 + 2 bytes; but the optimizer
# steps on a copy of the weights in fp32, the *master weights*, since a small step would be lost in 16 bits. Master
# weights and Adam's state make 12 bytes. So again 16 bytes, now three quarters of them in the optimizer. How many parameters
# fit into a GPU, before a single activation is stored?

# %%
for gib in (16, 40, 80):
    print(f"{gib} GB: {gib * 2**30 / 16 / 1e9:.1f} billion parameters")

# %% [markdown]
# More GPUs do not help with DDP: each holds the same 16 bytes. All these copies are equal, so why keep them all? *ZeRO*, the
# zero redundancy optimizer, keeps data parallelism, each rank with its own samples, and *shards* what is
# redundant: a rank holds a share, and the ranks send one another what they need when they need it.
#
# | stage | sharded | bytes a parameter, mixed precision, $p$ ranks |
# |---|---|---|
# | 0 | nothing (DDP) | $2 + 2 + 12$ |
# | 1 | optimizer's state | $2 + 2 + 12/p$ |
# | 2 | and gradients | $2 + (2 + 12)/p$ |
# | 3 | and weights | $(2 + 2 + 12)/p$ |
#
# ## The smallest form
#
# PyTorch has stage 1 as an optimizer, to be used with DDP: `ZeroRedundancyOptimizer`. Each rank steps on some of the
# parameters, and sends them to the others.

# %%
team = ranks.start(sizes.ranks)
team.push(perceptron=perceptron, MIB=MIB)

# %%
# %%ranks
import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel

from workshop_lib.comm import ring
from workshop_lib.comm.counting import CountingComm
from workshop_lib.data import mnist
from workshop_lib.models import torch_cnn
from workshop_lib.training import rendezvous, world

torch.set_num_threads(1)
rendezvous.join_process_group(world.detect(), torch.device("cpu"))
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
split = mnist.load("train")


def batch(step, of_ranks=size, mine=rank, per_rank=64):
    """Images and labels of this rank in this step; with of_ranks=1 and mine=0 those of the global batch."""
    together = slice(step * per_rank * size, (step + 1) * per_rank * size)
    images = torch_cnn.normalise(torch.tensor(split.images[together]))[mine::of_ranks]
    return images, torch.tensor(split.labels[together]).long()[mine::of_ranks]


def adam(parameters):
    return torch.optim.Adam(list(parameters), lr=1e-3)


def state_of(optimizer):
    """Bytes of the tensors that an optimizer remembers."""
    return sum(t.nbytes for state in optimizer.state.values() for t in state.values())


model = DistributedDataParallel(perceptron())
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
images, labels = batch(0)
cross_entropy(model(images), labels).backward()
optimizer.step()
print(f"{state_of(optimizer.optim) / MIB:.1f} MiB of Adam's state")

# %% [markdown]
# Together they hold what one process holds above. The shares differ, since this optimizer deals out whole tensors. From
# here on we cut inside tensors: all shares are equal then.
#
# ## Two halves of an allreduce
#
# What has to be sent? A rank that steps on its share needs the mean gradient of that share, no more. A *reduce-scatter* gives it
# that: every rank puts in a whole array, and gets its own part of the sum. Afterwards every rank needs all weights: an
# *allgather*, in which every rank puts in its part and gets all parts. A ring allreduce consists of just these two
# (`01`), so stage 1 merely puts the step between the halves. Watch the bytes, on a communicator that counts:

# %%
# %%ranks
ones = np.full(1_000_000, 1.0 + rank, dtype=np.float32)
counting = CountingComm(comm)
part = ring.reduce_scatter(counting, ones)
after_first = counting.bytes_sent
ones[ring.part(len(ones), rank, size)] = part
ring.allgather(counting, ones)
if rank == 0:
    print(f"reduce-scatter: a part of {len(part):,} elements, {after_first / ones.nbytes:.2f} n bytes sent")
    print(f"allgather:      all {len(ones):,} elements, {(counting.bytes_sent - after_first) / ones.nbytes:.2f} n bytes sent")
    print(f"every element is now {set(ones.tolist())}, the sum of 1 to {size}")

# %% [markdown]
# Each half sends $(p-1)/p \cdot n$ bytes a rank, where $n$ is the size of the whole array.
#
# ## Exercise 1: stage 1
#
# `__init__` is there: it lays all weights out in one flat array, padded with zeros until it divides by the number of ranks.
# The parameters of the model become *views* of it, so whoever writes into `self.weights` changes the model.
# `self.share` is a view too, of the part that this rank steps on, and the optimizer knows nothing else.
#
# Write `step`, which is called after backward. It must leave the weights that one process would get with the global batch.
#
# - `ring.reduce_scatter(comm, array)` returns this rank's part of the sum, `ring.allgather(comm, array)` fills `array` in place;
# - both take NumPy arrays: `tensor.numpy()` is the array that shares its memory with the tensor, `torch.from_numpy(array)`
#   the tensor that shares it with the array.


# %%
class Zero1:
    """Each rank keeps the optimizer's state of one share of the weights, and updates that share."""

    def __init__(self, model, comm, make_optimizer):
        self.comm, self.parameters = comm, list(model.parameters())
        flat = torch.cat([p.detach().flatten() for p in self.parameters])
        count = len(flat)
        self.weights = pad(flat, (0, -count % comm.size))
        pieces = self.weights[:count].split([p.numel() for p in self.parameters])
        for p, piece in zip(self.parameters, pieces, strict=True):
            p.data = piece.view_as(p)
        mine = ring.part(len(self.weights), comm.rank, comm.size)
        self.share = torch.nn.Parameter(self.weights[mine])
        self.optimizer = make_optimizer([self.share])

    def flat_gradient(self):
        """All gradients of this rank, laid out as the weights are."""
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        return pad(flat, (0, -len(flat) % self.comm.size))

    def step(self):
        # <solution>
        total = ring.reduce_scatter(self.comm, self.flat_gradient().numpy())
        self.share.grad = torch.from_numpy(total / self.comm.size)
        self.optimizer.step()
        ring.allgather(self.comm, self.weights.numpy())
        # <stub>
        # # 1. the mean gradient of my share, into self.share.grad   2. the optimizer's step   3. everybody's weights
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>


# %%
check.Zero1(Zero1)

# %% [markdown]
# Now the large network, and a real comparison: rank 0 also trains alone, with the global batch.

# %%
team.push(Zero1=Zero1)

# %%
# %%ranks
import hashlib


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def train(make, steps=3):
    """Train the perceptron with what `make(model, comm, adam)` returns; the model, and what was made."""
    model = perceptron()
    zero = make(model, CountingComm(comm), adam)
    for step in range(steps):
        images, labels = batch(step)
        model.zero_grad()
        cross_entropy(model(images), labels).backward()
        zero.step()
    return model, zero


def report(make, steps=3):
    """Train with `make`, and say what it cost; a class that is not written yet says so."""
    try:
        model, zero = train(make, steps)
    except NotImplementedError:
        return print(f"{make.__name__} is not written yet")
    digest = hashlib.sha256(weights_of(model).numpy().tobytes()).hexdigest()[:12]
    n = weights_of(model).nbytes
    print(
        f"digest of the weights {digest}, {state_of(zero.optimizer) / MIB:.1f} MiB of Adam's state, "
        f"{zero.comm.bytes_sent / steps / n:.2f} n bytes sent a step"
    )
    if rank == 0:
        print(f"largest difference to one process: {(weights_of(model) - alone).abs().max():.1e}")


if rank == 0:
    model = perceptron()
    optimizer = adam(model.parameters())
    for step in range(3):
        images, labels = batch(step, of_ranks=1, mine=0)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    alone = weights_of(model)
report(Zero1)

# %% [markdown]
# The state is halved on two ranks, the messages cost what an allreduce costs, and the weights are the same but for rounding. Adam
# works on each weight by itself, so it does not matter that it sees only a share. (What looks at all weights together,
# such as clipping the norm of the gradient, needs one more allreduce, of a single number.)
#
# *Try it:* `train` with SGD instead of Adam: `state_of` then says 0. What does stage 1 save?
#
# ## Exercise 2: stage 2
#
# In stage 1 every rank has all gradients when backward ends, though it needs only its share. Stage 2 reduces each gradient *as
# soon as backward has finished it*, keeps its share and drops the rest. Autograd calls a function for this, a *hook*,
# as in DDP.
#
# For that each parameter gets a flat array of its own, `self.weights[p]`, and in it a share, `self.shares[p]`. Write
# `reduce`, which autograd calls with each parameter `p` once `p.grad` is complete. Afterwards the share's `.grad` must be the
# mean over ranks, and the memory of `p.grad` free. (A real implementation joins small parameters in buckets, as DDP does.)


# %%
class Zero2:
    """Gradients are reduced during backward, and each rank keeps those of its shares alone."""

    def __init__(self, model, comm, make_optimizer):
        self.comm, self.weights, self.shares = comm, {}, {}
        for p in model.parameters():
            flat = pad(p.detach().flatten(), (0, -p.numel() % comm.size))
            p.data = flat[: p.numel()].view_as(p)
            self.weights[p] = flat
            self.shares[p] = torch.nn.Parameter(flat[ring.part(len(flat), comm.rank, comm.size)])
            p.register_post_accumulate_grad_hook(self.reduce)
        self.optimizer = make_optimizer(self.shares.values())

    def reduce(self, p):
        flat = pad(p.grad.flatten(), (0, -p.numel() % self.comm.size))
        # <solution>
        total = ring.reduce_scatter(self.comm, flat.numpy())
        self.shares[p].grad = torch.from_numpy(total / self.comm.size)
        p.grad = None
        # <stub>
        # # 1. the mean gradient of my share, into self.shares[p].grad   2. what is p.grad still needed for?
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>

    def step(self):
        self.optimizer.step()
        for flat in self.weights.values():
            ring.allgather(self.comm, flat.numpy())


# %%
check.Zero2(Zero2)

# %%
team.push(Zero2=Zero2)

# %%
# %%ranks
report(Zero2)

# %% [markdown]
# The same bytes as before: stage 2 saves memory, and costs no extra message volume. Like DDP's buckets, the reduce-scatters could
# overlap with backward; here they do not, `Sendrecv` waits. All ranks must get their gradients in the same order, or they
# wait for one another for ever.
#
# ## What stage 3 adds
#
# Stages 1 and 2 still keep all weights on every rank. Stage 3 keeps a share, and gathers a layer's weights when the layer
# computes: once in forward, and, since they are dropped in between, once more in backward. How many bytes is that?

# %%
guess = predict("Bytes that stage 3 sends a step, as a multiple of stage 2?", low=1, high=3)
guess

# %% [markdown]
# Here is all of it; a layer is anything that has parameters of its own. To drop an array, it shrinks the array's *storage*,
# the memory behind it, to nothing: whatever views of it autograd keeps for backward stay valid, and find the weights again when
# the storage has been filled anew.

# %%
# %%ranks


class Zero3:
    """Weights are there only while their layer computes; each rank keeps shares."""

    def __init__(self, model, comm, make_optimizer):
        self.comm, self.weights, self.shares = comm, {}, {}
        for p in model.parameters():
            flat = pad(p.detach().flatten(), (0, -p.numel() % comm.size))
            p.data = flat[: p.numel()].view_as(p)
            self.weights[p], mine = flat, ring.part(len(flat), comm.rank, comm.size)
            self.shares[p] = torch.nn.Parameter(flat[mine].clone())  # a copy: `flat` will go
            p.register_post_accumulate_grad_hook(self.reduce)
            self.drop(p)
        for layer in (layer for layer in model.modules() if list(layer.parameters(recurse=False))):
            layer.register_forward_pre_hook(lambda layer, _: self.gather(layer))
            layer.register_forward_hook(self.leave)
        self.optimizer = make_optimizer(self.shares.values())

    def gather(self, layer):
        for p in layer.parameters():
            flat = self.weights[p]
            whole = np.empty(len(flat), np.float32)
            whole[ring.part(len(flat), self.comm.rank, self.comm.size)] = self.shares[p].detach()
            ring.allgather(self.comm, whole)
            flat.untyped_storage().resize_(flat.nbytes)
            flat.copy_(torch.from_numpy(whole))

    def leave(self, layer, inputs, outputs):
        for p in layer.parameters():
            self.drop(p)
        outputs.register_hook(lambda _: self.gather(layer))  # called when backward comes to this layer

    def drop(self, p):
        self.weights[p].untyped_storage().resize_(0)

    def reduce(self, p):
        flat = pad(p.grad.flatten(), (0, -p.numel() % self.comm.size))
        total = ring.reduce_scatter(self.comm, flat.numpy())
        self.shares[p].grad = torch.from_numpy(total / self.comm.size)
        p.grad = None
        self.drop(p)

    def step(self):
        self.optimizer.step()


model, zero = train(Zero3)
volume = zero.comm.bytes_sent / 3 / (4 * sum(p.numel() for p in model.parameters()))
left = sum(flat.untyped_storage().nbytes() for flat in zero.weights.values())
shares = sum(share.nbytes for share in zero.shares.values())
print(f"{volume:.2f} n bytes sent a step; between steps {left} bytes of whole weights, {shares / MIB:.1f} MiB of shares")
for layer in model:
    zero.gather(layer)
if rank == 0:
    print(f"largest difference to one process: {(weights_of(model) - alone).abs().max():.1e}")

# %%
p = sizes.ranks
guess.compare(team.pull("volume")[0] / (2 * (p - 1) / p))

# %% [markdown]
# Stages 1 and 2: one reduce-scatter and one allgather. Stage 3: one reduce-scatter and two allgathers, half as much again. That
# is the price for weights that take $1/p$ of the memory.
#
# ## DeepSpeed
#
# *DeepSpeed* is the library of those who proposed ZeRO. It wraps model and optimizer in an *engine*, and what the
# engine does is told by a *configuration*, a dictionary or a JSON file:
#
# | key | what it says |
# |---|---|
# | `train_micro_batch_size_per_gpu` | samples of one backward on one rank |
# | `gradient_accumulation_steps` | backwards before a step, 1 by default. The product of both and the number of ranks is the global batch |
# | `zero_optimization: stage` | 0 to 3 |
# | `zero_optimization: offload_optimizer` | where the optimizer's state lives: on the device, or `{"device": "cpu"}` |
# | `zero_allow_untested_optimizer` | take an optimizer of PyTorch's. DeepSpeed's own are faster on GPUs, but have to be compiled |
# | `bf16: enabled`, `fp16: enabled` | mixed precision, with master weights in fp32 |
# | `gradient_clipping` | largest norm of the gradient, over all shares. It is 1.0 if you say nothing, and the training not that of DDP; 0 turns it off |
# | `steps_per_print` | how often it reports; `None`: never |
#
# What does a DDP script need to become a DeepSpeed script? First the script of `05`:

# %%
# %%writefile {folder}/ddp.py
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from workshop_lib.data import mnist
from workshop_lib.models import torch_cnn


def dataset(name, samples):
    split = mnist.load(name)
    images = torch_cnn.normalise(torch.tensor(split.images[:samples]))
    return TensorDataset(images, torch.tensor(split.labels[:samples]).long())


def main(samples, epochs, device, batch_size=128):
    torch.manual_seed(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    train, test = dataset("train", samples), dataset("test", 10_000)
    sampler = DistributedSampler(train, seed=1)
    loader = DataLoader(train, batch_size // size, sampler=sampler)
    my_test = Subset(test, range(rank, len(test), size))
    model = torch_cnn.build(seed=1).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()
        seconds = time.perf_counter() - start

        correct = seen = 0
        with torch.no_grad():
            for images, labels in DataLoader(my_test, 500):
                logits = model.module(images.to(device))
                correct += (logits.argmax(dim=1).cpu() == labels).sum().item()
                seen += len(labels)
        counts = torch.tensor([correct, seen], device=device)
        dist.all_reduce(counts)
        correct, seen = counts.tolist()
        if rank == 0:
            print(f"epoch {epoch + 1}: {seconds:.2f} s, {correct} of {seen} test images right")
    if rank == 0:
        torch.save(model.module.state_dict(), Path(__file__).with_suffix(".pt"))
    dist.barrier()


if __name__ == "__main__":
    device = torch.device("cpu")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    main(int(sys.argv[1]), int(sys.argv[2]), device)
    dist.destroy_process_group()

# %% [markdown]
# The usual line for joining is `deepspeed.init_distributed()`. On a CPU it would start a C++ compiler, for a minute and a half;
# `start` of the workshop's library calls it without that.

# %%
# %%writefile {folder}/zero.py
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from workshop_lib.data import mnist
from workshop_lib.models import torch_cnn
from workshop_lib.training import world
from workshop_lib.training.backends import deepspeed as ours
from workshop_lib.training.backends.deepspeed import deepspeed


def dataset(name, samples):
    split = mnist.load(name)
    images = torch_cnn.normalise(torch.tensor(split.images[:samples]))
    return TensorDataset(images, torch.tensor(split.labels[:samples]).long())


def main(samples, epochs, device, batch_size=128):
    torch.manual_seed(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    train, test = dataset("train", samples), dataset("test", 10_000)
    sampler = DistributedSampler(train, seed=1)
    loader = DataLoader(train, batch_size // size, sampler=sampler)
    my_test = Subset(test, range(rank, len(test), size))
    model = torch_cnn.build(seed=1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    config = {
        "train_micro_batch_size_per_gpu": batch_size // size,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "steps_per_print": None,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        for images, labels in loader:
            engine.backward(cross_entropy(engine(images.to(device)), labels.to(device)))
            engine.step()
        seconds = time.perf_counter() - start

        correct = seen = 0
        with torch.no_grad():
            for images, labels in DataLoader(my_test, 500):
                logits = engine(images.to(device))
                correct += (logits.argmax(dim=1).cpu() == labels).sum().item()
                seen += len(labels)
        counts = torch.tensor([correct, seen], device=device)
        dist.all_reduce(counts)
        correct, seen = counts.tolist()
        if rank == 0:
            print(f"epoch {epoch + 1}: {seconds:.2f} s, {correct} of {seen} test images right")
    engine.save_checkpoint(Path(__file__).with_suffix(""), tag="last")


if __name__ == "__main__":
    device = torch.device("cpu")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    ours.start(world.detect(), device)
    main(int(sys.argv[1]), int(sys.argv[2]), device)
    dist.destroy_process_group()

# %%
texts = [(folder / name).read_text().splitlines() for name in ("ddp.py", "zero.py")]
lines = list(difflib.unified_diff(*texts, "ddp.py", "zero.py", lineterm="", n=0))
Markdown("\n".join(["```diff", *(line for line in lines if not line.startswith("@@")), "```"]))

# %% [markdown]
# | change | why |
# |---|---|
# | `ours.start` | the ranks find each other, and DeepSpeed uses the same process group |
# | `config` | the stage, and what each rank's micro-batch is |
# | `deepspeed.initialize` | in place of the DDP wrapper. It broadcasts rank 0's weights, and takes the optimizer over |
# | `engine(…)`, `engine.backward`, `engine.step` | the engine must see backward and step, since it communicates in both. `step` also empties the gradients |
# | `engine(…)` in the test | in stage 3 no rank has the weights: every forward gathers them, so all ranks must run equally many |
# | `save_checkpoint` | *all* ranks call it, and each writes its share of the optimizer's state. Called on rank 0 alone it waits for ever |
#
# `DistributedSampler` stays: ZeRO is data parallelism, and each rank needs samples of its own.

# %%
launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", sizes.ranks]
scripts.run(*launch, folder / "zero.py", sizes.sweep_samples or 60_000, 1, timeout_s=sizes.timeout_s)
for file in sorted((folder / "zero").rglob("*.pt")):
    print(f"{file.stat().st_size / MIB:6.3f} MiB  {file.relative_to(folder)}")

# %% [markdown]
# ## Stages 0 to 3, measured
#
# Back to the large network, on this notebook's ranks, with `ours.config(batch_size, stage)`, which is the dictionary of the
# script.

# %%
guess = predict(
    f"DeepSpeed, fp32, {sizes.ranks} ranks: bytes a parameter on each rank in stage 3?", low=0, high=20, unit="B"
)
guess

# %%
team.push(steps=5 if sizes.name == "quick" else 15, parameters=parameters)

# %%
# %%ranks --timeout 120
import ctypes
import gc
import os
import statistics
from time import perf_counter

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # in this notebook everything stays there, also beside a GPU

from workshop_lib.training import memory
from workshop_lib.training.backends import deepspeed as ours
from workshop_lib.training.backends.deepspeed import deepspeed

cpu = torch.device("cpu")
ours.start(world.detect(), cpu)


# Linux: memory of large arrays shall go back to the system as soon as they are freed (M_MMAP_THRESHOLD is -3).
libc = ctypes.CDLL(None)
getattr(libc, "mallopt", max)(-3, 2**16)


def with_peak(train, *arguments):
    """What `train` returns, and the most by which it makes the memory of this process grow, in bytes."""
    gc.collect()
    getattr(libc, "malloc_trim", int)(0)  # what has been freed before shall not be used again unseen
    memory.reset_peak(cpu)
    before = memory.peak_bytes(cpu)
    return train(*arguments) | {"peak": memory.peak_bytes(cpu) - before}


def measure(forward, backward, step, live, steps=steps):
    """Train some steps: bytes held between backward and step (`live`), median time of a step, last loss."""
    seconds = []
    for number in range(steps):
        images, labels = batch(number)
        comm.Barrier()
        start = perf_counter()
        loss = cross_entropy(forward(images), labels)
        backward(loss)
        if number == 1:  # from the second step on, the optimizer has its state
            held = live()
        step()
        seconds.append(perf_counter() - start)
    return held | {"ms": 1000 * statistics.median(seconds[1:]), "loss": loss.item()}


def with_deepspeed(config, cast=torch.Tensor.float, steps=steps):
    """Train the perceptron under this configuration; what `measure` found."""
    config["zero_optimization"] |= small
    model = perceptron()
    engine, *_ = deepspeed.initialize(model=model, optimizer=adam(model.parameters()), config=config)
    try:
        return measure(
            lambda images: engine(cast(images)).float(),
            engine.backward,
            engine.step,
            lambda: memory.live_bytes(engine.module, engine.optimizer),
            steps,
        )
    finally:
        engine.destroy()


# What DeepSpeed joins in one message, and gathers ahead or keeps gathered in stage 3, in elements. The defaults are
# made for billions of parameters: with them, all of this network would stay gathered.
small = dict.fromkeys(("reduce_bucket_size", "allgather_bucket_size"), 1_200_000)
small |= {f"stage3_{name}": 0 for name in ("max_live_parameters", "max_reuse_distance", "prefetch_bucket_size")}
small["stage3_param_persistence_threshold"] = 0

for stage in (1, 3):  # what is loaded once belongs to no stage
    with_deepspeed(ours.config(64, stage), steps=2)
by_stage = [with_peak(with_deepspeed, ours.config(64, stage)) for stage in range(4)]

# %%
measured = team.pull("by_stage")[0]
KINDS = ["parameters", "gradients", "optimizer"]


def table(rows):
    """Rank 0's measurements, by name: MiB of each kind, their sum, bytes a parameter, peak, and time."""
    frame = pd.DataFrame(rows).T
    sums = frame[KINDS].sum(axis=1)
    shown = (frame[KINDS] / MIB).assign(sum=sums / MIB)
    shown["bytes a parameter"] = sums / parameters
    if "peak" in frame:
        shown["peak"] = frame["peak"] / MIB
    shown["ms a step"] = frame["ms"]
    return shown.style.format("{:.1f}").set_caption("MiB on rank 0, but for the columns named otherwise")


guess.compare(sum(measured[3][kind] for kind in KINDS) / parameters)

# %%
print("loss of the last step:", ", ".join(f"stage {stage} {row['loss']:.4f}" for stage, row in enumerate(measured)))
table({f"stage {stage}": row for stage, row in enumerate(measured)})

# %% [markdown]
# Parameters, gradients and optimizer are the tensors that are alive
# between backward and step, without buffers for messages. The peak is how much the memory of the process grew at most, roughly: with
# activations, buffers, and copies that are there only while the engine is made; these weigh more in a network as small
# as this one. For the same reason the cell above turns down some buffers. Beside the formula:

# %%
# Stage 0 steps on the weights themselves; from stage 1 on there are master weights too, 4 bytes more.
formula = [
    state_bytes(
        parameters,
        sizes.ranks,
        stage,
        parameter_bytes=4,
        gradient_bytes=4,
        optimizer_bytes=8 if stage == 0 else 12,
    )
    for stage in range(4)
]
figure = figures.RecordFigure(figsize=(12, 5.6), facecolor="white")
axes = figure.add_axes((0.08, 0.2, 0.9, 0.7))
for stage in range(4):
    for offset, name, states in ((-0.2, "measured", measured[stage]), (0.2, "formula", formula[stage])):
        bottom = 0
        for kind in KINDS:
            colour, hatch = MEMORY_LOOKS[kind]
            height, faint = states[kind] / MIB, name == "formula"
            axes.bar(
                stage + offset, height, 0.36, bottom, color=colour, hatch=hatch, edgecolor="white", linewidth=0,
                alpha=0.45 if faint else 1,
            )  # fmt: skip
            bottom += height
        axes.text(stage + offset, bottom + 0.6, f"{name}\n{bottom:.1f}", ha="center", fontsize=figures.FONT_SIZE - 1)
axes.set_xticks(range(4), [f"stage {stage}" for stage in range(4)], fontsize=figures.FONT_SIZE)
axes.set_ylabel("MiB on rank 0", fontsize=figures.FONT_SIZE)
axes.set_ylim(0, 1.2 * max(sum(states.values()) for states in formula) / MIB)
axes.tick_params(labelsize=figures.FONT_SIZE)
axes.spines[["top", "right"]].set_visible(False)
figure.text(0.08, 0.94, f"{parameters:,} parameters, Adam, fp32, {sizes.ranks} ranks", fontsize=figures.FONT_SIZE + 2)
handles = figures.patches({kind: MEMORY_LOOKS[kind] for kind in KINDS})
figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=figures.FONT_SIZE)
figure

# %% [markdown]
# - From stage 1 on DeepSpeed keeps *master weights* also in fp32, a second copy of this rank's share: 12 bytes a parameter in the
#   optimizer, not 8. In bf16 they are needed; in fp32 they are the price of one code for both.
# - The gradients of stages 1 and 2 are alike, and neither is as the formula says. Without accumulation DeepSpeed drops what
#   the rank does not own in stage 1 too, before the step. In both, the gradient of a parameter that lies across the border
#   of two shares is kept whole.
# - Stage 3 holds a share of everything, but gathers each layer twice a step.
# - The four losses are the same: the stages differ in who holds and sends what, not in what is computed.
#
# *Try it:* `ranks.start(4)` at the top. Which bars shrink, and which do not?
#
# ## Exercise 3 (optional): the formula
#
# Write it yourself: bytes on each rank for Adam in fp32, *without* a second copy of the weights, so 4, 4 and 8 bytes
# a parameter. `stage` is 0 to 3.


# %%
def bytes_per_rank(parameters, ranks, stage):
    # <solution>
    return {
        "parameters": 4 * parameters / (ranks if stage >= 3 else 1),
        "gradients": 4 * parameters / (ranks if stage >= 2 else 1),
        "optimizer": 8 * parameters / (ranks if stage >= 1 else 1),
    }
    # <stub>
    # # {"parameters": …, "gradients": …, "optimizer": …}: which of them are divided by `ranks`, at which stage?
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.bytes_per_rank(bytes_per_rank)

# %% [markdown]
# Against the tensors of your own classes, which have no second copy:

# %%
team.push(bytes_per_rank=bytes_per_rank)

# %%
# %%ranks
if rank == 0:
    try:
        told = bytes_per_rank(parameters, size, 3)["optimizer"]
        print(f"optimizer, stage 3: formula {told / MIB:.3f} MiB, Zero3 above {state_of(zero.optimizer) / MIB:.3f} MiB")
    except NotImplementedError:
        print("bytes_per_rank is not written yet")

# %% [markdown]
# What little is left over are Adam's counts of steps, one number for each tensor.
#
# ## Other ways to make room
#
# ### Offload
#
# *ZeRO-Offload* moves the optimizer's state, and the step itself, to the host: its memory is larger than the GPU's. Each
# backward sends gradients down, each step sends weights up. On a machine without a GPU there is nowhere to move to; the
# configuration runs, and this is what would move:

# %%
# %%ranks --timeout 120
offloading = ours.config(64, 2)
offloading["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
offloading["zero_force_ds_cpu_optimizer"] = False  # DeepSpeed's Adam for CPUs would have to be compiled
offloaded = with_deepspeed(offloading)
if rank == 0:
    share = parameters / size
    print(f"loss after {steps} steps {offloaded['loss']:.4f}, without offload {by_stage[2]['loss']:.4f}")
    print(f"to the host: {offloaded['optimizer'] / MIB:.1f} MiB of optimizer, at the start")
    print(f"down each step: {4 * share / MIB:.1f} MiB of gradients; up each step: {4 * share / MIB:.1f} MiB of weights")

# %% [markdown]
# ### Sixteen bits
#
# *fp16* and *bf16* both have 16 bits. fp16 spends 10 of them on digits and 5 on the exponent; bf16 7 and 8, so it has
# the range of fp32 with fewer digits. Gradients are small. We train a little, and then ask which gradients of the next
# batch each format can hold.

# %%
model = perceptron()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for start in [*range(0, 1024, 64)] * 3:
    optimizer.zero_grad()
    cross_entropy(model(images[start : start + 64]), labels[start : start + 64]).backward()
    optimizer.step()

optimizer.zero_grad()
cross_entropy(model(images[:64]), labels[:64]).backward()
gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
gradient = gradient[gradient != 0]
print(f"fp32: {len(gradient):,} gradients that are not 0, half of them smaller than {gradient.abs().median():.1e}")
for name, dtype, scale in (
    ("bf16", torch.bfloat16, 1),
    ("fp16", torch.float16, 1),
    ("fp16, loss times 2^16", torch.float16, 2.0**16),
):
    cast = (gradient * scale).to(dtype)
    poor = (cast.abs() < torch.finfo(dtype).tiny).float().mean()
    print(f"{name:>22}: {(cast == 0).float().mean():6.2%} become 0, {poor:6.2%} are 0 or lose digits, {cast.isinf().sum()} too large")
print(f"smallest numbers: fp16 {2.0**-24:.1e}, bf16 {2.0**-133:.1e}; largest: fp16 {torch.finfo(torch.float16).max:,.0f}")

# %% [markdown]
# What becomes 0 is lost (*underflow*), and the network stops learning from it. *Loss scaling* multiplies the loss by a large
# number before backward, and with it every gradient; before the step, gradients are divided by it, in fp32. Too
# large a scale makes gradients infinite; DeepSpeed then skips the step, halves the scale, and doubles it again
# after a while without trouble. bf16 needs none of this, which is why it is the usual choice where the hardware has it.
#
# In DeepSpeed it is one key. Compare the bytes with the table above (not the time: many CPUs compute slowly in bf16).

# %%
# %%ranks --timeout 120
halves = [
    with_deepspeed(ours.config(64, stage, "bf16"), torch.Tensor.bfloat16, steps=2) for stage in (2, 3)
]

# %%
table({f"stage {stage}, bf16": row for stage, row in zip((2, 3), team.pull("halves")[0], strict=True)})

# %% [markdown]
# ### Activation checkpointing
#
# All so far was about the state of the model. *Activations*, the outputs of layers that forward keeps for backward, grow with the
# batch, and ZeRO does not shard them: each rank has its own samples. *Activation checkpointing* keeps the inputs of a few
# segments only, and computes the rest again in backward. PyTorch can call a function whenever it keeps a tensor for backward;
# we count the bytes there.


# %%
def kept_for_backward(forward, model):
    """MiB that forward keeps for backward besides the parameters, and ms of forward and backward."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = cross_entropy(forward(images), labels)
    kept = sum(kept.values()) / MIB  # what is computed again in backward does not count here
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        cross_entropy(forward(images), labels).backward()
        seconds.append(time.perf_counter() - start)
    return loss.item(), kept, 1000 * sorted(seconds)[1]


deep = perceptron(width=512, hidden=12)
ways = {"everything kept": deep}
for segments in (6, 4, 2):
    ways[f"{segments} segments"] = lambda x, n=segments: checkpoint_sequential(deep, n, x, use_reentrant=False)
rows = [(name, *kept_for_backward(forward, deep)) for name, forward in ways.items()]
pd.DataFrame(rows, columns=["", "loss", "MiB kept by forward", "ms"]).style.hide(axis="index").format(precision=3)

# %% [markdown]
# The same loss, less memory, and up to one more forward of time. The last segment is kept as it is, since backward begins there;
# the others come back one at a time. Few segments are long ones, many have many inputs to keep: the square root of the
# number of layers is a good choice.
#
# ### Accumulating gradients
#
# Smaller micro-batches need fewer activations. In `05` gradients were added up on each rank, and averaged once. In stage 2
# there is no place to add them up: a rank keeps only its share, so every micro-batch has to be reduced.

# %%
guess = predict("4 micro-batches in stage 2: bytes of gradients sent, as a multiple of stage 1?", low=0, high=6)
guess

# %% [markdown]
# We count what DeepSpeed hands to its collectives, in one step of four micro-batches.

# %%
# %%ranks --timeout 120
from deepspeed.comm import comm as inside


def accumulated(stage, micro_batches=4):
    """{collective: MiB handed to it} of one step."""
    handed = {}

    def counted(name, original):
        def call(*tensors, **options):
            found = [t for t in [*tensors, *options.values()] if isinstance(t, torch.Tensor)]
            handed[name] = handed.get(name, 0) + max(t.nbytes for t in found) / MIB
            return original(*tensors, **options)

        return call

    model = perceptron()
    config = ours.config(16, stage) | {"gradient_accumulation_steps": micro_batches}
    engine, *_ = deepspeed.initialize(model=model, optimizer=adam(model.parameters()), config=config)
    images, labels = batch(0)
    names = ("all_reduce", "reduce", "reduce_scatter_tensor", "all_gather_into_tensor", "broadcast")
    originals = {name: getattr(inside.cdb, name) for name in names}
    for name, original in originals.items():
        setattr(inside.cdb, name, counted(name, original))
    try:
        for of_4 in zip(images.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
            engine.backward(cross_entropy(engine(of_4[0]), of_4[1]))
            engine.step()  # steps only with the last micro-batch
    finally:
        for name, original in originals.items():
            setattr(inside.cdb, name, original)
        engine.destroy()
    return handed


traffic = {stage: accumulated(stage) for stage in (1, 2)}

# %%
handed = team.pull("traffic")[0]
guess.compare(handed[2]["all_reduce"] / handed[1]["all_reduce"])

# %%
pd.DataFrame(handed).rename(columns="stage {}, MiB".format).style.format("{:.1f}")

# %% [markdown]
# Stage 1 adds up whole gradients, and reduces them with the last micro-batch; stage 2 reduces them with every one. With many
# micro-batches stage 1 is therefore often the better choice.
#
# Did you notice `all_reduce`? Where it could reduce-scatter, DeepSpeed joins the gradients of several owners in one bucket and
# allreduces it, by default. That sends up to 1.5 times the bytes of your class, in fewer messages
# (`use_multi_rank_bucket_allreduce` turns it off).
#
# ## FSDP: stage 3 in PyTorch
#
# PyTorch has its own stage 3, *fully sharded data parallel*. `fully_shard` is called on each layer, or block of layers, that
# shall be gathered together, and last on the whole model. The optimizer comes after it, since the parameters are shares
# then. There is no engine: backward and step are those of one process.

# %%
# %%ranks --timeout 120
import warnings

from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

# Both are about hooks for gradients of inputs and in-place operations, of which there are none here.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module|Full backward hook")


def with_fsdp(reshard):
    """What `measure` found, the weights that are there after forward, and the allgathers of a step."""
    model = perceptron()
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)
    optimizer = adam(model.parameters())

    def step():
        optimizer.step()
        optimizer.zero_grad()

    found = measure(model, torch.Tensor.backward, step, lambda: memory.live_bytes(model, optimizer))
    images, labels = batch(0)
    with CommDebugMode() as counted:
        loss = cross_entropy(model(images), labels)
        found["after forward"] = memory.live_bytes(model, optimizer)["parameters"]
        loss.backward()
    counts = {str(collective): count for collective, count in counted.get_comm_counts().items()}
    found["allgathers"] = sum(count for name, count in counts.items() if "gather" in name)
    return found


by_fsdp = [with_peak(with_fsdp, reshard) for reshard in (True, False)]

# %%
by_fsdp = dict(zip(("FSDP", "FSDP, reshard_after_forward=False"), team.pull("by_fsdp")[0], strict=True))
display(table({"DeepSpeed, stage 3": measured[3]} | by_fsdp))
for name, row in by_fsdp.items():
    print(f"{name}: {row['after forward'] / MIB:.1f} MiB of weights after forward, {row['allgathers']} allgathers a step")

# %% [markdown]
# FSDP has no master weights in fp32, so it holds 16 bytes over $p$. With `reshard_after_forward=False` the weights stay
# after forward until backward has used them: one allgather a layer instead of two, as in stages 1 and 2, with the memory of all
# weights meanwhile. Between steps it holds shares all the same.
#
# ## MNIST, for real
#
# The library's training loop with both, on the workshop's small network:

# %%
samples = sizes.sweep_samples or 60_000
for options in (
    TrainOptions(
        backend="deepspeed", zero_stage=2, epochs=sizes.sweep_epochs, train_samples=samples, device="cpu"
    ),
    TrainOptions(backend="fsdp", epochs=sizes.sweep_epochs, train_samples=samples, device="cpu"),
):
    record = team.train(options, timeout=sizes.timeout_s)
    if record["epochs"]:
        last = record["epochs"][-1]
        print(
            f"{options.backend}: test accuracy {last['test_accuracy']:.2%}, {last['samples_per_s']:,.0f} images/s, "
            f"the ranks hold the same network: {record['ranks_identical']}"
        )

# %% [markdown]
# ## Does it fit?
#
# The formula for models that are not on this laptop:

# %%
calculator()

# %% [markdown]
# ## When to use which
#
# Guidelines of 2019 for scientists (below) knew two cases: the model fits on one node, then data parallel; it does not, then
# *model parallel*, each rank computing a part of the network. ZeRO put a third way in between, which needs no change to the
# network: data parallel, with the model's state sharded. Ask from the top, and stop at the first yes:
#
# | question | then | cost |
# |---|---|---|
# | Do 16 bytes a parameter, and the activations of one batch, fit? | DDP | one allreduce a step |
# | Only the activations do not fit? | smaller micro-batches, accumulated; bf16; activation checkpointing | up to one more forward |
# | Do weights and gradients fit whole, with the optimizer's state divided? | ZeRO-1 | none in bytes. Nearly always worth it |
# | Do the weights fit whole, with the rest divided? | ZeRO-2, or FSDP with `reshard_after_forward=False` | none in bytes, but every micro-batch is reduced |
# | Does one layer fit whole, and 16 bytes a parameter over all ranks? | ZeRO-3 or FSDP | half as many bytes again: wants a fast network |
# | Does it fit with the host's memory added? | offload | time: the link to the host, and a step on the CPU |
# | Is one layer, or its activations, too large for a GPU? | *tensor parallel*: each layer is cut, and ranks exchange activations within it | messages in every layer: inside a node |
# | Still too large, or the network too slow for ZeRO-3? | *pipeline parallel*: ranks hold consecutive layers, micro-batches pass through | idle time at both ends |
#
# The last two change the model's code, and are combined with the first ones: ZeRO-1 over groups of ranks that hold
# one model between them. DeepSpeed or FSDP? Stages are alike. FSDP is part of PyTorch and composes with its other tools; DeepSpeed
# has offload to host and disk, and is told by a configuration file.
#
# ## What to remember
#
# - Training with Adam takes 16 bytes a parameter, in fp32 and in mixed precision, and activations on top.
# - ZeRO is data parallelism without copies: stage 1 shards the optimizer's state, 2 the gradients, 3 the weights.
# - An allreduce is a reduce-scatter and an allgather. Stages 1 and 2 put the step in between; stage 3 adds one more allgather.
# - Only the step of the optimizer changes: the result is that of one process with the global batch.
# - All ranks run the same forwards, backwards and checkpoints; in stage 3 that holds for tests too.
# - fp16 needs loss scaling, bf16 does not. Checkpointing trades time for activations. Stage 2 reduces every micro-batch.
#
# **Sources.** S. Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models* (arXiv:1910.02054):
# bytes a parameter, stages, volume of messages. J. Ren et al., *ZeRO-Offload* (arXiv:2101.06840). Y. Zhao et al., *PyTorch FSDP*
# (arXiv:2304.11277). P. Micikevicius et al., *Mixed Precision Training* (arXiv:1710.03740): master weights, loss scaling. T. Chen
# et al., *Training Deep Nets with Sublinear Memory Cost* (arXiv:1604.06174): checkpointing. P. Patarasuk and X. Yuan, *Bandwidth
# optimal all-reduce algorithms* (2009): the ring. L. Shao, V. Lee, T. Kurth, M. Mustafa and Prabhat, *Distributed Training*,
# guidelines of the Big Data Center collaboration: the decision between data and model parallel. The documentation of DeepSpeed's
# configuration, and of PyTorch's `fully_shard`, `ZeroRedundancyOptimizer` and `torch.utils.checkpoint`.

# %%
ranks.stop()
