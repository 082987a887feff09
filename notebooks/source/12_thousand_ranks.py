# %% [markdown] track="large models"
# # A thousand ranks on a laptop
#
# Your script trains on four ranks. Next week you get 1,024 GPUs for an afternoon, and you'd like to know three things
# first. Does each rank's part of the model fit? What will the ranks send, and to whom? And how should you arrange
# them: all in one line, or in a grid? You can't borrow a thousand GPUs to find out. But you don't have to.
#
# **You will** run a plain script on real ranks, and as one of 1,024 ranks that don't exist. You'll change it until a larger
# model fits. Then you'll write the formula that turns counted work into seconds, and compare its forecasts with
# published runs.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebooks
# [06](06_zero_and_fsdp.ipynb), [08c](08c_forecasting.ipynb) and [11](11_model_parallelism.ipynb) first.

# %%
import pandas as pd

from workshop_lib import predict, ranks, scripts, take_home

from lessons import thousand_ranks as lesson

team = ranks.start(2)

# %% [markdown]
# ## A script for a mesh
#
# `mesh.py` trains a small GPT on the bytes of its own source code. It puts the ranks on a *mesh*, as in notebook
# [11](11_model_parallelism.ipynb): the ranks of a row share each layer (tensor parallelism), and the ranks of a column share
# the weights and the samples (FSDP). The lines that know about other ranks are marked:

# %%
take_home.marked("mesh.py", r"mesh|dist|plan|shard|policy|rank")

# %% [markdown]
# First, run it on two real ranks. `real_run` starts the script under `torchrun` and reports what each rank holds and sends in
# its second step. (In the first step, the optimizer creates its state.)

# %%
real = lesson.real_run(lesson.edited.SCRIPT, "--mesh", "1x2", ranks=2)
pd.DataFrame(real[0].shard_rows())

# %% [markdown]
# In the last column, the first number is the dimension along which FSDP cuts, 0 by default. (This mesh has a single row, so FSDP
# leaves everything whole.) If there's a second number, tensor parallelism cuts along that dimension.
#
# ## The dry run
#
# PyTorch has a process group called `fake`. You tell it which rank you are and how many ranks there are, and every collective
# returns at once without sending anything. The tensors have a shape and no memory (`FakeTensorMode`), so the model may be larger
# than your machine. Meanwhile, we watch every operator that the script calls.
#
# Can you trust that? Where you have real ranks, their report and the dry run's must agree:

# %%
pretended = lesson.dry_run(lesson.edited.SCRIPT, world_size=2, mesh="1x2", rank=1)
for name in ("shards", "state_bytes", "collectives", "flops"):
    print(
        f"{name:>12} equal to those of the real rank 1: "
        f"{getattr(pretended, name) == getattr(real[1], name)}"
    )
print(
    f"  peak_bytes: {real[1].peak_bytes:,} on the real rank, "
    f"{pretended.peak_bytes:,} in the dry run"
)

# %% [markdown]
# The shards, the calls, their bytes and the operations are exactly those of the real rank. Only the peak of the memory may
# differ a little, because a real collective's arrays stay in memory until all ranks arrive. And a dry run can't follow values,
# which decide where tokens travel if there are experts.
#
# Now go where nobody can compare: to 1,024 ranks, in 128 rows of 8, because a node has 8 GPUs. And take a larger model.

# %%
small_gpt = ["--width", 1024, "--heads", 16, "--layers", 4]
small_gpt += ["--tokens", 256, "--batch", 128]
thousand = lesson.dry_run(
    lesson.edited.SCRIPT, *small_gpt, world_size=1024, mesh="128x8", rank=18
)
print(f"{thousand.seconds:.0f} s, with Python's start")
pd.DataFrame(thousand.collective_rows())

# %%
lesson.figures.mesh(thousand, "128x8")

