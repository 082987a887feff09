# %% [markdown] track="large models"
# # A thousand ranks on a laptop
#
# Your script trains on four ranks. Next week you get 1,024 GPUs for an afternoon, and you'd like to know three things before
# the clock starts. Does each rank's part of the model fit? What will the ranks send, and to whom? And how should you arrange
# them: all in one long row, or in a grid? You can't borrow a thousand GPUs to find out. But you don't have to.
#
# **You will** run the same plain script on real ranks, and as one of 1,024 ranks that don't exist. You'll check that
# the two agree wherever you can have both, turn bytes and operations into a forecast, check it against runs that others
# have published, and then find the mesh of ranks that trains a large model fastest.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebooks
# [05](05_ddp.ipynb), [06](06_zero_and_fsdp.ipynb) and [08c](08c_forecasting.ipynb) first.

# %%
import contextlib

import pandas as pd

from workshop_lib import ranks
from workshop_lib.lessons.forecasting import catalogue
from workshop_lib.lessons.thousand_ranks import figures as draw
from workshop_lib.lessons.thousand_ranks import judge as check
from workshop_lib.lessons.thousand_ranks import mesh_report, meshes, published_meshes
from workshop_lib.lessons.thousand_ranks.dry_run import dry_run, dry_runs, real_run
from workshop_lib.lessons.thousand_ranks.meshes import Gpt, Mesh, Plan
from workshop_lib.notebook import profile, take_home
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, SCRIPTS
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
script = SCRIPTS / "mesh.py"
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## A mesh of ranks
#
# In notebook [06](06_zero_and_fsdp.ipynb) FSDP cut the weights across all ranks, and every rank gathered whole layers to compute
# with them. *Tensor parallelism* cuts the layers themselves: each rank computes a part of every layer, and
# they add up the results. You can do both at once. Put the ranks on a grid, a *mesh*. Those in one row share the
# work of each layer, and those in one column share out the weights and the samples.
#
# Our script trains a small GPT this way, on the bytes of its own source code, so it needs no download. Here are
# the lines that know about other ranks:

# %%
take_home.marked("mesh.py", r"mesh|dist|plan|shard|policy|rank")

# %% [markdown]
# `init_device_mesh` makes the grid, with a name for each dimension. `parallelize_module` cuts the attention by heads, and the
# MLP by its hidden units. Then `fully_shard` cuts what's left across the other dimension. Everything else would look the
# same in a single process.
#
# ## Three worlds
#
# There are three ways to find out what such a script does on more ranks than you have.
#
# | | what runs | what it can prove | what it can't |
# |---|---|---|---|
# | **real** ranks | all of it, on as many ranks as you have cores | values, bytes, order, and that this run doesn't deadlock | anything about a thousand ranks |
# | **emulated** workers | their arithmetic, on a few ranks: one huge batch | what a large batch does to learning | bytes, memory, time |
# | **dry-run** ranks | the script, as one rank among many that don't exist | shapes, memory, calls, bytes and operations of any rank | values, accuracy, deadlocks, time |
#
# You know the first two already. Start with the real ones: `real_run` starts the script under `torchrun` and reads what each rank holds
# and sends in its second step. (The first step is special, because it makes the optimizer's state.)

# %%
tensor = f"1x{sizes.ranks}"
real = real_run(script, "--mesh", tensor, ranks=sizes.ranks)
pd.DataFrame(mesh_report.shards(real[0]))

# %% [markdown]
# With tensor parallelism alone, the four large weights of each block are cut, along dimension 0 or 1, and so is the bias of
# `up`. The rest stays whole. In the last column, the first number is FSDP's, which always cuts along dimension 0. But its
# dimension of the mesh has a single rank here, so nothing comes of that. The second number, if there's one, is the tensor cut.
#
# ## The dry run
#
# PyTorch has a process group called `fake`. You tell it which rank you are and how many there are, and every
# collective returns at once without sending anything. The script runs as always: it cuts its layers, gathers, computes and
# steps. Its tensors don't even have memory, only shapes, so the model may be larger than your machine. While it runs,
# we watch each operator that it calls.
#
# But is that any good? Where we have real ranks, both must agree. Compare everything on rank 1:

