# %% [markdown] track="your own script"
# # Your own script
#
# You have a training script that works, and tomorrow you get a node with eight GPUs. You add the lines for DDP, the script
# runs, and the loss falls. How do you know that it's right? Most mistakes in such a script raise no error. You only get a
# slightly worse model, and nobody finds out why.
#
# **You will** convert a realistic script for many processes, guided by a report on what's still wrong with it. Then you'll
# repair somebody else's script, which has six silent faults, and learn to examine your own.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no network; no GPU, or at least
# two. (With one, start JupyterLab with `CUDA_VISIBLE_DEVICES=`.) Do notebook [05](05_ddp.ipynb) first, where you convert a
# simpler script with hints.

# %%
from workshop_lib import paths, predict, profile, take_home

from lessons import your_own_script as lesson

sizes = profile.current()
quick = sizes.name == "quick"
seeds = 2 if quick else 3
images, test_images = (1_500, 999) if quick else (4_000, 1_999)
options = ["--data", paths.MNIST, "--images", images]
options += ["--tested", test_images, "--epochs", 3]
few = ["--data", paths.MNIST, "--images", 1_500, "--tested", 999, "--epochs", 3]
folder = paths.BUILD / "15_your_own_script"
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## What one process reaches
#
# [own_script.py](scripts/own_script.py) trains a small network on MNIST, with randomly shifted images, batch normalization,
# dropout, a learning-rate schedule, a progress bar and a checkpoint. How accurate does it get? That depends on the seed, so
# you need more than one run:

# %%
arguments = [*options, "--out", folder / "one.pt"]
alone = lesson.accuracies(
    "python",
    paths.SCRIPTS / "own_script.py",
    *arguments,
    seeds=seeds,
    timeout_s=sizes.timeout_s,
)
print(*(f"{accuracy:.2f} %" for accuracy in alone))

# %% [markdown]
# Two processes should get as far. `examine` starts a script with `torchrun`, watches what every rank does, and reports what it
# has seen. *Wrong* is certain. *Look* means that you have to decide.

# %% [markdown]
# ### Exercise 1 (hard): convert it
#
# The next cell writes a copy of `own_script.py` to `my_scripts/train.py`, with a link that opens it. Change it until each rank
# trains on its part of every batch, the report calls nothing *wrong* or worth a *look*, and one process could load the checkpoint.
#
# Save the file, run the report's cell, fix what the report names first, and repeat. The report gets longer before it gets
# shorter, because some mistakes only show once others are gone.
#
# Two things are new since [05](05_ddp.ipynb). Random numbers: ranks should draw different ones, but build the same network, so
# reseed each rank *after* the network is built. Batch normalization: its statistics are *buffers*. Before each forward pass,
# DDP replaces every rank's buffers with rank 0's. After the last step, the buffers differ again, and you'd test with different
# ones.
#
# The check judges two things that the report can't. First, keep the global batch: one process takes 64 images per step, so how
# many does each rank take? Second, the printed numbers should count the images of all ranks.
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
# <solution>
script = paths.SCRIPTS / "own_script_ddp.py"
# <stub>
# from IPython.display import FileLink
#
# # your code here: in that file, not in this cell
# script = lesson.check.to_edit("own_script.py", "my_scripts/train.py")
# FileLink("my_scripts/train.py")
# </stub>
# </solution>

# %%
checkpoint = folder / "train.pt"
checkpoint.unlink(missing_ok=True)
report = lesson.examine(
    script, *few, "--out", checkpoint, timeout_s=sizes.timeout_s
)
report

# %%
lesson.check.train(script, report, checkpoint, epochs=3)

# %% [markdown]
# ## Is it as good?
#
# A clean report means that the ranks train one network, on different images, and that `examine` saw nothing wrong. To find out
# whether that network is as good as before, compare accuracies over several seeds. (Until your script passes, the finished one
# runs here.)

# %%
guess = predict(
    "How much does the mean accuracy change from one process to two?",
    low=-3,
    high=3,
    unit="points",
)
guess

# %%
launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1"]
launch += ["--nproc-per-node", 2]
mine = lesson.check.own_or_finished(script, report, checkpoint, epochs=3)
together = lesson.accuracies(
    *launch,
    mine,
    *options,
    "--out",
    folder / "two.pt",
    seeds=seeds,
    timeout_s=sizes.timeout_s,
)
for name, all_seeds in (("one process", alone), ("two ranks", together)):
    print(
        f"{name:<12}",
        *(f"{accuracy:.2f} %" for accuracy in all_seeds),
        f"  mean {sum(all_seeds) / seeds:.2f} %",
    )
guess.compare(sum(together) / seeds - sum(alone) / seeds)

