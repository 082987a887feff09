# %% [markdown] track="core path"
# # DDP: gradients averaged during backward
#
# In notebook 02 each step ran backward, and *then* averaged the gradients. But the gradient of the last layer is ready long
# before that of the first. Why should it wait? PyTorch's `DistributedDataParallel`, DDP for short, sends it at once, while
# backward is still computing the rest. You can write that yourself in a dozen lines.
#
# **You will** turn a script for one process into one for many and start it with `torchrun`, write DDP yourself, train with
# it, and see its messages drawn next to PyTorch's. Then you'll know what DDP does for you, and what it leaves to you.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first, where you average gradients by hand.

# %%
import contextlib
import statistics

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from IPython.display import Code

from workshop_lib import ranks
from workshop_lib.lessons.ddp import figures as steps
from workshop_lib.lessons.ddp import judge as check
from workshop_lib.notebook import profile, take_home
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, MNIST, SCRIPTS
from workshop_lib.ranks import scripts

sizes = profile.current()
samples, epochs = sizes.sweep_samples or 60_000, sizes.sweep_epochs
folder = BUILD / "05_ddp"
folder.mkdir(parents=True, exist_ok=True)
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## How do processes find each other?
#
# MPI's processes know each other from the start, because `mpiexec` started them. PyTorch's don't. Each one needs the address and
# port where they all meet, its own rank, and the number of ranks. It reads these from four environment variables, and
# `torchrun` sets them for you. Under `mpiexec` or `srun` you set them yourself. The lines that matter begin at
# `host = `:


# %%
# %%ranks
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI

from workshop_lib.training.world import loopback

comm = MPI.COMM_WORLD
one_host = comm.Split_type(MPI.COMM_TYPE_SHARED).size == comm.size
if one_host:  # then no message has to leave it, which also works on a laptop without a network
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())

host = "127.0.0.1" if one_host else socket.gethostname()
with socket.create_server(("", 0)) as free:
    port = free.getsockname()[1]
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = comm.bcast((host, str(port)))
os.environ["RANK"], os.environ["WORLD_SIZE"] = str(comm.rank), str(comm.size)
if not dist.is_initialized():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
print(f"rank {rank} of {size}, over {dist.get_backend()}")

# %% [markdown]
# If you start with `srun` and without MPI, there is no `comm.bcast`. Take the rank from `SLURM_PROCID`, the number of ranks from
# `SLURM_NTASKS`, and the first host that `scontrol show hostnames` lists as the address. Any free port will do, as long as all
# ranks use the same one.
#
# The ranks now form a *process group*, PyTorch's word for a communicator. *gloo* carries its messages between CPUs, and *NCCL*
# between NVIDIA GPUs. The `timeout` is how long a collective waits for a missing partner before it raises an error. (With
# NCCL, a watchdog ends the process instead.) Here you're watching, so 60 seconds will do. In a batch job, leave it at the
# default, 30 minutes for gloo and 10 for NCCL, or set it above the longest time that ranks wait on purpose. With 60 seconds,
# a job could die while rank 0 is still preparing the data.
#
# If the same processes ever leave this group and call `init_process_group` again, give it another port. (A group of only some
# of the ranks needs none: that's `dist.new_group`.) On the old port, a rank that's early finds what the first group left
# behind, and the ranks then wait for each other in different places.
#
# ## From one process to many
#
# Here is a plain script for one process. It trains, tests, prints, and saves. The data and the network come from a second
# file, [mnist_data.py](scripts/mnist_data.py), where you'd put your own. The two need nothing else from this repository, so
# you can take them home.

# %%
Code(filename=str(SCRIPTS / "one_process.py"))

# %%
options = ["--images", samples, "--epochs", 1, "--out", folder / "mnist.pt"]
scripts.run("python", SCRIPTS / "one_process.py", *options, timeout_s=sizes.timeout_s)

# %% [markdown]
# ### Exercise 1 (hard): the script for many processes
#
# Every process will run the whole script. Below are the only six places in `main()` that have to change, each still as it is
# in the script above. Make the processes train one network together: each takes 64 images *of its own* in every step, tests
# its own share of the test images, and only rank 0 prints and saves. (The check adds the rest for you: the imports, the
# function `join()`, which calls `init_process_group` and returns this rank's own device, and `destroy_process_group()` at the
# end.)
#
# <details><summary>Hint 1: who needs what?</summary>
#
# Part 1: who am I, and how many are we? Part 2: who trains on which images, and who tests which? Part 3: what averages the
# gradients, and which model should the loss call from then on? Part 4: the images need a new order in each epoch. Part 5: all
# ranks together take `size * BATCH` images in a step. Part 6: who adds up, and who prints?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `dist.get_rank()` and `dist.get_world_size()`; `DistributedSampler(train, seed=1)`, which goes into `DataLoader(…,
# sampler=sampler)` in place of `shuffle=True`; `Subset(test, range(rank, len(test), size))`; `DistributedDataParallel(model)`;
# `sampler.set_epoch(epoch)`; `dist.all_reduce(right)`, which adds up in place, on every rank; `if rank == 0:`.
#
# </details><details><summary>Solution</summary>
#
# After the check and the run, a cell shows everything that changes.
#
# </details>

