# %% [markdown] track="core path"
# # DDP: averaging while the backward pass runs
#
# In notebook 02 each step ran the backward pass, and *then* averaged the gradients. But the gradient of the last layer is ready
# long before that of the first layer. Why should it wait? PyTorch's `DistributedDataParallel`, DDP for short, sends gradients as
# soon as they're ready, while the backward pass is still computing others. You can write that yourself in a dozen lines.
#
# **You will** turn a script for one process into one for many and start it with `torchrun`, write DDP yourself, and watch its
# messages travel. Then you'll know what DDP does, and what it leaves to you.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first, where you average gradients by hand.

# %%
import contextlib

import pandas as pd
import torch
import torch.distributed as dist

from workshop_lib import paths, predict, profile, ranks, scripts

from lessons import ddp as lesson

sizes = profile.current()
folder = lesson.check.folder_for_scripts()
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## How do processes find each other?
#
# MPI's ranks know each other from the start, because `mpiexec` starts them together. A process of PyTorch has to learn its
# rank, the number of ranks, and an address where all of them meet. `torchrun` puts these into environment variables, and a
# single call reads them: `dist.init_process_group("gloo")`. In this notebook, `lesson.process_group.join()` makes that call for you.

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
# carries them between NVIDIA GPUs. MPI's `Allreduce` is `dist.all_reduce(tensor)` here, which replaces `tensor` by the sum, and
# `Bcast` is `dist.broadcast(tensor, src=0)`. (*Deeper: several hosts* shows what to do if `mpiexec` or `srun` starts
# your processes.)
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
# [one_process.py](scripts/one_process.py) is a plain script for one process. The data and the network come from a second file,
# [mnist_data.py](scripts/mnist_data.py), where you'd put your own.

# %%
samples = sizes.sweep_samples or 60_000
options = ["--data", paths.MNIST, "--images", samples, "--epochs", 1]
options += ["--out", folder / "cnn.pt"]
scripts.run(
    "python", paths.SCRIPTS / "one_process.py", *options, timeout_s=sizes.timeout_s
)

# %% [markdown]
# ### Exercise 1 (normal): the script for many processes
#
# With these changes, your own training scripts can run on many processes. Every process runs the whole script, and few lines have
# to change. In the script below, the process group and the speed are done, and five numbered parts are still those of
# `one_process.py`. Make the processes train one network together: each takes 64 images *of its own* in every step and tests its
# own share of the test images, and only rank 0 prints and saves.
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
# Now start your script. (While parts of it are open, this cell starts the finished script.) To do the same in a terminal, go to
# the workshop's folder, type `source .venv/bin/activate`, and then the line that begins with `$`. If your ranks are on several
# hosts, this only starts those of one host, and *Deeper: several hosts* has the command for all of them.

# %%
launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1"]
launch += ["--nproc-per-node", sizes.ranks_here]
scripts.run(
    *launch,
    lesson.check.own_or_finished(folder / "my_script.py"),
    *options,
    timeout_s=sizes.timeout_s,
)

