# %% [markdown] track="core path"
# # DDP: averaging while the backward pass runs
#
# In notebook 02 each step ran the backward pass, and *then* averaged the gradients. But the gradient of the last layer is ready
# long before that of the first layer. Why should it wait? PyTorch's `DistributedDataParallel`, DDP for short, sends gradients as
# soon as they're ready, while the backward pass is still computing others. You can write that yourself in a dozen lines.
#
# **You will** start a script with `torchrun`, write DDP yourself, and see how much time it saves on emulated GPUs. Then you'll
# train with batches that don't fit into memory, and diagnose five runs that are sick but raise no error.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first, where you average gradients by hand.

# %%
import contextlib

import pandas as pd
import torch
import torch.distributed as dist

from workshop_lib import emulation, paths, predict, profile, ranks, scripts

from lessons import ddp as lesson

sizes = profile.current()
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## How do processes find each other?
#
# MPI's ranks know each other from the start, because `mpiexec` starts them together. A PyTorch process has to learn its rank,
# the number of ranks, and an address where all of them meet. `torchrun` puts these into environment variables, and a single
# call reads them: `dist.init_process_group("gloo")`. In this notebook, `lesson.process_group.join()` makes that call for you.

# %%
# %%ranks
import torch
import torch.distributed as dist

from lessons import ddp as lesson

lesson.process_group.join()
rank = dist.get_rank()
size = dist.get_world_size()
print(f"rank {rank} of {size}")

# %% [markdown]
# The ranks now form a *process group*, PyTorch's word for a communicator. *gloo* carries its messages between CPUs, and *NCCL*
# carries them between NVIDIA GPUs. MPI's `Allreduce` is `dist.all_reduce(tensor)` here, which replaces `tensor` with the sum,
# and `Bcast` is `dist.broadcast(tensor, src=0)`. (On several hosts, each host has a `torchrun` of its own.
# [10](10_compute_nodes.ipynb) shows how.)
#
# ## Who sees which sample?
#
# PyTorch scripts get their batches from a `DataLoader`, and a *sampler* tells it which samples to take. `DistributedSampler`
# deals the samples out to the ranks like cards. It knows the rank and the number of ranks from the process group. Let's deal
# out one number more than the ranks can share evenly:

# %%
# %%ranks
from torch.utils.data import DataLoader, DistributedSampler

numbers = range(5 * size + 1)
print("in order:", list(DistributedSampler(numbers, shuffle=False)))

sampler = DistributedSampler(numbers, seed=1)  # shuffles
for epoch in (1, 2):
    sampler.set_epoch(epoch)
    batches = DataLoader(numbers, batch_size=2, sampler=sampler)
    print(f"batches of epoch {epoch}:", [batch.tolist() for batch in batches])

# %% [markdown]
# All ranks shuffle with the same seed, so they agree on the order without exchanging a message. The order depends on the seed
# and on the number of the epoch, which you pass to `set_epoch`. If you never call it, every epoch has the same order.
#
# The ranks can't share these numbers evenly, but all of them need the same number of batches. Otherwise, the rank with more
# batches would wait in its last allreduce for a rank that has already finished. That's why the sampler uses some numbers twice
# (with two ranks, one of the 11). These repeats do little harm in training, but they distort a test, so the ranks should share
# the test images without repeats.
#
# ## From one process to many
#
# With DDP, every process runs the whole script. [one_process.py](scripts/one_process.py) is a plain script for one process, and
# [ddp.py](scripts/ddp.py) is the same for many. These changes make it work:
#
# | in `ddp.py` | why |
# |---|---|
# | `device = join()` | joins the process group, and takes a GPU of this host. The ranks of each host are also numbered from 0, and this *local rank* chooses the GPU |
# | `DistributedSampler(train, seed=1)`, `set_epoch(epoch)` | each rank trains on its own images, in a new order every epoch |
# | `ddp = DistributedDataParallel(model)`, `ddp(images)` | averages the gradients. Only the training loss goes through the wrapper. To test and to save, the script uses `model` itself |
# | `Subset(test, …)`, `dist.all_reduce(right)` | each rank tests its share of the images, and their counts are added up |
# | `if rank == 0` | only rank 0 prints and saves |
#
# (Other changes count all ranks' images per second, leave the process group, and report errors. Two more matter only for
# networks with dropout or batch normalization. This network has neither.)
#
# The next cell starts both scripts. You can do the same in a terminal. Go to the workshop's folder, type
# `source .venv/bin/activate`, and then a command from the output: a line that begins with `$`, without the `$`.

