# %% [markdown] track="your own script"
# # Your own script
#
# You have a training script that works, and tomorrow you get a node with eight GPUs. You add the lines for DDP, the script
# runs, and the loss falls. How do you know that it's right? Most mistakes in such a script raise no error. You just get a
# slightly worse model, and nobody finds out why.
#
# **You will** convert a realistic script for many processes, guided by a report on what's still wrong with it. Then you'll
# find six silent faults in somebody else's script, and learn to examine your own.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no network; no GPU, or at least
# two. (With one, start JupyterLab with `CUDA_VISIBLE_DEVICES=`.) Do notebook [05](05_ddp.ipynb) first, where you convert a
# simpler script with hints.

# %%
from workshop_lib.lessons.your_own_script import judge as check
from workshop_lib.lessons.your_own_script.report import accuracies, examine
from workshop_lib.notebook import profile, take_home
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, MNIST, SCRIPTS

sizes = profile.current()
quick = sizes.name == "quick"
seeds = 2 if quick else 3
images, test_images = (1_500, 999) if quick else (4_000, 1_999)
options = ["--data", MNIST, "--images", images, "--tested", test_images, "--epochs", 3]
folder = BUILD / "15_your_own_script"
check.data_beside(folder)

# %% [markdown]
# ## What one process reaches
#
# [own_script.py](scripts/own_script.py) trains a small network on MNIST, with randomly shifted images, batch normalization,
# dropout, a learning-rate schedule, a progress bar and a checkpoint. How accurate does it get? That depends on the seed, so
# you need more than one run:

# %%
arguments = [*options, "--out", folder / "one.pt"]
alone = accuracies("python", SCRIPTS / "own_script.py", *arguments, seeds=seeds, timeout_s=sizes.timeout_s)
print(*(f"{accuracy:.2f} %" for accuracy in alone))

# %% [markdown]
# Two processes should get there, too. `examine` starts a script with `torchrun`, watches what every rank does, and reports what it
# has seen. *Wrong* is certain. *Look* means that you have to decide. It takes as long as the script, here some 15 seconds.

# %% [markdown]
# ### Exercise 1 (hard): convert it
#
# Change the script until each rank trains on its part of every batch, the report calls nothing *wrong* or worth a *look*,
# and one process could load the checkpoint.
#
# Run the script's cell and the report's, fix what the report names first, and repeat. The report gets longer before it gets
# shorter, because some mistakes only show once others are gone.
#
# Two things are new since [05](05_ddp.ipynb). Random numbers: ranks should draw different ones, but build the same network, so
# reseed each rank *after* the network is built. Batch normalization: its statistics are *buffers*. Before each forward pass,
# DDP overwrites every rank's with rank 0's. After the last step they differ again, and you test with them.
#
# The report can't judge two things. First, keep the global batch: one process takes 64 images per step, so how many does each
# rank take? Second, decide which printed numbers should count the images of all ranks. The check can't tell whether your loss is
# rank 0's.
#
# <details><summary>Hint 1: the order</summary>
#
# Join the process group. Wrap the network. Give each rank its own images, in a new order every epoch. Test each image once, and
# add up what the ranks counted. Print and save on one rank. Then see what the report says about random numbers and batch
# normalization.
#
# </details><details><summary>Hint 2: what 05 didn't have</summary>
#
# `torch.manual_seed(1000 * args.seed + rank)` after the line that wraps the network. `dist.broadcast(buffer, 0)` for each of
# `model.buffers()` before you test. (On GPUs, `SyncBatchNorm.convert_sync_batchnorm` normalizes over the images of all ranks
# instead.) Loss: add it up over the ranks before one of them prints it.
#
# </details><details><summary>Solution</summary>
#
# It's [own_script_ddp.py](scripts/own_script_ddp.py). `take_home.diff("own_script.py", "own_script_ddp.py")` in a new cell shows
# everything that changes.
#
# </details>