# %% [markdown]
# Is your accuracy lower than with one process? That isn't a bug. Two processes take 128 images per step, so an epoch has half
# as many steps, and after so few of them the network has learned less. [07](07_large_batch.ipynb) is about this. And is the speed
# less than twice that of one process? Then messages took the rest, or the slower of the two ranks, or another program: a single
# run can't tell which ([08](08_scaling_curves.ipynb)). If it's more than twice, something slowed down the single process.
#
# The finished script is [scripts/ddp.py](scripts/ddp.py). Five lines in it are easily forgotten:
#
# | line | why |
# |---|---|
# | `set_device_index(…)`, in its `join()` | the ranks of one host are also numbered among themselves, from 0. This *local rank* chooses the GPU. With a plain `"cuda"`, all of them would share GPU 0 |
# | `@record`, above `main()` | if a rank fails, `torchrun` prints its traceback |
# | `torch.manual_seed(1000 + rank)` | with one seed, dropout would drop the same units on all ranks. This network has no dropout, but yours may |
# | `dist.broadcast(buffer, 0)` | each rank has statistics of batch normalization from its own images. All ranks should test the network that rank 0 saves |
# | `save(…)` of `model`, not of `ddp` | the network inside the wrapper tests without sending messages, and saves its weights under their own names |
#
# *Break it:* take the same images on every rank, with `DistributedSampler(train, size, 0, seed=1)`. Training still runs, the
# loss falls, and nobody complains. What does the check see that you wouldn't?
#
# ## Write DDP yourself
#
# *Autograd* is PyTorch's machinery for derivatives. It can call a function of yours, a *hook*, each time it has finished the
# gradient of a parameter. Which gradient comes first? Here is a network of four linear layers. (Their numbers count the ReLUs
# between them, too.) It's larger than MNIST needs, so there is something to send.


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
# ### Exercise 2 (hard): your own DDP
#
# Write `my_ddp`. It prepares a model once, and from then on `backward()` does the sending. It returns a function `finish()`,
# which the training loop calls between `backward()` and `optimizer.step()`. You have to get three things right:
#
# - All ranks start with the weights of rank 0.
# - Each gradient leaves as soon as it's ready, in a message of its own, and no hook waits for another rank.
# - When `finish()` returns, every `p.grad` is the mean over the ranks, in every step.
#
# Every parameter is trained. But in some steps, a parameter may get no gradient, and then it gets none on any rank. Its hook
# doesn't run then, and you don't have to do anything about it.
#
# <details><summary>Hint 1: an allreduce that doesn't wait</summary>
#
# `dist.all_reduce(tensor)` adds up `tensor` over all ranks, in place, and waits until that's done. With `async_op=True` it
# returns at once, with a handle. The sum is only ready after the handle's `wait()`. (With NCCL, `wait()` doesn't stop your
# program. It only makes the GPU's next operations wait.) So who keeps the handles, and who waits?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# A list outside of both functions. Hook `send(p)`: divide `p.grad` by `dist.get_world_size()`, start `all_reduce`, keep its
# handle. `finish()`: wait for all handles, and empty the list for the next step. Then for each parameter
# `dist.broadcast(p.detach(), src=0)` and `p.register_post_accumulate_grad_hook(send)`. (NCCL and newer versions of gloo can
# average by themselves, with `dist.ReduceOp.AVG`. Dividing first works everywhere.)
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
# *Break it:* wait inside the hook instead of in `finish`. The gradients are still right, so what did you lose?
#
# ## Does it overlap?
#
# Let's watch three ways to average: in one message after the backward pass, as in notebook 02; yours; and PyTorch's DDP, with a
# hook that notes when its messages leave. (Until you've written `my_ddp`, `written` puts the solution in its place.)

# %%
team.push(
    perceptron=perceptron, my_ddp=lesson.check.written(my_ddp), turns=3 * sizes.repeats
)

# %%
# %%ranks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from workshop_lib import mnist

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
# that the rank waits for the others. In the top picture, the message leaves after the last gradient is ready. In the other two,
# messages travel while the backward pass is still busy.
#
# So is the step shorter? On CPUs, don't count on it: gloo's threads use the cores that the backward pass needs. On a GPU, a
# collective of NCCL is a kernel that takes a few of the multiprocessors. The links carry the bytes, and most of the GPU goes on
# computing.
#
# And why does DDP send fewer messages than you do? With one message per gradient, you pay the latency many times. A single
# message can only leave at the end. DDP is in between: it collects gradients in *buckets*, in the order in which they become
# ready, and sends a bucket as soon as it's full, here at 4 MiB. A tensor is never cut, so a bucket may be larger.
#
# ## What would GPUs gain?
#
# Your cores can't show what DDP was built for, but they can *emulate* it. The next ranks are real processes again, with your
# hooks, DDP's buckets, and real messages. Only time is borrowed: each rank carries a clock, and computing moves
# that clock on by what a GPU would take. A message carries its sender's time, and it arrives when the emulated network would have
# delivered it. `time.perf_counter()` reads this clock, so your hooks and the code that times them stay as they are, and
# the times are the same however busy your machine is.
#
# These two ranks emulate two imagined nodes with one GPU each. We say that every `Linear` layer takes 2 ms forward and 4 ms backward, and
# everything else no time. These times are made up: what counts is the ratio of 16 ms of backward pass to 11.7 MB of gradients,
# which take 11.7 ms at 1 GB/s. What do DDP's buckets of 4 MiB save, at three bandwidths?

# %%
guess_1 = predict(
    "At 1 GB/s: what share of backward pass and averaging does DDP save?",
    low=0,
    high=75,
    unit="%",
)
guess_1

# %%
guess_10 = predict("And at 10 GB/s?", low=0, high=75, unit="%")
guess_10

# %%
guess_100 = predict("And at 100 GB/s?", low=0, high=75, unit="%")
guess_100

# %%
machine = "ethernet-10g"
team = ranks.start(2, machine=machine)
team.push(perceptron=perceptron, my_ddp=lesson.check.written(my_ddp))

# %%
# %%ranks --timeout 120
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from workshop_lib import emulation, mnist

from lessons import ddp as lesson

lesson.process_group.join()
rank, size = dist.get_rank(), dist.get_world_size()
mine = mnist.load("train", None, rank, size)
images = torch.tensor(mine.images[:2000]).float() / 255
labels = torch.tensor(mine.labels[:2000]).long()


def on_a_gpu(model):
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            emulation.takes(layer, forward_s=2e-3, backward_s=4e-3)
    return model