# %% [markdown]
# Rank 18 exchanges activations with the 7 other ranks of its node, and weights and gradients with 127 ranks of other nodes. In a
# terminal, `workshop dryrun notebooks/scripts/mesh.py --world-size 1024 --mesh 64x16 --batch 64 --heads 16` prints all this for
# a different mesh.
#
# *Try it:* now your own script, if `torchrun` can start it: `workshop dryrun train.py --world-size 64`.
#
# ## Does a larger model fit?
#
# For a GPT of 6.7 billion parameters you get 512 H100 GPUs, in 64 rows of 8. A step takes 1,024 sequences of 2,048 tokens. An
# H100 has 80 GB, and you leave a tenth for CUDA's context, NCCL's buffers, fragmentation and what the dry run doesn't see. Are
# 72 GB enough?

# %%
large_gpt = ["--width", 4096, "--heads", 32, "--layers", 32, "--tokens", 2048]
large_gpt += ["--vocabulary", 50_304]
large_gpt += ["--dtype", "bfloat16", "--batch", 1024]
large = lesson.dry_run(lesson.edited.SCRIPT, *large_gpt, world_size=512, mesh="64x8")
print(
    f"{large.peak_bytes / 1e9:.1f} GB, "
    "of which weights, gradients and Adam take "
    f"{sum(large.state_bytes.values()) / 1e9:.1f} GB"
)

# %% [markdown]
# ### Exercise 1 (warm-up): make it fit
#
# Most of this memory holds activations that wait for the backward pass, those of 16 sequences per row. Recompute them, as in
# notebook [06c](06c_fitting_more.ipynb): write a function through which `mesh.py`'s `build` can pass its blocks before it puts
# them into the model and calls `fully_shard` for each. The check adds your function to a copy of the script,
# `build/12_thousand_ranks/mesh.py`, and runs that dry.
#
# <details><summary>Hint: with what?</summary>
#
# `checkpoint_wrapper(block)` returns a module that keeps only its input, and calls `block` again in the backward pass. Wrap
# each block by itself.
#
# </details><details><summary>Solution</summary>
#
# {solution of recompute}
#
# </details>