# %%
# %%writefile {folder}/changes.py
# 1. Join the process group, and find out who you are
device = join()
# <solution>
rank = dist.get_rank()
size = dist.get_world_size()
# <stub>
# ...  # your code here
# </stub>
# </solution>
# 2. My images, for training and for testing
# <solution>
sampler = DistributedSampler(train, seed=1)
loader = DataLoader(train, BATCH, sampler=sampler, drop_last=True)
test_loader = DataLoader(Subset(test, range(rank, len(test), size)), batch_size=500)
# <stub>
# loader = DataLoader(train, BATCH, shuffle=True, drop_last=True)
# test_loader = DataLoader(test, batch_size=500)
# </stub>
# </solution>
# 3. Wrap the network, so that its gradients are averaged
model = cnn().to(device)
# <solution>
ddp = DistributedDataParallel(model)
# <stub>
# ...
# </stub>
# </solution>
# 4. An epoch in an order of its own, and the loss
# <solution>
sampler.set_epoch(epoch)
start = time.perf_counter()
for images, labels in loader:
    loss = cross_entropy(ddp(images.to(device)), labels.to(device))
# <stub>
# start = time.perf_counter()
# for images, labels in loader:
#     loss = cross_entropy(model(images.to(device)), labels.to(device))
# </stub>
# </solution>
# 5. Images per second, of all ranks
# <solution>
speed = steps * size * BATCH / (time.perf_counter() - start)
# <stub>
# speed = steps * BATCH / (time.perf_counter() - start)
# </stub>
# </solution>
# 6. Test, print and save
right = count_right(model, test_loader, device)
# <solution>
dist.all_reduce(right)
if rank == 0:
    print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right.item() / len(test):.2%}")
    save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
# <stub>
# print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right.item() / len(test):.2%}")
# save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
# </stub>
# </solution>

# %%
check.script(folder / "changes.py")

# %% [markdown]
# Now start it. `--standalone` means this machine alone, and `scripts.run` ends all processes when the time is up. (Until your
# script passes the check, this starts the finished one.) In a terminal, it's the line that begins with `$`.

# %%
launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", sizes.ranks]
scripts.run(*launch, check.own_or_finished(folder / "changes.py"), "--data", MNIST, *options)

# %%
take_home.diff("one_process.py", "ddp.py")

# %% [markdown]
# | change | why |
# |---|---|
# | `join()` … `destroy_process_group` | the ranks meet, as above; `torchrun` has set the variables |
# | `set_device_index(…)` | each rank of a host takes its own GPU. Without it, all of them compute on GPU 0 |
# | `@record` | if a rank fails, `torchrun` ends with its traceback |
# | `DistributedDataParallel(model)` | sends rank 0's weights to everyone, and averages gradients in every `backward()` |
# | `DistributedSampler` | DDP does *not* share out the data. Without this, each rank goes through all of it by itself |
# | `set_epoch(epoch)` | the sampler shuffles by its seed and the epoch. Without this, every epoch has the same order |
# | `size * BATCH` | 64 images per rank, so the global batch grows with the ranks. You may want a larger learning rate then |
# | `Subset(test, …)`, `all_reduce(right)` | each test image counts once, on one rank. Add up counts, and divide last |
# | `model`, not `ddp` | the network inside the wrapper tests without messages, and its weights are saved under their own names |
# | `if rank == 0` | one rank prints, and one writes the file |
#
# If you want to keep the size of the *global* batch instead, each rank takes `batch_size // size` images. Mind the remainder: a
# batch of 100 on 3 ranks shrinks to 99, and a batch of 64 on 96 ranks to nothing.
#
# *Break it:* take the same images on every rank, with `DistributedSampler(train, size, 0, seed=1)`. Training still runs, the
# loss falls, and nobody complains. What does the check see that you wouldn't?
#
# ## Write DDP yourself
#
# *Autograd* is PyTorch's machinery for derivatives. It can call a function of yours, a *hook*, each time it has finished the
# gradient of a parameter. Which gradient comes first? Here is a network of four linear layers. It's larger than MNIST needs,
# so that there is something to send.