def all_ways():
    network = on_a_gpu(perceptron())
    ways = {
        "after the backward pass": lesson.backward.averaged_after(
            on_a_gpu(perceptron())
        )
    }
    ways["yours"] = network, my_ddp(network)
    for mebibytes in (4, 8, 25):
        ways[f"DDP, {mebibytes} MiB"] = lesson.backward.pytorch_ddp(
            on_a_gpu(perceptron()), bucket_cap_mb=mebibytes
        )
    return ways


times_at = {}
for gb_per_s in (0.1, 0.3, 1, 3, 10, 30, 100):
    emulation.current().set_network(1e9 * gb_per_s)
    times_at[gb_per_s] = lesson.backward.compare(
        all_ways(), images[:16], labels[:16], turns=1
    )

# %%
times_at = team.pull("times_at")
saved = lesson.figures.saved_percent(times_at)
guess_1.compare(saved[1]["DDP, 4 MiB"], emulated_on=machine)

# %%
guess_10.compare(saved[10]["DDP, 4 MiB"], emulated_on=machine)

# %%
guess_100.compare(saved[100]["DDP, 4 MiB"], emulated_on=machine)

# %% [markdown]
# Look into each of these runs. What remains at 1 GB/s, whatever the buckets are? And at 0.1?

# %%
lesson.sliders.overlap(times_at, machine)

# %%
lesson.figures.saved(times_at, machine)

# %% [markdown]
# Overlap saves most where sending takes about as long as the backward pass. The first layer's message always remains, because
# nothing is left to compute behind it. At 0.1 GB/s the link is busy from the first message on, so the messages decide.
# With buckets of 25 MiB, all gradients fit into one, and nothing overlaps. (If you set no size, DDP first sends a bucket of 1 MiB,
# so something does.)
#
# Above which bandwidth is overlap no longer worth it? Say that it has to save at least 5 %:

# %%
{way: [gb_per_s for gb_per_s in saved if saved[gb_per_s][way] >= 5] for way in saved[1]}

# %% [markdown]
# *Try it:* and if the layers are twice as fast? Change the seconds in `on_a_gpu`, and run the cells again. These ranks emulate
# the two nodes until the next `ranks.start`.
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
# - It doesn't save memory. With Adam in fp32, each rank holds 20 bytes per parameter, and 16 with `gradient_as_bucket_view=True`,
#   which lets the gradients live in DDP's buckets. [06](06_zero_and_fsdp.ipynb) shows how the ranks can split these.
#
# ## Deeper: does it train like PyTorch's?
#
# Compare the digests of the weights after training with your DDP and with PyTorch's, as in notebook 02.


# %%
# %%ranks
from hashlib import sha256

from torch.utils.data import TensorDataset