# %%
def recompute(blocks):
    """The blocks of a model, whose backward pass computes their forward pass again.

    Returns a list as long.
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        checkpoint_wrapper,
    )

    # <solution>
    return [checkpoint_wrapper(block) for block in blocks]
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.recompute(recompute)

# %% [markdown]
# So far, each block has had 4 allreduces over the tensor dimension: two in the forward pass, and two in the backward pass. How
# many does it have now?

# %%
recomputed = lesson.check.report(recompute)
allreduces = next(
    each.calls for each in recomputed.collectives if each.over == "tensor"
)
print(f"{allreduces / 32:g} allreduces per block")

# %% [markdown]
# Not 6, although the forward pass runs twice: PyTorch stops recomputing as soon as it has everything that the backward pass
# needs, and nothing needs the result of the last allreduce.
#
# Two micro-batches of 8 sequences need less memory, too. But FSDP then gathers the weights for each micro-batch. The gradients
# needn't travel twice: [trainer.py](scripts/trainer.py) calls `set_requires_gradient_sync(False)` before all micro-batches but
# the last. Until then, each rank keeps unsharded fp32 gradients, which are 64 times its shard. What does each way cost?

# %%
script = lesson.edited.micro_batches()
halves = lesson.dry_run(script, *large_gpt, world_size=512, mesh="64x8")
ways = {"neither": large, "recomputing": recomputed, "two micro-batches": halves}
whole_bytes = 64 * large.state_bytes["gradients"]
print(f"Unsharded gradients take {whole_bytes / 1e9:.1f} GB per rank.")
pd.DataFrame(lesson.edited.costs(ways)).T.style.format(precision=1)

# %% [markdown]
# Recomputing costs operations and messages within the node, and saves the most memory. Two micro-batches cost messages over the
# network, which may be hidden behind computing. So where both fit, forecast both.
#
# ## From bytes to seconds
#
# A dry run knows how many operations a rank computes, and which bytes it sends over which links. The machine's numbers turn
# each of these into seconds, as in notebook [08c](08c_forecasting.ipynb). But a step doesn't take their sum, because some things
# happen at the same time. Which ones?
#
# ### Exercise 2 (normal): how long does a step take?
#
# Write the formula. You get the parts of one step of a typical rank, in seconds:
#
# - `compute_s`: it computes.
# - `tensor_s`: it exchanges activations over the tensor dimension. In every layer, it waits for them.
# - `hideable_s`: FSDP's messages over the data dimension. They travel while the rank is busy computing or exchanging
#   activations.
# - `exposed_s`: FSDP's first and last messages. The rank has nothing to do meanwhile, so the forecast adds them to the step.
# - `late_s`: the slowest rank computes for this much longer. Whoever waits for messages waits for that rank meanwhile, so
#   the longer of the two waits counts.
#
# <details><summary>Hint: what isn't hidden?</summary>
#
# Whatever of `hideable_s` is longer than the time that the rank is busy. It's never less than nothing.
#
# </details><details><summary>Solution</summary>
#
# {solution of step_s}
#
# </details>


# %%
def step_s(compute_s, tensor_s, hideable_s, exposed_s, late_s):
    """Seconds that a step takes if a rank computes and sends for this long."""
    # <solution>
    busy_s = compute_s + tensor_s
    unhidden_s = max(hideable_s - busy_s, 0)
    waiting_s = tensor_s + unhidden_s + exposed_s
    return compute_s + max(waiting_s, late_s)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.step_s(step_s)

# %% [markdown]
# Now use it for the same model on 1,024 H100. Dry runs of three layers and of four are enough, because each additional layer
# costs the same.

# %%
gpt = lesson.meshes.Gpt(
    layers=32, width=4096, parameters=6.65e9, tokens=2048, vocabulary=50_304, tied=False
)
h100 = lesson.catalogue.machine("h100")
guess = predict(
    "A step on 1024 x 1 takes how many times as long as one on 128 x 8?",
    low=0.2,
    high=5,
    unit="times",
)
guess

# %%
shapes = {
    "1024x1": lesson.meshes.Mesh(1024, 1),
    "128x8": lesson.meshes.Mesh(128, 8),
    "64x16": lesson.meshes.Mesh(64, 16),
}
works = lesson.edited.works(large_gpt, shapes)
yours = lesson.check.written(step_s)
fsdp = lesson.meshes.Plan()
forecasts = {}
for shape, mesh in shapes.items():
    parts = lesson.meshes.forecast(works[shape], 1024 * gpt.flops, h100, mesh, fsdp)
    forecasts[shape] = parts.by(yours)
guess.compare(forecasts["1024x1"].step_s / forecasts["128x8"].step_s)
hsdp = lesson.meshes.Mesh(data=64, copies=16)
parts = lesson.meshes.of_formulas(gpt, h100, hsdp, fsdp)
forecasts["HSDP, by formulas"] = parts.by(yours)
columns = ["compute_s", "tensor_s", "hideable_s", "exposed_s", "late_s"]
columns += ["step_s", "mfu"]
rows = {name: made.row(*columns) for name, made in forecasts.items()}
pd.DataFrame(rows).T.style.format("{:.3f}")

# %% [markdown]
# `mfu` is the *model-FLOPs utilization*: the operations that the model needs, as a share of what the GPUs could do.
#
# With 8 tensor ranks, each rank gathers an eighth of the weights. But the 8 ranks of a node gather different eighths over the
# same network, so the bytes take no less time. On 1024x1, each message goes round a ring of 1,024 ranks, while the rings of 128x8
# have only 128. In return, the ranks of 128x8 wait for activations. *HSDP* (notebook
# [06](06_zero_and_fsdp.ipynb)) has short rings without tensor ranks: it shards in groups of 64, and an allreduce adds up the
# gradients of the 16 groups.
#
# `compute_s` grows because every rank of a row computes the whole last layer. And memory goes *up*, because each row has more
# of the 1,024 sequences, and so more of what isn't cut: the blocks' inputs, and the logits.
#
# How much of the time of 1024x1 is latency? In the forecast, every gather goes round a ring, and each step of the ring costs the
# catalogue's latency. NCCL's trees, which take fewer steps, are for allreduces, but other algorithms may do better than a ring.
# What would the answer be with less latency?

# %%
lines = [works[shape] for shape in ("1024x1", "128x8")]
lesson.edited.with_less_latency(h100, *lines, yours)

# %% [markdown]
# ## How far off is it?
#
# Megatron-LM, Llama 3, torchtitan and MosaicML have published the meshes and speeds of real runs, on up to 16,384 GPUs. We
# calibrate one number per table on its first run: the share of its peak that one GPU reaches. (Megatron-LM's tables share one, and
# so do torchtitan's on A100.) Your function forecasts everything else. The range is that of notebook 08c.

# %%
beside = lesson.published.meshes_beside_forecast(yours)
print(f"The median error is {beside['error'].abs().median():.1%}.")
lesson.beside_published(beside)

# %%
shown = beside[["table", "devices", "mesh", "published", "forecast", "error", "inside"]]
shown.style.format(
    {"published": "{:.1%}", "forecast": "{:.1%}", "error": "{:+.0%}", "devices": "{:,}"}
).hide()

# %% [markdown]
# Look at the signs of the errors:
#
# - For Megatron-LM on 128 GPUs or more, the forecast is 11 to 20 % too low. It charges more for tensor ranks' messages than the
#   real runs lost, and the largest models keep the GPUs busier than the smallest, on which we calibrated. All these runs exceed
#   the forecast's range.
# - ZeRO-3 on 1,536 GPUs comes out three times too fast. Even if nothing were hidden behind computing, the forecast would be 29
#   s, but the real step took 67 s. So DeepSpeed's messages of 2021 were probably several times slower than the network's data
#   sheet says. **1024x1 above, which is FSDP over all GPUs, is a mesh of the same kind.**
#
# Where the error is below 3 %, we had mostly calibrated on the same model with fewer GPUs. (torchtitan's H100 have slower memory
# and at most 500 W.) At 768 GPUs, ZeRO-3 comes out level with the mesh of 8x8x12, but it was far slower. So use a forecast to
# drop the hopeless meshes, and then measure the best few.
#
# ## Deeper: the fastest mesh that fits
#
# For a first choice you don't need the script. A few formulas estimate the work of any GPT, here with 175 billion parameters,
# on meshes of data, tensor and pipeline ranks ([11b](11b_pipelines.ipynb)), also with HSDP in groups of 64 (`copies`).
# *Selective* recomputing keeps the results of matrix products and of attention, and recomputes the rest. That's cheap, and the
# forecast counts it as free. Pipelines go with ZeRO-1, because FSDP would gather the weights again in every micro-batch. The
# search leaves out context parallelism, which is for much longer sequences, and experts, which would be a different model.

# %%
gpt3 = lesson.meshes.Gpt(
    layers=96, width=12_288, parameters=174.6e9, tokens=2048, vocabulary=51_200
)
every = pd.DataFrame(lesson.meshes.forecasts(gpt3, h100, ranks=1024, global_batch=2048))
fits = every[every.peak_GB < 0.9 * 80]
print(f"{len(fits)} of {len(every)} fit, with a margin of 10 %")
fits.nsmallest(5, "step_s").style.format(precision=2)

# %% [markdown]
# The first two meshes take equally long, because both wait longer for the slowest rank than for messages. HSDP isn't among the
# five: a 64th of the states leaves too little room for activations.
#
# *Try it:* with 256 sequences per step instead of 2,048, the fastest mesh has tensor groups that cross nodes. Which messages
# take less time in exchange?
#
# ## Deeper: who sends what?
#
# Can you say without a dry run what each rank sends?
#
# ### Exercise 3 (normal): the bytes of a mesh
#
# Take a model of `layers` equal layers. In each layer, tensor parallelism cuts `cut` bytes of weights, and leaves `whole` bytes
# uncut. The activations between layers take `activations` bytes for the samples of *one rank*, so don't divide these by `data`
# again. Gradients are as large as the weights. Assume rings: of an array of $n$ bytes, each of $p$ ranks sends
# $(p-1)/p \cdot n$ in an allgather or a reduce-scatter, and twice that in an allreduce. FSDP drops a layer's weights after the
# forward pass.
#
# <details><summary>Hint 1: over the data dimension</summary>
#
# How often does FSDP gather a layer's weights in a step, and how often does it reduce their gradients? And which of the weights
# does a *tensor* rank need at all?
#
# </details><details><summary>Hint 2: over the tensor dimension</summary>
#
# Attention ends with an allreduce of its outputs, and so does the MLP. In the backward pass, the gradients of both inputs
# need an allreduce, too.
#
# </details><details><summary>Solution</summary>
#
# {solution of mesh_bytes}
#
# </details>


# %%
def mesh_bytes(data, tensor, layers, cut, whole, activations):
    """Bytes that each rank of a mesh of data x tensor sends in a step.

    Returns {"data": ..., "tensor": ...}.
    """
    # <solution>
    weights = cut / tensor + whole
    over_data = 3 * (data - 1) / data * weights  # gathered twice, reduced once
    over_tensor = 4 * 2 * (tensor - 1) / tensor * activations
    return {"data": layers * over_data, "tensor": layers * over_tensor}
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.mesh_bytes(mesh_bytes)

# %% [markdown]
# Is it right for the script? Compare your function with dry runs on two meshes. We've added the embedding, the last norm and
# the last layer, which FSDP gathers only once.

# %%
runs = {
    "128x8": thousand,
    **lesson.dry_runs(lesson.edited.SCRIPT, *small_gpt, meshes=["16x2"]),
}
rows = lesson.check.beside_dry_runs(
    lesson.check.written(mesh_bytes), runs, width=1024, tokens=256, layers=4, batch=128
)
pd.DataFrame(rows).T.style.format("{:,.3f}")

# %% [markdown]
# *Break it:* what happens to the bytes over `data` when the width isn't a multiple of the mesh? Set `--width` to 1000 and
# `--heads` to 8 in the cell that defines `small_gpt`, rerun that cell, and pass `width=1000` here.
#
# ## Deeper: does it still learn the same?
#
# A dry run has no values, so it can't tell you whether the script still learns the same. Two real ranks can:

# %%
launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1"]
launch += ["--nproc-per-node", 2]
options = ["--mesh", "1x2", "--steps", 10, "--text", lesson.edited.SCRIPT]
for script in (lesson.edited.SCRIPT, lesson.edited.FOLDER / "mesh.py"):
    scripts.run(*launch, script, *options, only="^step")

# %% [markdown]
# The losses are equal.
#
# ## Deeper: one call of `fully_shard`
#
# `build` calls `fully_shard` for each block and for the model. Suppose somebody keeps only the call for the model. The script
# still runs, and the loss is the same. What happens to each rank's memory? Take 4 layers, and FSDP over 8 ranks:

# %%
options = ["--width", 1024, "--heads", 16, "--layers", 4]
options += ["--text", lesson.edited.SCRIPT]
guess = predict(
    "How many times as high is the peak with a single call of `fully_shard`?",
    0.5,
    4,
    unit="times",
)
guess

# %%
runs = {
    script.name: lesson.dry_run(script, *options, world_size=8, mesh="8x1")
    for script in (lesson.edited.SCRIPT, lesson.edited.one_unit())
}
guess.compare(runs["one_unit.py"].peak_bytes / runs["mesh.py"].peak_bytes)
for name, run in runs.items():
    calls = {each.kind: each.calls for each in run.collectives}
    print(
        f"{name:>12}: {calls}, {run.sent_bytes() / 1e6:.0f} MB sent, "
        f"at most {run.peak_bytes / 1e6:.0f} MB in memory"
    )

# %% [markdown]
# With a single call, FSDP gathers all weights at once, and only once. But now every rank holds the whole model until the end of
# the backward pass, which is what FSDP should prevent.
#
# ## Deeper: sixteen ranks with values
#
# Under PyTorch's `LocalTensorMode`, a tensor holds the shards of all ranks, and collectives really add and gather them, in one
# process. Is a block of `mesh.py` that 16 ranks share the same as a whole one?

# %%
import runpy
from copy import deepcopy

import torch
from torch.distributed._local_tensor import LocalTensorMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

whole = runpy.run_path(str(lesson.edited.SCRIPT))["Block"](width=64, heads=16)
samples = torch.randn(2, 8, 64)
output = whole(samples)
output.square().sum().backward()
lesson.pretend.join_fake_group(0, 16)
with LocalTensorMode(16):
    mesh = torch.distributed.init_device_mesh("cpu", (16,), mesh_dim_names=("tensor",))
    plan = {
        "qkv": ColwiseParallel(),
        "out": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    shared = parallelize_module(deepcopy(whole), mesh, plan)
    shared.zero_grad()
    output_of_16 = shared(samples)
    output_of_16.square().sum().backward()
    gradient = shared.up.weight.grad.full_tensor()
    print(
        f"output: at most {(output_of_16 - output).abs().max().reconcile():.0e} apart"
    )
    print(
        "gradient of `up`: at most "
        f"{(gradient - whole.up.weight.grad).abs().max().reconcile():.0e} apart"
    )
torch.distributed.destroy_process_group()

# %% [markdown]
# Only rounding differs. A dry run shows what a rank sends and holds, `LocalTensorMode` whether the parts add up.
#
# ## Remember
#
# - Under the `fake` process group, your own script runs as any rank of any world, with a real rank's shards, calls, bytes and
#   operations, and nearly its peak memory. (We compared on CPUs.)
# - One line in a script can decide whether a model fits. Ask a dry run before you ask for GPUs.
# - Tensor groups wait for activations in every layer, so keep them inside a node or an NVLink domain. Data groups exchange
#   weights and gradients while the GPUs compute.
# - Choose among the meshes that fit *with a margin*. On 1,024 GPUs, 6.7 billion weights were forecast to train faster on 128x8
#   than on 1024x1. That rests on the latency of a ring of 1,024 ranks: without latency, 1024x1 would have been the faster one.
#   (HSDP, by formulas, beat both.) So measure the best mesh of each kind first.
#
# **Take it home:** [scripts/mesh.py](scripts/mesh.py), and [scripts/trainer.py](scripts/trainer.py), the same with data
# from files, replicas, metrics and checkpoints. [book/trainer.md](../book/trainer.md) says what it lacks. `workshop
# dryrun notebooks/scripts/trainer.py --mesh 128x4 --batch 512` runs it dry, too.
#
# **Sources.** D. Narayanan et al., [*Efficient Large-Scale Language Model Training … Using
# Megatron-LM*](https://arxiv.org/abs/2104.04473), tables 1 and 2, and its formulas. [*The Llama 3 Herd of
# Models*](https://arxiv.org/abs/2407.21783), table 4. [torchtitan](https://github.com/pytorch/torchtitan),
# benchmarks/llama3_h100_202412_torchtitan.md. MosaicML's [llm-foundry](https://github.com/mosaicml/llm-foundry). V. Korthikanti
# et al., [*Reducing Activation Recomputation*](https://arxiv.org/abs/2205.05198).

# %%
ranks.stop()