# %%
# %%writefile {folder}/train.py
# <solution>
"""own_script.py for many processes. Start it with: torchrun --standalone --nproc-per-node 2 own_script_ddp.py"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from mnist_data import MNIST, MNIST_FOLDER, mnist_folder
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from tqdm import tqdm

BATCH = 64  # images per step, on all ranks together
LR = 0.1


class Shifted(MNIST):
    """MNIST, with each image moved by up to two pixels."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        shift = torch.randint(-2, 3, (2,)).tolist()
        return image.roll(shift, (1, 2)), label


def network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(256, 10),
    )  # fmt: skip


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--images", type=int, default=6_000, help="training images")
    parser.add_argument("--tested", type=int, default=1_999, help="test images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("own.pt"), help="file for the checkpoint")
    return parser.parse_args()


def join():
    """Join the other ranks, and return this rank's own device: a GPU of its node, or the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":  # Apple's GPUs have no collectives
        dist.init_process_group("gloo")
        return torch.device("cpu")
    local_rank = dist.get_node_local_rank(fallback_rank=int(os.environ["RANK"]))
    device = torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group(device_id=device)
    return device


def main():
    args = parse_arguments()
    device = join()
    rank = dist.get_rank()
    size = dist.get_world_size()
    torch.set_num_threads(1)

    torch.manual_seed(args.seed)
    model = network().to(device)
    ddp = DistributedDataParallel(model)
    torch.manual_seed(1000 * args.seed + rank)  # from here on, each rank draws noise of its own
    loss_function = nn.CrossEntropyLoss()

    train = Shifted(args.data, "train", args.images)
    test = MNIST(args.data, "test", args.tested)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, BATCH // size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(Subset(test, range(rank, len(test), size)), 500)

    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, epochs=args.epochs, steps_per_epoch=len(loader))

    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        model.train()
        loss_sum = torch.zeros((), device=device)
        for images, labels in tqdm(loader, desc=f"epoch {epoch}", disable=None if rank == 0 else True):
            loss = loss_function(ddp(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            loss_sum += loss.detach()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / (size * len(loader))

        for buffer in model.buffers():  # the statistics of batch normalization: rank 0's on all ranks
            dist.broadcast(buffer, 0)
        model.eval()
        right = torch.zeros((), device=device)
        with torch.no_grad():
            for images, labels in test_loader:
                guesses = model(images.to(device)).argmax(1)
                right += (guesses == labels.to(device)).sum()
        dist.all_reduce(right)
        accuracy = right.item() / len(test)

        if rank == 0:
            print(f"epoch {epoch}: loss {mean_loss:.3f}, accuracy {accuracy:.2%}")
            torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
# <stub>
# # This is own_script.py so far: your code here
# """MNIST in one process, as people write such scripts. Start it with: python own_script.py"""
#
# import argparse
# from pathlib import Path
#
# import torch
# from mnist_data import MNIST, MNIST_FOLDER, mnist_folder
# from torch import nn
# from torch.utils.data import DataLoader
# from tqdm import tqdm
#
# BATCH = 64
# LR = 0.1
#
#
# class Shifted(MNIST):
#     """MNIST, with each image moved by up to two pixels."""
#
#     def __getitem__(self, index):
#         image, label = super().__getitem__(index)
#         shift = torch.randint(-2, 3, (2,)).tolist()
#         return image.roll(shift, (1, 2)), label
#
#
# def network():
#     return nn.Sequential(
#         nn.Conv2d(1, 8, 5, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
#         nn.Conv2d(8, 16, 5, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
#         nn.Flatten(), nn.Dropout(0.25), nn.Linear(256, 10),
#     )  # fmt: skip
#
#
# def parse_arguments():
#     parser = argparse.ArgumentParser(description=__doc__)
#     parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
#     parser.add_argument("--images", type=int, default=6_000, help="training images")
#     parser.add_argument("--tested", type=int, default=1_999, help="test images")
#     parser.add_argument("--epochs", type=int, default=3)
#     parser.add_argument("--seed", type=int, default=1)
#     parser.add_argument("--out", type=Path, default=Path("own.pt"), help="file for the checkpoint")
#     return parser.parse_args()
#
#
# def main():
#     args = parse_arguments()
#     device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
#     torch.set_num_threads(1)
#
#     torch.manual_seed(args.seed)
#     model = network().to(device)
#     loss_function = nn.CrossEntropyLoss()
#
#     train = Shifted(args.data, "train", args.images)
#     test = MNIST(args.data, "test", args.tested)
#     loader = DataLoader(train, BATCH, shuffle=True, drop_last=True)
#     test_loader = DataLoader(test, 500)
#
#     optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9)
#     schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, epochs=args.epochs, steps_per_epoch=len(loader))
#
#     for epoch in range(1, args.epochs + 1):
#         model.train()
#         loss_sum = torch.zeros((), device=device)
#         for images, labels in tqdm(loader, desc=f"epoch {epoch}", disable=None):
#             loss = loss_function(model(images.to(device)), labels.to(device))
#             optimizer.zero_grad()
#             loss.backward()
#             optimizer.step()
#             schedule.step()
#             loss_sum += loss.detach()
#         mean_loss = loss_sum.item() / len(loader)
#
#         model.eval()
#         right = torch.zeros((), device=device)
#         with torch.no_grad():
#             for images, labels in test_loader:
#                 guesses = model(images.to(device)).argmax(1)
#                 right += (guesses == labels.to(device)).sum()
#         accuracy = right.item() / len(test)
#
#         print(f"epoch {epoch}: loss {mean_loss:.3f}, accuracy {accuracy:.2%}")
#         torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
#
#
# if __name__ == "__main__":
#     main()
# </stub>
# </solution>

# %%
checkpoint = folder / "train.pt"
checkpoint.unlink(missing_ok=True)
report = examine(folder / "train.py", *options, "--out", checkpoint, timeout_s=sizes.timeout_s)
report

# %%
check.train(folder / "train.py", report, checkpoint, epochs=3)

# %% [markdown]
# ## Is it as good?
#
# A clean report means that the ranks train one network, on different images, and that nothing it can see is wrong. To find out
# whether that network is as good as before, compare accuracies over several seeds. (Until your script passes, the finished one
# runs here.)

# %%
guess = predict("How much does the mean accuracy change from one process to two?", low=-3, high=3, unit="points")
guess

# %%
launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", 2]
mine = check.own_or_finished(folder / "train.py")
together = accuracies(*launch, mine, *options, "--out", folder / "two.pt", seeds=seeds, timeout_s=sizes.timeout_s)
for name, all_seeds in (("one process", alone), ("two ranks", together)):
    print(f"{name:<12}", *(f"{accuracy:.2f} %" for accuracy in all_seeds), f"  mean {sum(all_seeds) / seeds:.2f} %")
guess.compare(sum(together) / seeds - sum(alone) / seeds)

# %% [markdown]
# Compare the difference between the means with the spread *within* a line. If the difference is smaller, these seeds can't
# tell the two scripts apart. That doesn't prove them equal: notebook [14](14_hyperparameter_search.ipynb) works out how many
# seeds you'd need.
#
# *Break it:* take 64 images per rank, keep the learning rate, and run the script's cell and the report's. The report stays
# clean, because that's often what people want. Run the cell above with `mine = folder / "train.py"`. How much accuracy does it
# cost you, and what does [07](07_large_batch.ipynb) recommend?
#
# ## Somebody else's script
#
# Somebody in a hurry has converted the same training. It runs, and its loss falls. This is what they changed
# ([whole script](scripts/own_script_sick.py)):

# %%
take_home.diff("own_script.py", "own_script_sick.py")

# %%
examine(SCRIPTS / "own_script_sick.py", *options, "--out", folder / "sick.pt", timeout_s=sizes.timeout_s)

# %% [markdown]
# ### Exercise 2 (normal): six silent faults
#
# The script has six of these twelve faults. Keep those six in the set, and delete the rest. The report names five of them, in
# its own words. You find the sixth only by reading the script.
#
# <details><summary>Hint</summary>
#
# For each of the twelve, look for the line that would prevent it. Does the report say *ok* about it?
#
# </details><details><summary>Solution</summary>
#
# *Some gradients aren't averaged*: the first layer is frozen when DDP wraps the network, so DDP leaves it out. It thaws in
# epoch 2, and from then on each rank trains its own copy, because nobody wraps the network again. *Every epoch has the same
# order*: nobody calls `set_epoch`. *All ranks draw the same noise*: they keep one seed throughout. *A test image counts twice*:
# two ranks can't share out an odd number of images evenly, so the sampler repeats one. *Every rank writes the checkpoint*:
# `torch.save` isn't inside the `if`. *The printed loss is rank 0's*: nobody adds up `loss_sum`, and no tool can know which
# number you meant.
#
# </details>

# %%
faults = {
    # <solution>
    "some gradients aren't averaged",
    "every epoch has the same order",
    "all ranks draw the same noise",
    "a test image counts twice",
    "every rank writes the checkpoint",
    "the printed loss is rank 0's",
    # <stub>
    # ...,  # your code here: take this line out, and the six that the script doesn't have
    # "some gradients aren't averaged",
    # "every epoch has the same order",
    # "the ranks train on the same images",
    # "the ranks start with different weights",
    # "all ranks draw the same noise",
    # "a test image counts twice",
    # "the accuracy is rank 0's",
    # "the printed loss is rank 0's",
    # "the learning rate differs between ranks",
    # "every rank writes the checkpoint",
    # "the ranks test with different statistics",
    # "a rank takes more steps than the other",
    # </stub>
    # </solution>
}
check.faults(faults)

# %% [markdown]
# ## Bring your own
#
# In a terminal, go to the folder of your script, and type this line, with the path of the workshop's folder in place of
# `~/workshop`. After `--` come your script, or `-m` and a module, and its own options:
#
# ```
# ~/workshop/.venv/bin/workshop examine --ranks 2 --python "$(which python)" -- train.py --my options
# ```
#
# Your script really runs and writes its files, so give it a folder of its own. It's stopped after 120 seconds, or `--seconds`,
# or `--steps`. Let it reach a second epoch and an evaluation, because some mistakes only show up there: a few hundred samples
# are enough. `--help` has the rest, such as exit codes for a test in your repository.
#
# It works for DDP, FSDP, Accelerate, Lightning and Hugging Face's Trainer, because they all end up in PyTorch. In Lightning, set
# `devices` to the number of ranks. What you chose with `accelerate launch` isn't seen, so choose it in the script. `examine`
# can't see
#
# - which number you *meant* to print, or whether your data and labels are right;
# - what only happens later, on more ranks, or with other sizes;
# - whether a larger batch trains as well with its learning rate.
#
# ## Deeper: Accelerate and Fabric
#
# Hugging Face's Accelerate (`accelerator.prepare(model, optimizer, loader, schedule)` and `accelerator.backward(loss)`) and Lightning's
# Fabric (`fabric.launch()`, `fabric.setup(model, optimizer)`, `fabric.setup_dataloaders(loader)` and `fabric.backward(loss)`) make
# most of these changes for you: they join the process group, wrap the model in DDP, or in FSDP or DeepSpeed if you ask for it, and
# give each rank its own part of the data, in a new order every epoch.
#
# But the decisions of exercise 1 stay yours:
#
# - By default, each rank takes the loader's whole batch, so the global batch grows with the ranks. In Accelerate you divide it with
#   `DataLoaderConfiguration(split_batches=True)`. Without that, one `schedule.step()` takes one step per rank, so a schedule
#   still ends on time.
# - Neither adds up your counts. Accelerate's `gather_for_metrics` collects outputs from all ranks, and drops the images that were
#   repeated to fill the last batch.
# - With the same seed everywhere, all ranks drop the same units, and shift their images by the same number of pixels. In
#   Accelerate, `set_seed(seed, device_specific=True)` gives each rank its own.
#
# ## Deeper: a faster step
#
# Before you pay for more GPUs, look at one step on one of them with `torch.profiler.profile`, because a line only *starts* its work on
# the GPU. In the trace, look at the row of the stream that computes ([08b](08b_where_the_time_goes.ipynb) shows how):
#
# - *Gaps.* The GPU waits for Python, for the loader, or for `.item()`, `.cpu()` and `print(loss)`, so call these rarely.
# - *Many short kernels.* A compiler can fuse them.
# - *Copies from the host while nothing is computed.* Use `pin_memory=True` in the loader, and `.to(device, non_blocking=True)`.
#
# `torch.compile` records what your model computes as *graphs*, fuses operations, and generates kernels: in Triton for a GPU, in C++
# for a CPU, where you need a C++ compiler. More than 180 models trained 1.41 times as fast on an A100, on average (Ansel et al.
# 2024). Here, a backend that only counts graphs takes the place of the one that generates kernels. How many graphs does it get, for
# batches of 64, 64, 32 and 16?

# %%
import logging

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

logging.disable(logging.WARNING)
graphs = []


def count(graph, inputs):
    graphs.append(graph)
    return graph.forward


class Net(nn.Module):
    def __init__(self, logs=False):
        super().__init__()
        self.first, self.second = (nn.Sequential(*(nn.Linear(512, 512) for _ in range(3))) for _ in range(2))
        self.logs = logs

    def forward(self, x):
        x = self.first(x)
        if self.logs:
            x.mean().item()
        return self.second(x)


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
models = {"as it is": Net(), "with .item() in it": Net(logs=True), "in DDP": DistributedDataParallel(Net(), bucket_cap_mb=1)}
rows = {}
for name, model in models.items():
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=count)
    rows[name] = []
    for batch in (64, 64, 32, 16):
        graphs.clear()
        compiled(torch.randn(batch, 512)).sum().backward()
        rows[name].append(len(graphs))
dist.destroy_process_group()
logging.disable(logging.NOTSET)
pd.DataFrame(rows, index=["64 images", "64 again", "32", "16"]).T

# %% [markdown]
# When the batch's size first changes, PyTorch compiles again, this time for any size. If you drop the last, smaller batch, it
# doesn't have to. Where PyTorch can't follow your Python, as at `.item()`, it breaks the graph, and you gain less.
# `TORCH_LOGS=graph_breaks,recompiles` shows these places. If you compile *after* wrapping the model in DDP, PyTorch cuts the
# graph at DDP's buckets, so that gradients still travel during the backward pass.
#
# If the model doesn't fit next to its optimizer, [trainer.py](scripts/trainer.py) is the variant with FSDP2 and sharded checkpoints.
# With `--compile`, it compiles each block before `fully_shard` wraps it, so that equal blocks are compiled only once.
#
# ## Remember
#
# - Build the network with one seed, then seed each rank differently.
# - DDP chooses the gradients that it averages at the moment it wraps the network. After you thaw a layer, wrap the network again.
# - Keep the global batch, or change the learning rate with it. Then compare means over seeds with the spread of one process.
#
# **Take it home:** [scripts/own_script_ddp.py](scripts/own_script_ddp.py) and `workshop examine`. If you start from scratch,
# use [scripts/trainer.py](scripts/trainer.py).
#
# **Sources.** PyTorch's documentation of
# [DDP](https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html), of
# [`DistributedSampler`](https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler), of
# [SyncBatchNorm](https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html) and of
# [torchrun](https://pytorch.org/docs/stable/elastic/run.html). Documentation of
# [Accelerate](https://huggingface.co/docs/accelerate/package_reference/torch_wrappers) and of
# [Fabric](https://lightning.ai/docs/fabric/stable/). J. Ansel et al., *PyTorch 2* (ASPLOS 2024), and PyTorch's [questions on
# torch.compile](https://docs.pytorch.org/docs/stable/torch.compiler_faq.html), for DDP's buckets.
# [torchtitan](https://github.com/pytorch/torchtitan), for compiling blocks.