def train(model, finish):
    """One epoch on this rank's images. Returns a digest of the weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for inputs, targets in DataLoader(TensorDataset(images, labels), batch_size=64):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        finish()
        optimizer.step()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return sha256(weights).hexdigest()[:12]


network = perceptron(width=64)
print("yours:  ", train(network, my_ddp(network)))
print(
    "PyTorch:",
    train(DistributedDataParallel(perceptron(width=64)), finish=lambda: None),
)

# %% [markdown]
# The digests agree. On two ranks, your dozen lines and DDP take the same steps, to the last bit. (With more ranks, the last bits
# may differ, because the sums are taken in another order.)
#
# ## Deeper: buckets
#
# Which gradients travel together?

# %%
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
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


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
        cross_entropy(model(images[:64]), labels[:64]).backward()
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
# - All ranks send their buckets in the order of rank 0. Otherwise an allreduce could add up different layers.
#
# ### Exercise 3 (hard): buckets of your own
#
# `my_buckets` does what `my_ddp` does, with fewer messages. Collect gradients in the order in which they become ready, and send
# them together as soon as they add up to at least `bucket_bytes` bytes. The check counts messages.
#
# <details><summary>Hint 1: what changes</summary>
#
# The hook now collects gradients, and sometimes calls a function that sends them. A message is now a new flat tensor, so
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
    """`my_ddp` with messages of at least `bucket_bytes` each, except for the last.

    Returns `finish`.
    """
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
            for p, part in zip(
                parameters, flat.split([p.numel() for p in parameters]), strict=True
            ):
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
lesson.check.my_buckets(my_buckets)

# %%
team.push(my_buckets=lesson.check.written(my_buckets))

# %%
# %%ranks
emulation.current().set_network(1e9)
ways = {
    "PyTorch's DDP, 4 MiB": lesson.backward.pytorch_ddp(
        on_a_gpu(perceptron()), bucket_cap_mb=4
    )
}
for mebibytes in (0.01, 4, 1000):
    network = on_a_gpu(perceptron())
    ways[f"your buckets, {mebibytes} MiB"] = (
        network,
        my_buckets(network, mebibytes * 2**20),
    )
bucket_times = lesson.backward.compare(ways, images[:16], labels[:16], turns=1)

# %%
lesson.figures.typical_overlap(team.pull("bucket_times"), ranks=1, emulated_on=machine)

# %% [markdown]
# *Beat it:* which `bucket_bytes` is fastest here?
#
# ## Deeper: accumulating gradients
#
# When a batch doesn't fit into memory, you split it into *micro-batches*. You run the forward and the backward pass of each,
# let the gradients add up in `p.grad`, and take one optimizer step at the end. DDP would average after every micro-batch,
# although only the sum at the end matters. Inside `with model.no_sync():` it doesn't average, and the next backward pass
# outside averages what has added up.
#
# ### Exercise 4 (normal): accumulate
#
# With this function you can train with any batch size. `model` is wrapped in DDP. `micro_batches` is a list of pairs `(inputs,
# targets)`, all of the same size. (If they hold different numbers of samples or tokens, the mean has to be weighted, as in
# [02](02_synchronous_sgd.ipynb).) `loss_function(outputs, targets)` returns a mean loss. Afterwards the gradients must be those
# of the mean loss over *all* micro-batches of *all* ranks, with a single round of allreduces.
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
lesson.check.accumulate(accumulate)

# %% [markdown]
# *Beat it:* `my_ddp` has no `no_sync`. How few lines does it take to add one?
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
# ranks, and the clinic below needs four.

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
# the ranks that didn't use the parameter count as zeros. (The warning is for rank 0, which used all parameters.)
#
# ## Deeper: a clinic for sick runs
#
# Five people come to you and say, "My training runs, but something is off." None of them got an error message. You have what
# any run can give you: a timeline, the last losses, and a digest of the weights on each rank. The run on top is healthy. All of
# these runs train on four ranks. Their times are real; we only pretend that ranks 2 and 3 are on another host.

# %%
patients = lesson.check.admit(team)
lesson.figures.steps(patients.timelines)

# %%
pd.DataFrame(patients.rows).set_index(["run", "rank"])

# %% [markdown]
# ### Exercise 5 (normal): the diagnosis
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
lesson.check.diagnoses(diagnoses)

# %% [markdown]
# *Beat it:* two of the five would have finished with the right weights, and nobody would ever have known. Which of the five would
# you notice in your own runs, and what would your script have to print for you to notice the rest?
#
# ## Deeper: several hosts
#
# `torchrun --standalone` starts processes on one host only. On several hosts, run `torchrun` once on each host, always with the
# address of the same one, here `node0`, and with the number of processes of *one* host:
#
# ```
# torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint node0:29500 ddp.py
# ```
#
# For each process, `torchrun` sets five environment variables that `init_process_group` and scripts read, and some more. If you
# let `srun` start *all* processes, your job script has to set these five:
#
# ```bash
# export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# export MASTER_PORT=29500
# srun --export=ALL bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID python ddp.py'
# ```
#
# If `mpiexec` starts the processes, put these lines at the top of your script:
#
# ```python
# import os
# import socket
#
# from mpi4py import MPI
#
# comm = MPI.COMM_WORLD
# same_host = comm.Split_type(MPI.COMM_TYPE_SHARED)
# with socket.create_server(("", 0)) as free:
#     port = free.getsockname()[1]
# address, port = comm.bcast((socket.gethostname(), port))
# os.environ["MASTER_ADDR"] = address
# os.environ["MASTER_PORT"] = str(port)
# os.environ["RANK"] = str(comm.rank)
# os.environ["WORLD_SIZE"] = str(comm.size)
# os.environ["LOCAL_RANK"] = str(same_host.rank)
# ```
#
# `LOCAL_RANK` numbers the ranks of a host. Scripts choose their GPU with it, and many of them crash if it isn't set.
# [10_compute_nodes](10_compute_nodes.ipynb) has a whole job script.
#
# With gloo, a collective waits 30 minutes for a missing rank; with NCCL, 10 minutes; in this notebook, 60 seconds. If your
# ranks wait longer on purpose, for example while rank 0 prepares the data, pass a longer `timeout` to `init_process_group`.
#
# `torchrun` can also be *elastic*, and start all processes again when one of them fails
# ([13b](13b_runs_that_survive.ipynb)).
#
# ## Remember
#
# - From one process to many: join the group, take your own GPU, wrap the model, and take your own samples, in a new order in each
#   epoch. One rank prints and saves.
# - Clip gradients after they have been averaged. When you accumulate gradients, average them only once.
# - Every rank must take the same steps and use the same parameters, or you must tell DDP about it.
# - Runs can be sick without an error. Compare losses and digests between ranks, at least once.
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