# %%
pretended = dry_run(script, world_size=sizes.ranks, mesh=tensor, rank=1)
for name in ("shards", "state_bytes", "collectives", "flops"):
    print(f"{name:>12} equal to those of the real rank 1: {getattr(pretended, name) == getattr(real[1], name)}")
print(f"   peak_bytes: {real[1].peak_bytes:,} on the real rank, {pretended.peak_bytes:,} in the dry run")

# %% [markdown]
# The shards, the bytes and the calls match the real rank's, to the last byte. (The workshop's tests check this for
# every rank out of 2 and out of 4, and also for the scripts of notebooks 05 and 06.) So we can trust the dry run where nobody
# can check: at 1,024 ranks. There's one condition: what the script does mustn't depend on values. (With the experts of
# notebook [11](11_model_parallelism.ipynb) it would, because values decide which tokens travel.) Let's say 128 rows of 8,
# because a node has 8 GPUs, and a larger model.

# %%
options = ["--width", 1024, "--heads", 16, "--layers", 4, "--tokens", 256, "--batch", 128]
guess = predict(
    "How many seconds does the dry run of one rank of 1,024 take, with Python's start?", low=0, high=60, unit="s"
)
guess

# %%
thousand = dry_run(script, *options, world_size=1024, mesh="128x8", rank=18)
guess.compare(thousand.seconds)
print(mesh_report.cost(thousand))
pd.DataFrame(mesh_report.collectives(thousand))

# %%
draw.mesh(thousand, "128x8", a_node=8)

# %% [markdown]
# Rank 18 talks to 7 others about activations, and to 127 about weights. Each number is a property of the script: change a line,
# and it changes. In a terminal, `workshop dryrun notebooks/scripts/mesh.py --world-size 1024 --mesh 64x16 --batch 64 --heads 16`
# prints all this for a different mesh.
#
# *Try it:* run `fsdp2.py` from notebook 06 dry, with `world_size=64` and no mesh. How large is a rank's part of the last layer's weights,
# which have 10 rows?
#
# ### Exercise 1 (normal): who sends what?
#
# Before you start a large job, you want to know these numbers without running anything. With this function you'll predict
# the bytes that each rank sends per step, over either dimension, and then check the dry run's numbers against yours.
#
# Take a model of `layers` equal layers. In each, `cut` bytes of weights are cut by tensor parallelism, and `whole` bytes
# aren't. For the samples of *one rank*, a layer passes on `activations` bytes, so don't divide
# these by `data` again. Gradients are as large as the weights. Assume rings: of an array of $n$ bytes, a rank among $p$ sends
# $(p-1)/p \cdot n$ in an allgather or a reduce-scatter, and twice that in an allreduce. FSDP drops a layer's weights after
# forward.
#
# <details><summary>Hint 1: over the data dimension</summary>
#
# How often does FSDP gather a layer's weights in a step, and how often does it reduce their gradients? And which of the weights
# does a *tensor* rank need at all?
#
# </details><details><summary>Hint 2: over the tensor dimension</summary>
#
# Attention ends with an allreduce of its outputs, and so does the MLP. And in the backward pass, the
# gradients of what goes into each of them need an allreduce, too.
#
# </details><details><summary>Solution</summary>
#
# {solution of mesh_bytes}
#
# </details>


# %%
def mesh_bytes(data, tensor, layers, cut, whole, activations):
    """Bytes that each rank of a mesh of data x tensor sends in a step: {"data": ..., "tensor": ...}."""
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
check.mesh_bytes(mesh_bytes)

# %% [markdown]
# Now check your function against dry runs on two meshes. In a block of this GPT, $12w^2 + 4w$ weights are cut, and $5w$
# aren't. The script also has an embedding, a last layer and a norm, `ends` below, which FSDP gathers only once per step:

# %%
width, layers, tokens = 1024, 4, 256
rows, cut, whole = {}, 4 * (12 * width**2 + 4 * width), 4 * 5 * width  # bytes in fp32
for shape, dry in {"128x8": thousand, **dry_runs(script, *options, meshes=["16x2"])}.items():
    data, tensor = map(int, shape.split("x"))
    ends = 2 * (data - 1) / data * 4 * (2 * 256 * width + 256 + 2 * width)
    with contextlib.suppress(NotImplementedError):  # while the exercise is open
        mine = mesh_bytes(data, tensor, layers, cut, whole, 4 * 128 / data * tokens * width)
        rows[f"{shape}, yours, MB"] = {"data": (mine["data"] + ends) / 1e6, "tensor": mine["tensor"] / 1e6}
    rows[f"{shape}, dry run, MB"] = {over: dry.sent_bytes(over) / 1e6 for over in ("data", "tensor")}