# %%
def perceptron(width=1024):
    """784 inputs, three hidden layers, 10 outputs; the same weights wherever it is built."""
    torch.manual_seed(1)
    widths = [784, width, width, width]
    layers = [torch.nn.Flatten()]
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


network, order = perceptron(), []
for name, p in network.named_parameters():
    p.register_post_accumulate_grad_hook(lambda p, name=name: order.append(f"{name}: {p.grad.nbytes / 2**20:.2f} MiB"))
network(torch.ones(1, 784)).sum().backward()
print(*order, sep="\n")

# %% [markdown]
# The last layer comes first, because backward runs from the output to the input. While it computes the gradient of layer 1, that
# of layer 7 could already be on its way. Communication would *overlap* with computing.
#
# ### Exercise 2 (hard): your own DDP
#
# Write `my_ddp`. It prepares a model once, and from then on `backward()` does the sending. It returns a function `finish()`,
# which the training loop calls between `backward()` and `optimizer.step()`. Three things to get right:
#
# - All ranks start with the weights of rank 0.
# - Each gradient leaves as soon as it's ready, in a message of its own, and no hook waits for another rank.
# - When `finish()` returns, every `p.grad` is the mean over the ranks, in every step.
#
# A parameter may get no gradient on any rank. Then its hook never runs, and you don't have to do anything about it.
#
# <details><summary>Hint 1: an allreduce that doesn't wait</summary>
#
# `dist.all_reduce(tensor)` adds up `tensor` over all ranks, in place, and waits until that's done. With `async_op=True` it
# returns at once, with a handle. The sum is only ready after the handle's `wait()`. So who keeps the handles, and who waits?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# A list outside of both functions. A hook `send(p)`: divide `p.grad` by `dist.get_world_size()`, start, keep the handle.
# `finish()`: wait for all handles, and empty the list for the next step. Then for each parameter
# `dist.broadcast(p.detach(), src=0)` and `p.register_post_accumulate_grad_hook(send)`.
#
# </details><details><summary>Solution</summary>
#
# {solution of my_ddp}
#
# </details>


# %%
def my_ddp(model):
    """Average the model's gradients during backward. Must be called on every rank. Returns `finish`, which waits."""
    # <solution>
    handles = []

    def send(p):
        p.grad /= dist.get_world_size()
        handles.append(dist.all_reduce(p.grad, async_op=True))

    def finish():
        for handle in handles:
            handle.wait()
        handles.clear()

    for p in model.parameters():
        dist.broadcast(p.detach(), src=0)
        p.register_post_accumulate_grad_hook(send)
    return finish
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.my_ddp(my_ddp)

# %% [markdown]
# *Break it:* wait inside the hook instead of in `finish`. The gradients are still right, so what did you lose?
#
# ## Does it overlap?
#
# Let's watch three ways to average: after backward in one message, as in notebook 02; yours; and PyTorch's DDP. They take turns,
# so that a slow moment on this machine affects all of them equally. (Until you've solved the exercise, yours is missing.)

# %%
guess = predict("How much shorter does DDP make backward and averaging?", low=-50, high=75, unit="%")
guess

# %%
team.push(perceptron=perceptron, my_ddp=my_ddp, turns=3 * sizes.repeats)

# %%
# %%ranks --timeout 60
from contextlib import suppress

from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist, shard
from workshop_lib.lessons.ddp import backward
from workshop_lib.models import torch_cnn

train = mnist.load("train")
images = torch_cnn.normalize(torch.tensor(train.images[: 256 * size]))[rank::size]
labels = torch.tensor(train.labels[: 256 * size]).long()[rank::size]

ways = {"after backward": backward.averaged_after(perceptron())}
with suppress(NotImplementedError):
    network = perceptron()
    ways["yours"] = network, my_ddp(network)
ways["PyTorch's DDP"] = backward.pytorch_ddp(perceptron(), bucket_cap_mb=4)
times = backward.compare(ways, images, labels, turns)

# %%
steps.typical_overlap(team.pull("times"))

# %%
taken_ms = steps.durations_ms(team.pull("times"))
for title, ms in taken_ms.items():
    print(f"{title:>14}: {np.median(ms):.0f} ms (median; {ms.min():.0f} to {ms.max():.0f})")
saved = 100 * (1 - taken_ms["PyTorch's DDP"] / taken_ms["after backward"])
guess.compare(statistics.median(saved), spread=(saved.min(), saved.max()))