# %%
samples = sizes.sweep_samples or 60_000
options = ["--data", paths.MNIST, "--images", samples, "--epochs", 1]
options += ["--out", paths.BUILD / "cnn.pt"]
launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1"]
launch += ["--nproc-per-node", sizes.ranks_here]
one_process, ddp = paths.SCRIPTS / "one_process.py", paths.SCRIPTS / "ddp.py"
scripts.run("python", one_process, *options, timeout_s=sizes.timeout_s)
scripts.run(*launch, ddp, *options, timeout_s=sizes.timeout_s)

# %% [markdown]
# If many processes reach a lower accuracy than one, that isn't a bug. Two processes take 128 images per step, so an epoch has
# half as many steps, and the network has learned less by the end. [07](07_large_batch.ipynb) is about this. If two processes
# aren't twice as fast as one, they lost time to messages, to waiting for the slower rank, or to sharing the machine with each
# other and with other programs. A single run can't tell you which ([08](08_scaling_curves.ipynb)). In *Deeper*, you can turn the
# one script into the other yourself.
#
# ## Write DDP yourself
#
# *Autograd* is PyTorch's machinery for derivatives. It can call a function of yours, a *hook*, each time it has finished the
# gradient of a parameter. Which gradient comes first? Here is a network of four linear layers. (The names also count the ReLUs
# between them.) The network is larger than MNIST needs, so there is something to send.


# %%
def perceptron(width=1024):
    """784 inputs, three hidden layers, 10 outputs; the same weights on every rank."""
    torch.manual_seed(1)
    layers = [torch.nn.Flatten(), torch.nn.Linear(784, width), torch.nn.ReLU()]
    for _ in range(2):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


network = perceptron()
for name, p in network.named_parameters():
    p.register_post_accumulate_grad_hook(
        lambda p, name=name: print(f"{name}: {p.grad.nbytes / 2**20:.2f} MiB")
    )
network(torch.ones(1, 784)).sum().backward()

# %% [markdown]
# The last layer comes first, because the backward pass goes from the output to the input. While PyTorch computes the gradient of
# `1.weight`, the gradient of `7.weight` could already be traveling. Communication would *overlap* with computing.
#
# ### Exercise 1 (hard): your own DDP
#
# Write `my_ddp`. It prepares a model once, and from then on `backward()` does the sending. `my_ddp` returns a function
# `finish()`, which the training loop calls between `backward()` and `optimizer.step()`. You have to get three things right:
#
# - All ranks start with the weights of rank 0.
# - Each gradient leaves as soon as it's ready, in an allreduce of its own, and no hook waits for another rank.
#   (`dist.all_reduce(…, async_op=True)` starts an allreduce without waiting for it.)
# - When `finish()` returns, every `p.grad` is the mean over the ranks, in every step.
#
# Every parameter is trained. But in some steps, a parameter may get no gradient on any rank. Then its hook doesn't run, and its
# `p.grad` may be None.
#
# <details><summary>Hint 1: an allreduce that doesn't wait</summary>
#
# `dist.all_reduce(tensor)` adds up `tensor` over all ranks, in place, and waits until that's done. With `async_op=True` it
# returns at once, with a handle. The sum isn't ready until the handle's `wait()` returns. (With NCCL, `wait()` doesn't stop
# your program. It only makes the GPU's next operations wait.) So who keeps the handles, and who waits?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `my_ddp` keeps a list of handles, and defines two functions. The hook `send(p)` divides `p.grad` by `dist.get_world_size()`,
# starts `all_reduce`, and keeps its handle. `finish()` waits for all handles, and empties the list for the next step. Besides,
# `my_ddp` calls `dist.broadcast(p.detach(), src=0)` and `p.register_post_accumulate_grad_hook(send)` for each parameter.
# (Without `detach()`, autograd warns that it can't follow the broadcast. NCCL and newer versions of gloo can average by
# themselves, with `dist.ReduceOp.AVG`. Dividing first works everywhere.)
#
# </details><details><summary>Solution</summary>
#
# {solution of my_ddp}
#
# </details>


# %%
def my_ddp(model):
    """Average gradients during the backward pass.

    Must be called on every rank. Returns `finish`, which waits.
    """
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
lesson.check.my_ddp(my_ddp)