pd.DataFrame(rows).T.style.format("{:,.3f}")

# %% [markdown]
# *Break it:* what happens to the bytes over `data` when the width isn't a multiple of the mesh, say 1,000? (Take 8 heads then,
# because 1,000 doesn't divide by 16.)
#
# ## What no dry run can tell you
#
# All those tensors were empty. If your learning rate is too high for a large batch, every shape and every byte will
# still be right. For that there's the second world: a few ranks do the *arithmetic* of many workers, as in notebook
# [07](07_large_batch.ipynb). Here are 16 workers with 64 samples each, with the learning rate as it is and multiplied by 16:

# %%
for lr_scaling in ("none", "linear"):
    emulated = TrainOptions(
        emulate_workers=16, lr=0.1, lr_scaling=lr_scaling, epochs=1, train_samples=sizes.train_samples
    )
    last = team.train(emulated, timeout=5 * sizes.timeout_s, show=False)["epochs"][-1]
    print(f"16 workers, learning rate {lr_scaling:>6}: {last['test_accuracy']:.1%} after an epoch")

# %% [markdown]
# A dry run couldn't tell these two apart: its numbers would be the same, to the last byte.
#
# ## From bytes to seconds
#
# A dry run knows how many operations a rank computes, and which bytes it sends over which links. Notebook [08c](08c_forecasting.ipynb)
# has a cost model for both. So put them together, for a GPT of 6.7 billion parameters in bf16 on 128 nodes with 8 H100 each.
# Its weights alone are 27 GB in fp32, which this machine may not even have. All 32 layers are alike, so dry runs of one layer and of
# two tell us what each additional layer costs.

# %%
machine, large = catalogue.machine("h100"), Gpt(32, 4096, 6.65e9, 2048, 50_304)
guess = predict("A step on 1024 x 1 takes how many times as long as one on 128 x 8?", low=0.2, high=5, unit="times")
guess

# %%
options = [
    "--width",
    4096,
    "--heads",
    32,
    "--tokens",
    2048,
    "--vocabulary",
    50_304,
    "--dtype",
    "bfloat16",
    "--batch",
    1024,
]
shapes = ["1024x1", "128x8", "64x16"][: 2 if sizes.name == "quick" else 3]
few, more = (dry_runs(script, *options, "--layers", n, meshes=shapes) for n in (1, 2))
forecasts = {}
for shape in shapes:
    work, mesh = meshes.with_layers(few[shape], more[shape], 31), Mesh(*map(int, shape.split("x")))
    forecasts[shape] = meshes.forecast(work, 1024 * large.flops, machine, mesh, Plan())
guess.compare(forecasts["1024x1"].step_s / forecasts["128x8"].step_s)
shown = pd.DataFrame(list(forecasts.values()), index=list(forecasts))
shown.assign(peak_bytes=shown["peak_bytes"] / 1e9).rename(columns={"peak_bytes": "peak_GB"}).style.format("{:.3f}")