# %% [markdown]
# Each picture is one typical step on the first two ranks. An orange bar begins when *this* rank sends, so it includes the
# time it waits for the other. In the top picture, the message leaves after the last gradient. In those below, messages travel
# while backward is still busy. Only the gradient of the *first* layer has nothing left to hide behind, since backward ends with it
# ([07c](07c_less_communication.ipynb) shows a way around even that).
#
# On CPUs, overlap has a price. gloo's threads add and send on the cores that backward needs, so backward takes longer. A GPU
# moves data while it computes and gains more, although NCCL keeps a few of its cores busy. And why does DDP send fewer
# messages than you do? It collects gradients in *buckets*, which are the topic of the first *Deeper* section.
#
# ## Train with it
#
# Does your DDP train like PyTorch's? Each rank starts with different weights, and takes its own part of every global batch.


# %%
# %%ranks
def trained(wrap):
    """Digest of the weights, samples/s and test accuracy after training. `wrap` returns a model and its `finish`."""
    network = torch_cnn.build(seed=rank)
    model, finish = wrap(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    start = perf_counter()
    for epoch in range(1, epochs + 1):
        for indices, _ in shard.epoch_batches(samples, 64, rank, size, seed=1, epoch=epoch):
            optimizer.zero_grad()
            inputs = torch_cnn.normalize(torch.tensor(train.images[indices]))
            cross_entropy(model(inputs), torch.tensor(train.labels[indices]).long()).backward()
            finish()
            optimizer.step()
    speed = samples * epochs / (perf_counter() - start)
    weights = torch.cat([p.detach().flatten() for p in network.parameters()])
    with torch.no_grad():
        right = network(test_images).argmax(1).eq(test_labels).float().mean()
    return f"{sha256(weights.numpy().tobytes()).hexdigest()[:12]}, {speed:,.0f} samples/s, {right:.1%} right"


# %%
team.push(samples=samples, epochs=epochs)

# %%
# %%ranks --timeout 120
from hashlib import sha256
from time import perf_counter

test = mnist.load("test")
test_images = torch_cnn.normalize(torch.tensor(test.images[:1000]))
test_labels = torch.tensor(test.labels[:1000])

with suppress(NotImplementedError):
    print(f"yours:   {trained(lambda network: (network, my_ddp(network)))}")
print(f"PyTorch: {trained(backward.pytorch_ddp)}")

# %% [markdown]
# The digests agree: on two ranks, your dozen lines and DDP take the same steps, to the last bit. (With more ranks, the sums may
# be taken in a different order, so the last bits may differ.)
#
# For this small network DDP isn't faster than averaging after backward, as in notebook 02. All its gradients fit into one
# bucket, which is full only when backward is over. So nothing overlaps, and you pay for bookkeeping and gloo's sockets. DDP
# pays off for networks whose backward takes longer than a message.
#
# *Beat it:* your DDP sends one message per parameter, and each pays the latency. How few messages can you get by with, and
# still overlap? Exercise 3 has an answer.
#
# ## What DDP doesn't do
#
# - It doesn't share out the data. A sampler or your own slicing does.
# - It doesn't change the learning rate, although the global batch grows with the ranks
#   ([07](07_large_batch.ipynb)).
# - It doesn't average the loss or any metric. Each rank has its own, until you add up sums and counts.
# - It doesn't average what isn't a gradient. *Buffers*, such as the running means of batch normalization, are sent from rank 0
#   before every forward pass, and each rank normalizes with the statistics of its own batch.
#   [02](02_synchronous_sgd.ipynb) shows what that changes.
# - It doesn't notice ranks that take different numbers of steps, or weights that have drifted apart.
# - It doesn't save memory. Every rank holds all the weights, the gradients and the optimizer's state.
#   [06](06_zero_and_fsdp.ipynb) shows what you can do about it.
#
# And don't confuse it with `nn.DataParallel`, which looks like a shortcut: one process, one thread per GPU, one line to change.
# Threads share the memory of their process, but also Python's lock, and GPU 0 sends the weights to all the others in every
# step. It's slower even on one machine, can't use a second one, and PyTorch's own documentation advises against it.
#
# ## Deeper: buckets
#
# If you send one message per gradient, you pay the latency many times. If you send one message for all, it can only leave at
# the end. DDP takes a middle road: it collects gradients in *buckets*, in the order they arrive, and sends a bucket as soon as
# it's full.

# %%
guess = predict("In how many buckets does DDP send our four layers, if you don't set bucket_cap_mb?", low=1, high=10)
guess

# %% [markdown]
# A *communication hook* is a function that DDP calls for each full bucket, instead of its own allreduce. It returns a
# *future*, an object for a result that isn't ready yet. This one takes notes, and leaves the averaging to `allreduce_hook`.

# %%
# %%ranks
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def layout(cap):
    """(size in MiB, names of its parameters) of each bucket, in the order in which they are sent."""
    network, seen = perceptron(), []
    names = {p: name for name, p in network.named_parameters()}

    def hook(group, bucket):
        seen.append((bucket.buffer().nbytes / 2**20, [names[p] for p in bucket.parameters()]))
        return default_hooks.allreduce_hook(group, bucket)

    model = DistributedDataParallel(network, bucket_cap_mb=cap)
    model.register_comm_hook(None, hook)
    for _ in range(2):  # in its first step DDP has one bucket, and learns in which order gradients come
        seen.clear()
        cross_entropy(model(images), labels).backward()
    return seen


layouts = {str(cap): layout(cap) for cap in (None, 25, 4, 0.01)}

# %%
by_cap = team.pull("layouts")[0]
guess.compare(len(by_cap["None"]))

# %%
rows = [
    (cap, number, f"{mebibytes:.2f}", ", ".join(names))
    for cap, buckets in by_cap.items()
    for number, (mebibytes, names) in enumerate(buckets)
]
pd.DataFrame(rows, columns=["bucket_cap_mb", "bucket", "MiB", "parameters"]).style.hide(axis="index")

# %% [markdown]
# - If you don't set a cap, it's 25 MiB, but the first bucket closes at 1 MiB, so that sending starts early. If you write out
#   `bucket_cap_mb=25`, there's no such exception.
# - A tensor is never cut, so a bucket may be larger than its cap.
# - All ranks send their buckets in the same order, that of rank 0. If each sent whichever is full first, an allreduce could
#   add up different layers.
# - Small caps mean many messages, and each pays its latency.
#
# ### Exercise 3 (hard): buckets of your own
#
# `my_buckets` does what `my_ddp` does, with fewer messages. Collect gradients in the order they arrive, and send them together
# as soon as they add up to at least `bucket_bytes` bytes. The check counts messages.
#
# <details><summary>Hint 1: what changes</summary>
#
# The hook no longer sends; it collects, and sometimes calls a function that sends. A message is now a new flat tensor, so
# `finish()` has to cut it and copy the pieces back. What happens to the last gradients if they don't fill a bucket?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `torch.cat([p.grad.flatten() for p in bucket])` joins; `flat.split([p.numel() for p in parameters])` cuts;
# `p.grad.copy_(part.view_as(p))` copies back; `p.grad.nbytes` counts. For each message, keep the handle, the flat tensor and
# its parameters together.
#
# </details><details><summary>Solution</summary>
#
# {solution of my_buckets}
#
# </details>


# %%
def my_buckets(model, bucket_bytes):
    """`my_ddp` with messages of at least `bucket_bytes` bytes each, except for the last. Returns `finish`."""
    # <solution>
    bucket, sent = [], []

    def send():
        flat = torch.cat([p.grad.flatten() for p in bucket]) / dist.get_world_size()
        sent.append((dist.all_reduce(flat, async_op=True), flat, list(bucket)))
        bucket.clear()

    def collect(p):
        bucket.append(p)
        if sum(each.grad.nbytes for each in bucket) >= bucket_bytes:
            send()

    def finish():
        if bucket:
            send()
        for handle, flat, parameters in sent:
            handle.wait()
            for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                p.grad.copy_(part.view_as(p))
        sent.clear()

    for p in model.parameters():
        dist.broadcast(p.detach(), src=0)
        p.register_post_accumulate_grad_hook(collect)
    return finish
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.my_buckets(my_buckets)

# %%
team.push(my_buckets=my_buckets)

# %%
# %%ranks --timeout 60
ways = {}
with suppress(NotImplementedError):
    for mebibytes in (0.01, 4, 1000):
        network = perceptron()
        ways[f"your buckets, {mebibytes} MiB"] = network, my_buckets(network, mebibytes * 2**20)
ways["PyTorch's DDP, 4 MiB"] = backward.pytorch_ddp(perceptron(), bucket_cap_mb=4)
times = backward.compare(ways, images, labels, turns)

# %%
steps.typical_overlap(team.pull("times"), ranks=1)

# %% [markdown]
# *Beat it:* which `bucket_bytes` is fastest here? Your buckets copy each gradient twice. DDP has an option that avoids the
# copies, `gradient_as_bucket_view=True`: the gradients *live* in the buckets. How would you do that?
#
# ## Deeper: accumulating gradients
#
# When a batch doesn't fit into memory, you split it into *micro-batches*. You run forward and backward for each, let the
# gradients add up in `p.grad`, and take one optimizer step at the end. DDP would average in every one of these backward passes,
# though only the sum at the end matters. Inside `with model.no_sync():` DDP skips the averaging. The gradients just add up on
# each rank, and the next backward outside averages all of them.
#
# ### Exercise 4 (normal): accumulate
#
# With this function you can train with any batch size. `model` is wrapped in DDP. `micro_batches` is a list of pairs
# `(inputs, targets)`, all of the same size. `loss_function(outputs, targets)` gives a mean loss. Afterwards the gradients
# must be those of the mean loss over *all* micro-batches of *all* ranks, with a single round of allreduces.
#
# <details><summary>Hint 1</summary>
#
# Which of the micro-batches has to communicate? And since `backward()` adds up, how do you turn the sum into a mean?
#
# </details><details><summary>Hint 2</summary>
#
# `contextlib.nullcontext()` is a context that does nothing, so `with a if condition else b:` chooses one. Forward and
# backward both belong inside.
#
# </details><details><summary>Solution</summary>
#
# {solution of accumulate}
#
# </details>


# %%
def accumulate(model, micro_batches, loss_function):
    """Leave the gradients of the mean loss over all ranks' micro-batches in the model. One micro-batch in memory."""
    # <solution>
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        last = number == len(micro_batches)
        with contextlib.nullcontext() if last else model.no_sync():
            loss = loss_function(model(inputs), targets)
            (loss / len(micro_batches)).backward()
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.accumulate(accumulate)

# %% [markdown]
# *Beat it:* `my_ddp` has no `no_sync`. How few lines does it take to add one?
#
# ## Deeper: fewer bytes
#
# Gradients are 32-bit numbers. If you send them in 16 bits (*fp16*), they take half the bytes but lose digits. How small a
# gradient survives that?

# %%
for value in (1e-3, 1e-7, 6e-8, 3.1e-8, 2.9e-8):
    print(f"{value:.1e} becomes {torch.tensor(value).half().item():.1e}")

# %% [markdown]
# The smallest positive number fp16 can hold is $2^{-24} \approx 6 \cdot 10^{-8}$, and values are rounded to the nearest one. So
# everything above half of that, about $3 \cdot 10^{-8}$, survives, and everything below becomes 0. What survives below
# $2^{-14} \approx 6 \cdot 10^{-5}$ has fewer digits the smaller it is, as you see. A communication hook decides what travels:


# %%
# %%ranks
def averaged(hook):
    """The gradients, in one vector, that DDP makes with this hook."""
    model = DistributedDataParallel(perceptron())
    model.register_comm_hook(None, hook)
    cross_entropy(model(images), labels).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def half_hook(_, bucket):
    half = (bucket.buffer() / size).half()
    future = dist.all_reduce(half, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].float())