# %% [markdown]
# ## What does overlap save?
#
# Your cores can't show what DDP was built for, but they can *emulate* it. The next ranks are real processes again, with your
# hooks and real messages. Only the clocks are emulated: each rank has its own, and every computation advances it by the time
# that a GPU would take. A message carries its sender's time, and it arrives when the emulated network would have delivered it.
# So the times are the same however busy your machine is. (*Deeper: on your own cores* measures real times.)
#
# These two ranks emulate two imagined nodes with one GPU each. Let's say that every `Linear` layer takes 2 ms in the forward
# pass and 4 ms in the backward pass, and everything else takes no time. These times are made up. What counts is how they
# compare with the messages: the backward pass takes 16 ms, and sending 11.7 MB of gradients at 1 GB/s takes 11.7 ms.

# %%
guess = predict(
    "At 1 GB/s: by how many percent does your DDP shorten "
    "backward pass plus averaging?",
    low=0,
    high=75,
    unit="%",
)
guess


# %%
def on_a_gpu(model):
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            emulation.takes(layer, forward_s=2e-3, backward_s=4e-3)
    return model


machine = "ethernet-10g"  # emulated nodes on 10 Gb Ethernet, until set_network below
team = ranks.start(2, machine=machine)
team.push(
    perceptron=perceptron, on_a_gpu=on_a_gpu, my_ddp=lesson.check.written(my_ddp)
)

# %%
# %%ranks --timeout 120
import torch
import torch.distributed as dist

from workshop_lib import emulation, mnist

from lessons import ddp as lesson

lesson.process_group.join()
rank, size = dist.get_rank(), dist.get_world_size()
mine = mnist.load("train", None, rank, size)
images = torch.tensor(mine.images[:16]).float() / 255
labels = torch.tensor(mine.labels[:16]).long()


def all_ways():
    plain, network = on_a_gpu(perceptron()), on_a_gpu(perceptron())
    ways = {"after the backward pass": lesson.backward.averaged_after(plain)}
    ways["yours"] = network, my_ddp(network)
    for mebibytes in (4, 25):
        ways[f"DDP, {mebibytes} MiB"] = lesson.backward.pytorch_ddp(
            on_a_gpu(perceptron()), bucket_cap_mb=mebibytes
        )
    return ways


times_at = {}
for gb_per_s in (0.1, 0.3, 1, 3, 10, 30, 100):
    emulation.current().set_network(1e9 * gb_per_s)
    times_at[gb_per_s] = lesson.backward.compare(all_ways(), images, labels, turns=1)

# %%
times_at = team.pull("times_at")
saved = lesson.figures.saved_percent(times_at)
guess.compare(saved[1]["yours"], emulated_on=machine)

# %%
at_1 = [of_rank[1] for of_rank in times_at]
lesson.figures.typical_overlap(at_1, ranks=1, emulated_on=machine)

# %% [markdown]
# Each picture shows a step of rank 0. In the top one, as in notebook 02, the message leaves after the last gradient is ready.
# In the second, your messages travel while the backward pass is still busy, and most of them take no extra time. That's why
# gradients shouldn't wait. What still travels after the backward pass is nearly all from the first layer, because nothing is
# left to compute behind it.
#
# Why does DDP send fewer messages than you do? Because every message costs the network's latency. With your eight messages
# that hardly matters, but a network with hundreds of small gradients would pay it hundreds of times. So DDP collects gradients
# in *buckets*, in the order in which they become ready, and sends a bucket as soon as it's full (here, at 4 MiB). DDP never
# cuts a tensor, so a bucket may be larger. With buckets of 25 MiB, all gradients fit into one, and nothing overlaps. (If you
# set no size, DDP sends the first bucket as soon as it holds 1 MiB, so there is some overlap.) How much does overlap save on
# other networks?

# %%
lesson.figures.saved(times_at, machine)