# %% [markdown]
# Compare the difference between the means with the spread *within* a line. If the difference is smaller, these seeds can't
# tell the two scripts apart. That doesn't prove them equal: notebook [14](14_hyperparameter_search.ipynb) works out how many
# seeds you'd need.
#
# *Break it:* take 64 images per rank, keep the learning rate, and run the report's cell. The report stays clean, because a larger
# batch may be what you want. Run the cell above with `mine = script`. How much accuracy does it cost you, and what does
# [07](07_large_batch.ipynb) recommend?
#
# ## Somebody else's script
#
# Somebody in a hurry has converted the same script. It runs, and its loss falls. This is what they changed
# ([whole script](scripts/own_script_sick.py)):

# %%
take_home.diff("own_script.py", "own_script_sick.py")

# %% [markdown]
# ### Exercise 2 (hard): six silent faults
#
# The next cell writes a copy to `my_scripts/repaired.py`. Repair it as you converted yours, until the report calls nothing
# *wrong* or worth a *look*. Its author wants the first layer to learn only from the second epoch on. The report can't see one
# of the six faults, because no tool knows which number you meant to print.
#
# <details><summary>Hint: the fault that the report can't see</summary>
#
# Which ranks' losses are in `loss_sum` when it's printed?
#
# </details><details><summary>Solution</summary>
#
# *The first layer's gradients aren't averaged*: it's frozen when DDP wraps the network. It thaws in epoch 2, and from then on each
# rank trains its own copy. `if epoch == 2: ddp = DistributedDataParallel(model)` wraps the network again. *Every epoch has the
# same order*: nobody calls `set_epoch`. *All ranks draw the same noise*: they keep one seed throughout. *A test image counts
# twice*: two ranks can't share out an odd number of images evenly, so the sampler repeats one. *Every rank writes the checkpoint*:
# `torch.save` isn't inside the `if`. *The printed loss is rank 0's*: nobody adds up `loss_sum`. All but the frozen layer is in
# [own_script_ddp.py](scripts/own_script_ddp.py).
#
# </details>

# %%
# <solution>
repaired = paths.SCRIPTS / "own_script_ddp.py"
# <stub>
# theirs = "own_script_sick.py"  # your code here: in the copy, not in this cell
# repaired = lesson.check.to_edit(theirs, "my_scripts/repaired.py")
# FileLink("my_scripts/repaired.py")
# </stub>
# </solution>

# %%
its_checkpoint = folder / "repaired.pt"
its_checkpoint.unlink(missing_ok=True)
its_report = lesson.examine(
    repaired, *few, "--out", its_checkpoint, timeout_s=sizes.timeout_s
)
its_report

# %%
lesson.check.repair(repaired, its_report, its_checkpoint, epochs=3)

# %% [markdown]
# ## Bring your own
#
# In a terminal, go to the folder of your script, and type this line, with the path of the workshop's folder in place of
# `~/workshop`. After `--`, type your script (or `-m` and a module) and its options:
#
# ```
# ~/workshop/.venv/bin/workshop examine --ranks 2 --python "$(which python)" -- train.py --my options
# ```
#
# Your script really runs and writes its files, so give it a folder of its own. `examine` stops it after 120 seconds, or at the
# limit that you set with `--seconds` or `--steps`. Let it reach a second epoch and an evaluation, because some mistakes only
# show up there: a few hundred samples are enough. `--help` has the rest, such as exit codes for a test in your repository.
#
# `examine` works for DDP, FSDP, Accelerate, Lightning and Hugging Face's Trainer, because they all end up in PyTorch. In
# Lightning, set `devices` to the number of ranks. `examine` doesn't see what you chose with `accelerate launch`, so choose it
# in the script. `examine` can't see
#
# - which number you *meant* to print, or whether your data and labels are right;
# - what only happens later, on more ranks, or with other sizes;
# - whether a larger batch trains as well with its learning rate.
#
# Before you pay for more GPUs, make a step faster on one: [08b](08b_where_the_time_goes.ipynb) shows how, in its last section.
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
# - By default, each rank takes the loader's whole batch, so the global batch grows with the ranks. In Accelerate you divide it
#   with `DataLoaderConfiguration(split_batches=True)`. Without that, one `schedule.step()` advances the schedule by one step
#   per rank, so it still ends on time.
# - Neither adds up your counts. Accelerate's `gather_for_metrics` collects outputs from all ranks, and drops the images that were
#   repeated to fill the last batch.
# - With the same seed everywhere, all ranks drop the same units, and shift their images by the same number of pixels. In
#   Accelerate, `set_seed(seed, device_specific=True)` gives each rank its own.
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
# [Fabric](https://lightning.ai/docs/fabric/stable/).