exact, rounded = averaged(default_hooks.allreduce_hook), averaged(half_hook)
if rank == 0:
    print(f"relative error of the gradient: {(rounded - exact).norm() / exact.norm():.1e}")
    lost = ((rounded == 0) & (exact != 0)).sum() / (exact != 0).sum()
    print(f"nonzero gradients that became zero: {lost:.2%}")

# %% [markdown]
# `default_hooks.fp16_compress_hook` does the same. PyTorch also has *PowerSGD*, which sends two thin matrices instead of each
# large one. Dividing before the sum, rather than after it, keeps fp16 sums of many ranks in range. Not every hook runs
# everywhere: DDP refuses `bf16_compress_hook`, for the 16-bit format with fp32's range, on CPUs with gloo.
#
# *Try it:* multiply the loss in `averaged` by 0.001. What becomes zero now? That's why training in fp16 multiplies the loss by a
# large number first, and divides the gradients by it afterwards (*loss scaling*).
#
# ## Deeper: who sees which sample
#
# Most scripts leave the slicing to PyTorch's `DistributedSampler`, which deals out a shuffled order like cards: rank 0 gets the
# first sample, rank 1 the second, and so on. Every rank must get the same number, or a rank with more would wait in its last
# allreduce. When the samples don't divide evenly, the sampler makes up the difference with samples from the beginning.