# %% [markdown]
# Overlap saves most where sending takes about as long as the backward pass. At 100 GB/s there is hardly anything to hide. At
# 0.1 GB/s the link is busy from the first message to the last, so overlap can't hide much. What helps there is sending less
# often.
#
# *Try it:* what if the layers are twice as fast? Change the seconds in `on_a_gpu`, and run this section's cells again.
#
# *Break it:* let the hook of your `my_ddp` wait for its allreduce, and run this section's cells again. The gradients are still
# right, so what did you lose?
#
# ## When a batch doesn't fit
#
# A batch that doesn't fit into memory is split into *micro-batches*. You run the forward and the backward pass of each, let the
# gradients add up in `p.grad`, and take one optimizer step at the end. DDP would average after every micro-batch, although only
# the sum at the end matters. Inside `with model.no_sync():` it doesn't average, and the next backward pass outside averages
# what has added up. The forward pass has to run inside, too, because that's when DDP decides whether to average.
#
# ### Exercise 2 (warm-up): accumulate
#
# With this function you can train with any batch size. `model` is wrapped in DDP. `micro_batches` is a list of pairs `(inputs,
# targets)`, all of the same size. (If micro-batches hold different numbers of samples or tokens, you have to weight the mean,
# as in [02](02_synchronous_sgd.ipynb).) `loss_function(outputs, targets)` returns a mean loss. Afterwards the gradients must be
# those of the mean loss over *all* micro-batches of *all* ranks, with a single round of allreduces.
#
# <details><summary>Hint 1</summary>
#
# Which of the micro-batches has to communicate? And since `backward()` adds to the gradients that are already there,
# how do you turn the sum into a mean?
#
# </details><details><summary>Hint 2</summary>
#
# `contextlib.nullcontext()` is a context that does nothing, so `with a if condition else b:` chooses one. The forward and the
# backward pass both belong inside.
#
# </details><details><summary>Solution</summary>
#
# {solution of accumulate}
#
# </details>


# %%
def accumulate(model, micro_batches, loss_function):
    """Leave the gradients of the mean loss over all ranks' micro-batches in the model.

    One micro-batch in memory.
    """
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        last = number == len(micro_batches)
        # <solution>
        with contextlib.nullcontext() if last else model.no_sync():
            loss = loss_function(model(inputs), targets)
            (loss / len(micro_batches)).backward()
        # <stub>
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>


# %%
lesson.check.accumulate(accumulate)

# %% [markdown]
# What does your function save? The emulated GPUs run one step of four micro-batches at 0.1 GB/s, where overlap helps little.

# %%
team = ranks.start(2, machine=machine)
team.push(
    perceptron=perceptron,
    on_a_gpu=on_a_gpu,
    accumulate=lesson.check.written(accumulate),
)

# %%
# %%ranks --timeout 120
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from workshop_lib import emulation

from lessons import ddp as lesson

lesson.process_group.join()
rank = dist.get_rank()


def average_each_time(model, micro_batches, loss_function):
    for inputs, targets in micro_batches:
        loss = loss_function(model(inputs), targets)
        (loss / len(micro_batches)).backward()


emulation.current().set_network(1e8)
micro_batches = [(torch.rand(16, 784), torch.zeros(16).long()) for _ in range(4)]
for way in (average_each_time, accumulate):
    model, _ = lesson.backward.pytorch_ddp(on_a_gpu(perceptron()), bucket_cap_mb=4)
    ms, messages = lesson.backward.timed_step(model, way, micro_batches, cross_entropy)
    if rank == 0:
        print(f"{way.__name__}: {messages} messages, {ms:.0f} ms (emulated)")

# %% [markdown]
# The gradients are the same both times, up to rounding. If you forget `no_sync`, you get no error and no wrong number, only a
# slow run.
#
# *Beat it:* `my_ddp` has no `no_sync`. How few lines does it take to add one?
#
# ## What DDP doesn't do
#
# - It doesn't share out the data, and it doesn't change the learning rate, although the global batch grows with the ranks
#   ([07](07_large_batch.ipynb)).
# - It doesn't average losses or metrics. Add up sums and counts over the ranks, and divide last ([01](01_mpi_basics.ipynb)).
# - It doesn't average *buffers*, such as the running means of batch normalization. It sends rank 0's buffers to all ranks before
#   each forward pass ([02](02_synchronous_sgd.ipynb)).
# - It doesn't clip gradients. Clip them *after* the averaging, between `backward()` and the optimizer's step. All ranks hold the
#   same gradients then, so `torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)` does the same on all of them.
# - It doesn't notice weights that have drifted apart, or ranks that take different numbers of steps. Ranks with more steps would
#   wait for those that have finished. If you can't avoid that, train inside `with ddp.join():`.
# - It doesn't save memory. With Adam in fp32, each rank holds 20 bytes per parameter, and 16 with
#   `gradient_as_bucket_view=True`, which lets the gradients live in DDP's buckets. [06](06_zero_and_fsdp.ipynb) shows how the
#   ranks can divide these bytes among themselves.
#
# ## A clinic for sick runs
#
# Five people come to you and say, "My training runs, but something is off." None of them got an error message. You have what
# any run can give you: a timeline, the last losses, and a digest (a checksum) of the weights on each rank. The run on top is
# healthy. All of these runs train on four ranks. Their times are real; we only pretend that ranks 2 and 3 are on another host.
#
# Each step splits a rank's batch into two micro-batches, and averages the gradients once, as your `accumulate` does.