# %% [markdown]
# (`step_s` is what a step takes. Computing, `compute_s`, and messages over the tensor dimension come one after the other. Those over the data
# dimension overlap with computing, as far as they fit. `late_s` is how late the slowest rank comes. It's hidden if all wait
# longer for messages anyway. `bubble_s` is a pipeline's, so it's 0 here. `mfu` is the *model-FLOPs utilization*:
# the operations that the model needs, as a share of what the GPUs could do.)
#
# What did you expect? Look at the columns. With more tensor ranks, each gathers fewer weights, but now it waits for activations in every
# layer. And at 16 the groups no longer fit into a node of 8, so these activations cross the slow network.
# And our script doesn't cut the last layer, so every rank in a row computes all of it. You can see that in `compute_s`.
#
# Memory is the other half. A dry run counts activations too, because it sees every tensor: `peak_bytes` is the most that was
# alive at once. Which of these meshes would fit into 80 GB? Leave some room, because a real GPU also holds CUDA's context and
# NCCL's buffers, and its memory gets fragmented.
#
# You may be surprised that memory goes *up* with the tensor ranks. All three meshes share the same 1,024 samples per step. So
# with fewer data ranks, each has more of them, and with them more of what isn't cut: whole tokens, and the logits.
#
# ### Exercise 2 (normal): the fastest mesh that fits
#
# Now you choose. `best_mesh` gets a cluster and a list of candidates: pairs of a `Mesh` (data × tensor × pipeline) and a
# `Plan` (micro-batches, what's sharded, what's computed again). Pipelines come as a formula here, since our script has none.
# `check.try_mesh(cluster, mesh, plan)` returns the forecast for one candidate. Return the pair that trains fastest without
# running out of memory. It should beat the default, FSDP over all GPUs with recomputing, by 20 %.
#
# <details><summary>Hint 1</summary>
#
# There are fewer than 200 candidates per cluster, and each forecast takes microseconds. So you don't have to be clever.
#
# </details><details><summary>Hint 2</summary>
#
# Keep those with `peak_bytes <= cluster.memory_bytes`. Among them, take the smallest `step_s`: `min` has a `key`.
#
# </details><details><summary>Solution</summary>
#
# {solution of best_mesh}
#
# </details>


# %%
def best_mesh(cluster, candidates):
    """The (mesh, plan) among `candidates` with the shortest step, of those that fit into `cluster.memory_bytes`."""
    # <solution>
    made = [(check.try_mesh(cluster, mesh, plan), mesh, plan) for mesh, plan in candidates]
    fitting = [each for each in made if each[0].peak_bytes <= cluster.memory_bytes]
    _, mesh, plan = min(fitting, key=lambda each: each[0].step_s)
    return mesh, plan
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.best_mesh(best_mesh)

# %%
rows = {}
with contextlib.suppress(NotImplementedError):  # while the exercise is open
    for name, cluster in check.CLUSTERS.items():
        for title, (mesh, plan) in {
            "default": check.default(cluster),
            "yours": best_mesh(cluster, check.candidates(cluster)),
        }.items():
            made = check.try_mesh(cluster, mesh, plan)
            how = f"{mesh}, {plan.micro_batches} × {plan.micro_batch}" + ", recomputed" * plan.recompute
            rows[name, title] = {
                "mesh and micro-batches": how,
                "step, s": made.step_s,
                "MFU": made.mfu,
                "GiB": made.peak_bytes / 2**30,
            }
pd.DataFrame(rows).T.style.format(precision=3)

# %% [markdown]
# *Beat it:* give the 13B model a machine with a slower network: `cluster._replace(machine="polaris", ranks=512)`. Does the best mesh
# change?
#
# ## How far off is it?
#
# A forecast that nobody has checked against reality is a guess. These tables have known meshes and known speeds: Megatron-LM
# up to 3,072 GPUs, Llama 3 with 405 billion parameters, torchtitan, and MosaicML's FSDP. The first run of each table tells us
# what share of the peak one GPU reaches, and all runs of the Megatron-LM paper share one such number. Everything else is
# forecast.

# %%
guess = predict("How far off is the forecast of these runs, in the median?", low=0, high=50, unit="%")
guess

# %%
beside = published_meshes.beside_forecast()
guess.compare(100 * beside["error"].abs().median())
draw.beside_published(beside)

# %%
beside.style.format({"published": "{:.1%}", "forecast": "{:.1%}", "error": "{:+.0%}", "ranks": "{:,}"}).hide()

# %% [markdown]
# Pay attention to the signs of the errors. The model has no term for three things you can see here:
#
# - Megatron's GPUs get *faster* towards the largest models, because larger matrices keep them busier. Our share of the peak
#   comes from the smallest, so the forecast is too low, and most of all for the largest.
# - ZeRO-3 on 1,536 GPUs comes out far too optimistic. We let its messages overlap with computing, over a network that runs as the
#   data sheet says. DeepSpeed in 2021 was some way from that.
# - For Llama we had to assume how its pipeline is interleaved, which the table doesn't say.
#
# And don't let the median impress you. Where it's within 3 %, it mostly knows the same model from fewer GPUs, and on a good
# network that hardly changes. It even gets the order of two runs wrong: at 768 GPUs, ZeRO-3 comes out level
# with the mesh of 8x8x12, but in reality it was far slower. So use such a forecast to drop the hopeless meshes, and then
# measure the best few on real nodes.
#
# ## Deeper: one word, and what it costs
#
# Say somebody finds all those calls to `fully_shard` tedious, and keeps only the one for the whole model. The script still
# runs, the loss is the same, and there are fewer messages. So is that an improvement? Ask the dry run:

# %%
shorter = BUILD / "12_thousand_ranks" / "one_unit.py"
shorter.parent.mkdir(parents=True, exist_ok=True)
shorter.write_text(script.read_text().replace("(*blocks, model)", "(model,)"))
options = ["--text", script, "--width", 1024, "--heads", 16, "--layers", 8]
for file in (script, shorter):
    dry = dry_run(file, *options, world_size=8, mesh="8x1")
    calls = {each.kind: each.calls for each in dry.collectives}
    print(
        f"{file.name:>12}: {calls}, {dry.sent_bytes() / 1e6:.0f} MB sent, at most {dry.peak_bytes / 1e6:.0f} MB in memory"
    )

# %% [markdown]
# With a single unit, FSDP gathers all the weights at once and keeps them until backward is over. It even sends less, because it gathers
# once instead of twice. But every rank holds the whole model in memory, and that's what you wanted to avoid. On four ranks with a small
# model you'd never notice.
#
# ## Deeper: true values of 16 ranks, in one process
#
# There's something between the second world and the third. `LocalTensorMode` keeps the tensors of *all* ranks, with their values, in
# one process, and runs each operator on all of them. So an allreduce really adds up. It's slow and private (PyTorch's developers
# use it in tests), and beyond some dozens of ranks it takes too long. Here are 16 ranks that each start with their own number:

# %%
import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=16)
with LocalTensorMode(16):
    numbers = LocalTensor({rank: torch.tensor([float(rank)]) for rank in range(16)})
    dist.all_reduce(numbers)
    print(
        "on every rank:",
        {tensor.item() for tensor in numbers._local_tensors.values()},
        "and that's right:",
        sum(range(16)),
    )
dist.destroy_process_group()

# %% [markdown]
# ## Remember
#
# - A mesh is a grid of ranks with named dimensions. Tensor groups exchange activations in every layer, so keep them inside a node. Data groups
#   exchange weights and gradients, which can overlap with computing.
# - Under the `fake` process group, your own script runs as any rank of any world. Shapes, memory, calls, bytes and operations
#   are those of a real rank. Values aren't.
# - Real ranks prove that values are right, emulated workers show what a large batch does to learning, and dry runs tell you
#   what each of a thousand ranks holds and sends. You need all three.
# - The fastest mesh is the fastest *of those that fit*. A few hundred forecasts cost less than one failed job.
# - Check every forecast against published runs, and look at the worst one. Use it to choose what you measure, not instead of
#   measuring.
#
# **Take it home:** [scripts/mesh.py](scripts/mesh.py).
#
# **Sources.** D. Narayanan et al., [*Efficient Large-Scale Language Model Training on GPU Clusters Using
# Megatron-LM*](https://arxiv.org/abs/2104.04473), tables 1 and 2, also for operations per sequence, bubbles and the order of a mesh. Llama Team,
# [*The Llama 3 Herd of Models*](https://arxiv.org/abs/2407.21783), table 4.
# [torchtitan](https://github.com/pytorch/torchtitan), benchmarks/llama3_h100_202412_torchtitan.md, and MosaicML's
# [llm-foundry](https://github.com/mosaicml/llm-foundry), scripts/train/benchmarking, for FSDP's speed. V. Korthikanti et al., [*Reducing Activation
# Recomputation in Large Transformer Models*](https://arxiv.org/abs/2205.05198), for activations. M. Shoeybi et al.,
# [*Megatron-LM*](https://arxiv.org/abs/1909.08053), for tensor parallelism. S. Rajbhandari et al.,
# [*ZeRO*](https://arxiv.org/abs/1910.02054), for the volume of messages.

# %%
ranks.stop()