# %%
from torch.utils.data import DistributedSampler


def dealt(n, size, **how):
    """The samples of each rank, by rank. This needs no ranks, because you tell the sampler who is asking."""
    return [list(DistributedSampler(range(n), size, rank, **how)) for rank in range(size)]


for rank, indices in enumerate(dealt(10, 4, shuffle=False)):
    print(f"rank {rank} of 4 takes {indices} of 10 samples")

# %%
guess = predict("10,000 test images on 96 ranks: how many of them are tested twice?", low=0, high=200)
guess

# %%
tested = sum(map(len, dealt(10_000, 96, shuffle=False)))
guess.compare(tested - 10_000)

# %% [markdown]
# In training, a few samples that count twice do little harm. In a test they distort the result. Suppose a network gets all
# of 10 images right except the first two:

# %%
right = np.array([0, 0, 1, 1, 1, 1, 1, 1, 1, 1])
parts = dealt(10, 4, shuffle=False)
print(f"rank 0's own accuracy:                  {right[parts[0]].mean():.1%}")
print(f"mean of the ranks' accuracies:          {np.mean([right[part].mean() for part in parts]):.1%}")
print(f"accuracy, each image once:              {right.mean():.1%}")

# %% [markdown]
# The script above is safe: it tests `test_images[rank::size]`, parts that differ in length but repeat nothing, and adds up the
# counts at the end. For training, the workshop's library cuts each *global batch* into parts instead of the whole epoch. Then
# all ranks take the same number of steps, the last batch is simply smaller, and each rank's loss is weighted by its share.
#
# One more trap: the sampler shuffles with its seed plus the epoch's number, which you pass to `set_epoch`. If you never call
# it, every epoch has the same order.
#
# ### Exercise 5 (warm-up): a sampler without padding
#
# With `shard_of`, you can deal out any number of samples without repeating or dropping one. The samples are numbered `0` to
# `n - 1`. Return the list of those that `rank` (of `size`) takes in this epoch. Every sample is taken exactly once, and the
# ranks' counts differ by at most one. The order is shuffled, and different in every epoch. All ranks must agree without
# talking to each other.
#
# <details><summary>Hint 1</summary>
#
# If all ranks shuffle with the same seed, they hold the same order. What should the seed depend on, and what must it *not*
# depend on?
#
# </details><details><summary>Hint 2</summary>
#
# `np.random.default_rng(seed).permutation(n)` is a shuffled array, and `a[start::step]` takes every `step`-th element.
#
# </details><details><summary>Solution</summary>
#
# {solution of shard_of}
#
# </details>