# %%
team = ranks.start(4)
patients = lesson.check.admit(team)
lesson.figures.steps(patients.timelines)

# %%
pd.DataFrame(patients.rows).set_index(["run", "rank"])

# %% [markdown]
# ### Exercise 3 (normal): the diagnosis
#
# Each of the five runs has a different one of these problems: `"sampler forgotten"` (every rank goes through all images),
# `"sharded by local rank"` (instead of by rank), `"one rank diverged"` (it began with different weights), `"one rank is slow"`,
# and `"no_sync forgotten"` (the ranks average after every micro-batch). Which is which? Replace the dots with your diagnoses.
#
# Compare the digests of a run's ranks with each other. A sick run's digests may differ from the healthy run's by rounding
# alone, because sums in another order are rounded differently. And on a busy machine, any rank may wait now and then. If it
# happens often, run the clinic again.
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
# A forgot `no_sync`: it sends two messages in each step, but the numbers are right, and all its ranks agree. In B, rank 3 has
# diverged: its digest differs. In C, nobody used a sampler: the losses are equal on all ranks, and there are four times as many
# steps. In D, rank 1 is slow: all other ranks wait for it. E was sharded by local rank: the losses are equal on ranks 0 and 2,
# and on 1 and 3, and there are twice as many steps.
#
# </details>