# %%
def shard_of(n, epoch, rank, size):
    """The samples of this rank in this epoch, a list of whole numbers from 0 to n - 1."""
    # <solution>
    order = np.random.default_rng(epoch).permutation(n)
    return order[rank::size].tolist()
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.shard_of(shard_of)

# %% [markdown]
# *Break it:* put the rank into the seed, "so that ranks don't see the same samples". What does the check say?
#
# ## Deeper: when ranks take different branches
#
# DDP waits for *every* gradient of a bucket. This network has a part that only rank 0 uses in this step. On the other ranks
# its gradient never comes, so they never send their bucket, and rank 0 waits for them in `backward()`. (This cell fails on
# purpose, after a few seconds.)


# %%
class TwoPaths(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.always, self.sometimes = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, inputs, both):
        outputs = self.always(inputs)
        return self.sometimes(outputs) if both else outputs


team.push(TwoPaths=TwoPaths)

# %%
# %%ranks --catch --timeout 2
model = DistributedDataParallel(TwoPaths())
outputs = model(torch.ones(2, 4), both=rank == 0)
outputs.sum().backward()
print(f"rank {rank} is through backward")

# %% [markdown]
# If the other ranks had begun a second step, PyTorch would have told *them* "Expected to have finished reduction in the prior
# iteration". That message comes from the ranks that left a part unused, and names the remedy. Rank 0, which hangs, says
# nothing.
#
# With `find_unused_parameters=True`, DDP checks after every forward which parameters the outputs depend on, and treats the rest
# as ready. The search costs time in each step, so it's off by default. To try it we need new ranks. We start four, because the
# clinic below needs that many. (`check.join` does what the lines at the top of this notebook do.)

# %%
team = ranks.start(4)
team.push(TwoPaths=TwoPaths)
_ = team.run(check.join, show=False)

# %%
# %%ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, size = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(TwoPaths(), find_unused_parameters=True)
model(torch.ones(2, 4), both=rank == 0).sum().backward()
averaged = model.module.sometimes.bias.grad
if rank == 0:
    alone = TwoPaths()
    alone(torch.ones(2, 4), both=True).sum().backward()
    print(f"gradient of the bias that only rank 0 used: {averaged.tolist()}")
    print(f"what rank 0 alone has for it:               {alone.sometimes.bias.grad.tolist()}")