# %%
diagnoses = {
    # <solution>
    "A": "no_sync forgotten",
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
lesson.check.diagnoses(diagnoses)

# %% [markdown]
# *Beat it:* two of the five would have finished with the right weights, and nobody would ever have known. Which of the five would
# you notice in your own runs, and what would your script have to print for you to notice the rest?
#
# ## Deeper: on your own cores
#
# Now measure three ways to average in real time: in one message after the backward pass, as in notebook 02; with your hooks;
# and with PyTorch's DDP.

# %%
team = ranks.start(sizes.ranks)
team.push(
    perceptron=perceptron, my_ddp=lesson.check.written(my_ddp), turns=3 * sizes.repeats
)

# %%
# %%ranks
import torch
import torch.distributed as dist

from workshop_lib import mnist

from lessons import ddp as lesson

lesson.process_group.join()
rank, size = dist.get_rank(), dist.get_world_size()
mine = mnist.load("train", None, rank, size)  # this rank's part
images = torch.tensor(mine.images[:2000]).float() / 255
labels = torch.tensor(mine.labels[:2000]).long()

network = perceptron()
ways = {
    "after the backward pass": lesson.backward.averaged_after(perceptron()),
    "yours": (network, my_ddp(network)),
    "PyTorch's DDP": lesson.backward.pytorch_ddp(perceptron(), bucket_cap_mb=4),
}
times = lesson.backward.compare(ways, images[:256], labels[:256], turns)

# %%
lesson.figures.typical_overlap(team.pull("times"))

# %% [markdown]
# Each picture shows a typical step on the first two ranks. An orange bar begins when *this* rank sends, so it includes the time
# that the rank waits for the others. The messages overlap with the backward pass, as on the emulated GPUs. So is the step
# shorter? On CPUs, don't count on it: gloo's threads use the cores that the backward pass needs. On a GPU, a collective of NCCL
# is a kernel that takes a few of the multiprocessors. The links carry the bytes, and most of the GPU goes on computing.
#
# ## Deeper: convert a script
#
# ### Exercise 4 (normal): the script for many processes
#
# After this exercise, you can make your own training scripts run on many processes. The script below already joins the process
# group and measures the speed, but its five numbered parts are still those of `one_process.py`. Make the processes train one
# network together: each takes 64 images *of its own* in every step and tests its own share of the test images, and only rank 0
# prints and saves.
#
# <details><summary>Hint 1: who needs what?</summary>
#
# Part 1: which rank trains on which images, and which rank tests which? Part 2: what averages the gradients? Part 3: what does
# the sampler need in each epoch? Part 4: which model computes the loss from now on? Part 5: where does the total come from, and
# who prints it?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `DistributedSampler(train, seed=1)`, which goes into `DataLoader(…, sampler=sampler)` in place of `shuffle=True`;
# `Subset(test, range(rank, len(test), size))`, which repeats no image; `DistributedDataParallel(model)`;
# `sampler.set_epoch(epoch)`; `dist.all_reduce(right)`, which adds up in place, on every rank; `if rank == 0:`.
#
# </details><details><summary>Solution</summary>
#
# {solution of my_script.py}
#
# </details>

# %%
folder = lesson.check.folder_for_scripts()

# %%
# %%writefile {folder}/my_script.py
import time

import torch
import torch.distributed as dist
from ddp import BATCH, count_right, join, parse_arguments, save
from mnist_data import MNIST, cnn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset


def main():
    args = parse_arguments()
    device = join()  # calls init_process_group, and returns this rank's own device
    rank = dist.get_rank()
    size = dist.get_world_size()
    torch.set_num_threads(1)  # one core per process

    train = MNIST(args.data, "train", args.images)
    test = MNIST(args.data, "test")
    # 1. My images, for training and for testing
    # <solution>
    sampler = DistributedSampler(train, seed=1)
    loader = DataLoader(train, BATCH, sampler=sampler, drop_last=True)
    test_loader = DataLoader(Subset(test, range(rank, len(test), size)), batch_size=500)
    # <stub>
    # loader = DataLoader(train, BATCH, shuffle=True, drop_last=True)  # your code here
    # test_loader = DataLoader(test, batch_size=500)
    # </stub>
    # </solution>
    steps = len(loader)

    torch.manual_seed(1)
    # 2. Wrap the network, so that its gradients are averaged
    model = cnn().to(device)
    # <solution>
    ddp = DistributedDataParallel(model)
    # <stub>
    # ...  # your code here
    # </stub>
    # </solution>
    # From here on, each rank draws noise of its own, such as dropout's.
    torch.manual_seed(1000 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    # The learning rate rises for half an epoch, then falls to zero.
    warmup = steps // 2
    total = args.epochs * steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, (total - step) / (total - warmup)),
    )

    for epoch in range(1, args.epochs + 1):
        model.train()
        # 3. Each epoch has an order of its own
        # <solution>
        sampler.set_epoch(epoch)
        # <stub>
        # ...  # your code here
        # </stub>
        # </solution>
        start = time.perf_counter()
        for images, labels in loader:
            # 4. The loss
            # <solution>
            loss = cross_entropy(ddp(images.to(device)), labels.to(device))
            # <stub>
            # # your code here
            # loss = cross_entropy(model(images.to(device)), labels.to(device))
            # </stub>
            # </solution>
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        loss.item()  # waits until a GPU has finished its work
        # Images per second, all ranks together
        speed = steps * size * BATCH / (time.perf_counter() - start)
        # Rank 0's buffers, such as the statistics of batch normalization, on all ranks
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
        # 5. Test, print and save
        right = count_right(model, test_loader, device)
        # <solution>
        dist.all_reduce(right)
        if rank == 0:
            print(
                f"epoch {epoch}: {speed:,.0f} images/s, "
                f"test accuracy {right.item() / len(test):.2%}"
            )
            save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                args.out,
            )
        # <stub>
        # # your code here
        # print(
        #     f"epoch {epoch}: {speed:,.0f} images/s, "
        #     f"test accuracy {right.item() / len(test):.2%}"
        # )
        # save(
        #     {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        #     args.out,
        # )
        # </stub>
        # </solution>
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# %%
lesson.check.script(folder / "my_script.py")

# %% [markdown]
# Now start your script. (While parts of it are open, this cell starts the finished script.)

# %%
scripts.run(
    *launch,
    lesson.check.own_or_finished(folder / "my_script.py"),
    *options,
    timeout_s=sizes.timeout_s,
)

# %% [markdown]
# *Break it:* take the same images on every rank, with `DistributedSampler(train, size, 0, seed=1)`. Training still runs, the
# loss falls, and nobody complains. What does the check see that you wouldn't?
#
# ## Deeper: buckets
#
# Which gradients travel together? Let's ask PyTorch's DDP.

# %%
team.push(perceptron=perceptron)
guess = predict(
    "In how many buckets does DDP send our four layers, "
    "if you don't set bucket_cap_mb?",
    low=1,
    high=10,
)
guess

# %% [markdown]
# A *communication hook* is a function that DDP calls for each full bucket, instead of its own allreduce. This hook takes notes,
# and leaves the averaging to PyTorch's `allreduce_hook`.

# %%
# %%ranks
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from lessons import ddp as lesson

lesson.process_group.join()
rank = dist.get_rank()


def buckets(cap):
    """The size and the parameters of each bucket, in the order of sending."""
    network = perceptron()
    names = {p: name for name, p in network.named_parameters()}
    sent = []

    def hook(group, bucket):
        inside = ", ".join(names[p] for p in bucket.parameters())
        sent.append(f"{bucket.buffer().nbytes / 2**20:.2f} MiB: {inside}")
        return default_hooks.allreduce_hook(group, bucket)

    model = DistributedDataParallel(network, bucket_cap_mb=cap)
    model.register_comm_hook(None, hook)
    # In its first step, DDP only learns in which order the gradients become ready.
    for _ in range(2):
        sent.clear()
        model(torch.ones(1, 784)).sum().backward()
    return sent


by_default = buckets(None)

# %%
guess.compare(len(team.pull("by_default")[0]))

# %%
# %%ranks
for cap in (None, 25, 4, 0.01):
    layout = buckets(cap)
    if rank == 0:
        print(f"bucket_cap_mb={cap}", *layout, sep="\n    ")

# %% [markdown]
# - If you don't set a cap, it's 25 MiB, but the first bucket is sent as soon as it holds 1 MiB, so that sending starts early. If
#   you write out `bucket_cap_mb=25`, there's no such exception.
# - All ranks send their buckets in rank 0's order. Otherwise an allreduce could add up different layers.
#
# ## Deeper: when ranks take different branches
#
# DDP waits for *every* gradient of a bucket. This network has a part that only rank 0 uses in this step. On the other ranks that
# part never gets a gradient, so they never send its bucket, and rank 0 waits for them. (This cell fails on purpose, after a few
# seconds.)


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
print(f"rank {rank} is done")

# %% [markdown]
# If the other ranks had gone on to their next step, they would have raised "Expected to have finished reduction in the prior
# iteration". The remedy is `find_unused_parameters=True`: after each forward pass, DDP looks for parameters that the outputs
# don't depend on, and doesn't wait for their gradients. This search takes time, so it's off by default. To try it we need new
# ranks.

# %%
team = ranks.start(4)
team.push(TwoPaths=TwoPaths)

# %%
# %%ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lessons import ddp as lesson

lesson.process_group.join()
rank = dist.get_rank()
model = DistributedDataParallel(TwoPaths(), find_unused_parameters=True)
model(torch.ones(2, 4), both=rank == 0).sum().backward()
if rank == 0:
    print(
        "gradient of the bias that only rank 0 used: "
        f"{model.module.sometimes.bias.grad.tolist()}"
    )

# %% [markdown]
# On rank 0 alone these numbers would be 2, because each of the two samples adds 1. Here they are the mean over four ranks, and
# a rank that didn't use the parameter counts as zero. (The warning is for rank 0, which used all parameters.)
#
# ## Remember
#
# - From one process to many: join the group, take your own GPU, wrap the model, and take your own samples, in a new order in each
#   epoch. One rank prints and saves.
# - A hook can send each gradient while the backward pass computes the next one. That saves most where sending takes about as
#   long as the backward pass.
# - When you accumulate gradients, average them only once. Clip gradients after they have been averaged.
# - A run can be sick without raising an error. At least once, compare the ranks' losses, digests and timelines.
#
# **Take it home:** [scripts/ddp.py](scripts/ddp.py), and [scripts/trainer.py](scripts/trainer.py), which also
# accumulates, clips, and resumes.
#
# **Sources.** S. Li et al., [*PyTorch Distributed*](https://arxiv.org/abs/2006.15704), for buckets, overlap, `no_sync` and
# unused parameters. PyTorch's documentation of
# [DDP](https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html) and of
# [torchrun](https://pytorch.org/docs/stable/elastic/run.html), its [overview of distributed
# training](https://pytorch.org/tutorials/beginner/dist_overview.html), and the source of version 2, for the first bucket.

# %%
ranks.stop()