# %% [markdown]
# Ranks that didn't use a parameter contribute zeros, and the mean is over all ranks. (In a terminal you'd also see a warning
# from rank 0, which uses everything, so it searched in vain.)
#
# ## Deeper: a clinic for sick runs
#
# Five people come to you and say, "My training runs, but something is off." None of them got an error message. You have what
# any run can give you: a timeline, the last losses, and a digest of the weights on each rank. The run on top is healthy. All of
# these runs train on four ranks, on two (emulated) hosts with two ranks each.

# %%
patients = check.admit(team)
steps.steps(patients.timelines)

# %%
pd.DataFrame(patients.rows).set_index(["run", "rank"])

# %% [markdown]
# ### Exercise 6 (normal): the diagnosis
#
# Each of the five runs has a different one of these problems: `"sampler forgotten"` (every rank goes through all images),
# `"sharded by local rank"` (instead of by rank), `"one rank diverged"` (it began with different weights), `"one rank is slow"`,
# and `"averaged twice"`. Which is which? Replace the dots with your diagnoses.
#
# <details><summary>Hint 1: where to look</summary>
#
# Two of the five show only in the timeline, one most clearly in the digests, and two in the losses and the number of steps.
#
# </details><details><summary>Hint 2: the losses</summary>
#
# Ranks with the same weights and the same images have the same loss, to the last digit. Which ranks agree, and how many
# steps does an epoch have then?
#
# </details><details><summary>Solution</summary>
#
# A was averaged twice: it sends two messages in each step, but the numbers are right. In B, rank 3 has diverged: its digest
# differs. In C, nobody used a sampler: the losses are equal on all ranks, and there are four times as many steps. In D, rank 1 is
# slow: all other ranks wait for it. E was sharded by local rank: the losses are equal on ranks 0 and 2, and on 1 and 3, and there
# are twice as many steps.
#
# </details>

# %%
diagnoses = {
    # <solution>
    "A": "averaged twice",
    "B": "one rank diverged",
    "C": "sampler forgotten",
    "D": "one rank is slow",
    "E": "sharded by local rank",
    # <stub>
    # "A": ...,  # your code here
    # "B": ...,
    # "C": ...,
    # "D": ...,
    # "E": ...,
    # </stub>
    # </solution>
}
check.diagnoses(diagnoses)

# %% [markdown]
# *Beat it:* two of the five would have finished with the right weights, and nobody would ever have known. Which of the five would
# you notice in your own runs, and what would your script have to print for you to notice the rest?
#
# ## Deeper: several hosts
#
# On several hosts, run `torchrun` once on each of them. Each needs the address of the same host, here `node0`:
#
# ```
# torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint node0:29500 ddp.py
# ```
#
# Under Slurm that's `srun --ntasks-per-node 1 torchrun …`. Or let `srun` or `mpiexec` start *all* processes, and put the lines
# from the top of this notebook into your script; [10_compute_nodes](10_compute_nodes.ipynb) does that.
#
# `torchrun` can also be *elastic*: with `--nnodes 1:4` it runs on one to four hosts, and with `--max-restarts 3` it starts all
# processes again when one fails. But it can't restore what they had in memory. Your script has to load its checkpoint at the
# start, and has to cope with a different `size`.
#
# ## Remember
#
# - From one process to many: join the group, take your own GPU, wrap the model, take your own samples. One rank prints and
#   saves. Add up counts, and divide last.
# - DDP is a broadcast, a hook per parameter, an asynchronous allreduce, and buckets. Overlap needs enough computing to hide
#   behind.
# - Accumulate inside `no_sync`, forward and backward together. Only the last micro-batch communicates.
# - Every rank must use the same parameters in each step, or you must tell DDP to look for unused ones.
# - Runs can be sick without an error. Compare losses and digests between ranks, at least once.
#
# **Take it home:** [scripts/ddp.py](scripts/ddp.py).
#
# **Sources.** S. Li et al., [*PyTorch Distributed: Experiences on Accelerating Data Parallel
# Training*](https://arxiv.org/abs/2006.15704), for buckets, overlap, `no_sync` and unused parameters. PyTorch's
# [overview of distributed training](https://pytorch.org/tutorials/beginner/dist_overview.html) and its documentation of
# [DDP](https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html), of
# [communication hooks](https://pytorch.org/docs/stable/ddp_comm_hooks.html) and of
# [torchrun](https://pytorch.org/docs/stable/elastic/run.html); the source of version 2 for the first bucket. T. Vogels,
# S. P. Karimireddy and M. Jaggi, [*PowerSGD*](https://arxiv.org/abs/1905.13727).

# %%
ranks.stop()
