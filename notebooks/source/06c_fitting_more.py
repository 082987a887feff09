# %% [markdown] track="large models"
# # Fitting more into the same GPUs
#
# Your model of 7 billion parameters needs 112 GB for weights, gradients and the optimizer's state. FSDP divides them among
# eight GPUs of 80 GB, so each holds 14 GB. Still, training runs out of memory: the activations of four sequences of 4,096
# tokens need another 75 GB on each GPU, even in bf16. What else can you do before you ask for more GPUs?
#
# **You will** write a backward pass that recomputes what wasn't kept, see what 16 bits save and what they don't, build a model
# that is never whole on any rank, and save it in shards.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [06](06_zero_and_fsdp.ipynb) first.

# %%
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from workshop_lib import paths, predict, profile, ranks, vit

from lessons import fitting_more as lesson

torch.set_num_threads(1)
sizes = profile.current()
folder = paths.BUILD / "06c_fitting_more"
folder.mkdir(parents=True, exist_ok=True)
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## Keep the activations, or compute them again
#
# *Activations* are the outputs of layers, which the forward pass keeps for the backward pass. They grow with the batch, and
# ZeRO doesn't divide them, because each rank has its own samples. *Recomputation*, also called *activation checkpointing*,
# keeps only the input of each block. When the backward pass reaches a block, it computes the block a second time. In PyTorch, a
# function with a backward pass of your own looks like this:


# %%
class Recompute(torch.autograd.Function):
    """Computes block(x), and keeps nothing but x for the backward pass."""

    @staticmethod
    def forward(ctx, block, x):
        ctx.block = block
        ctx.save_for_backward(x)
        return block(x)  # inside this function, PyTorch keeps nothing

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        # One gradient for each argument; a block has none. `again` is the function that
        # you'll write below.
        return None, again(ctx.block, x, gradient)


# %% [markdown]
# ### Exercise 1 (normal): compute it again
#
# With `backward_again`, a network keeps one tensor per block. `x` is the block's input, and `gradient` is the gradient with
# respect to the block's output. Return the gradient with respect to `x`. The gradients of the block's parameters must be in
# their `.grad` afterwards. Stop at `x`: autograd continues with the blocks before it.
#
# <details><summary>Hint 1: what, and in which order?</summary>
#
# Compute the block once more, this time so that PyTorch records it. Then go backward from its output, starting from `gradient`.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `x.detach().requires_grad_()` is a tensor with the same values that belongs to no other layer. Autograd calls your function
# with recording switched off; inside `with torch.enable_grad():` it's on. `y.backward(gradient)` starts from a given gradient.
#
# </details><details><summary>Solution</summary>
#
# {solution of backward_again}
#
# </details>


# %%
def backward_again(block, x, gradient):
    """The gradient of `x`, if `gradient` is that of `block(x)`.

    Adds the parameters' gradients to their `.grad`.
    """
    # <solution>
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        y = block(x)
    y.backward(gradient)
    return x.grad
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.backward_again(backward_again)

# %% [markdown]
# Compare three ways on eight transformer blocks. (As long as you haven't written it, `lesson.check.written` uses the solution.)

# %%
again = lesson.check.written(backward_again)
blocks = torch.nn.Sequential(*(vit.Block(width=128, heads=4) for _ in range(8)))
tokens = torch.randn(64, 25, 128, requires_grad=True)
ways = {
    "keep everything": lambda block, x: block(x),
    "your Recompute": Recompute.apply,
    "PyTorch's checkpoint": lambda block, x: checkpoint(block, x, use_reentrant=False),
}
lesson.recompute.compare(blocks, tokens, ways)

# %% [markdown]
# The gradients are equal, and the forward pass keeps far less. For the model at the top, 9 GB of activations remain instead of
# 75, so it fits. But every block computes its forward pass twice. A backward pass takes about as many operations as two
# forward passes, so that's a third more of them. The time may grow less than that, because not all of a step goes into
# these operations. By how much did yours grow?
#
# Autograd calls the `backward` of your `Recompute` only if `x` requires a gradient, as `tokens` does. A block that gets images
# would not be trained. With `use_reentrant=False`, PyTorch's `checkpoint` works there, too. It also repeats the random numbers,
# so that dropout drops the same units both times.
#
# In practice, people recompute *each block* of a transformer, as here, and call `fully_shard` afterwards. If that saves more
# than you need, recompute only every second block. Or use *selective* recomputation
# (`torch.utils.checkpoint.create_selective_checkpoint_contexts`): a block then keeps the outputs of its matrix products, and
# recomputes the rest, which is cheap.
#
# *Try it:* `lesson.recompute.compare(torch.nn.Sequential(blocks), tokens, ways)` treats all eight as one block. The forward pass keeps
# even less. But how much is in memory once the backward pass has recomputed that block?
#
# ## What 16 bits change
#
# *bf16* has the range of fp32, but only two to three significant digits. Take a weight of 1, and a hundred steps of 0.001.

# %%
guess = predict("What's the weight afterwards, in bf16?", low=1, high=1.2)
guess

# %%
for dtype in (torch.float32, torch.bfloat16):
    weight = torch.tensor(1.0, dtype=dtype)
    for _ in range(100):
        weight = weight + torch.tensor(1e-3, dtype=dtype)
    print(f"{dtype}: {weight.item():.4f}")
guess.compare(weight.item())

# %% [markdown]
# In bf16 the weight never moves, because the next larger number is 1.0078. That's why people compute in bf16 but keep *master
# weights* in fp32. Where these are depends on the recipe:
#
# | recipe | weights | gradients | optimizer | bytes per parameter |
# |---|---|---|---|---|
# | fp32 | 4 | 4 | 8 | 16 |
# | `torch.autocast` in bf16, or FSDP with a policy | 4, the masters | 4 | 8 | 16, plus bf16 copies while they're needed |
# | bf16 weights with fp32 masters: ZeRO's paper, DeepSpeed | 2 | 2 | 4 for the masters, 8 for Adam | 16 |
# | the same, with gradients added up in fp32: Megatron-LM | 2 | 4 | the same | 18 |
# | fp32 masters, but Adam's two means in bf16 | 2 | 2 | 4 for the masters, 4 for Adam | 12 |
# | bf16 and nothing else | 2 | 2 | 4 | 8, and small steps get lost |
#
# So the total shrinks only if Adam's state is in bf16, too. (With *stochastic rounding*, which rounds up or down at random,
# small steps aren't lost on average, and even the masters can go.) In any recipe, 16 bits halve the activations and the bytes
# of each allgather, and GPUs compute several times as fast. Under FSDP, you ask for it with a policy:

# %%
# %%ranks
import torch
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

from lessons import fitting_more as lesson

comm = lesson.by_hand.join()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
in_bf16 = lesson.by_hand.with_fsdp(lesson.by_hand.perceptron(), mp_policy=policy)
lesson.by_hand.train_fsdp(in_bf16)

# %% [markdown]
# The weights differ more than in 06, because both passes were computed in bf16. A rank sends a third fewer bytes, because both
# allgathers carry bf16. Gradients are still added up in fp32, because every sum in bf16 would be rounded. [fsdp2.py](scripts/fsdp2.py) has this policy as its option `--bf16`.
#
# ## A model that is never whole
#
# So far every rank built the whole network before `fully_shard` divided it. For 7 billion parameters in fp32, that's 28 GB per
# process. On the *meta device*, tensors have a shape but no memory. Build the model there, shard it, and only then allocate
# memory:

# %%
# %%ranks
with torch.device("meta"):
    network = lesson.by_hand.perceptron()
before = sum(
    p.untyped_storage().nbytes() for p in network.parameters() if not p.is_meta
)
lesson.by_hand.with_fsdp(network)
network.to_empty(device="cpu")  # memory for this rank's shards only, with nothing in it
torch.manual_seed(1 + comm.rank)  # on GPUs, use one seed
for layer in network:
    if hasattr(layer, "reset_parameters"):
        layer.reset_parameters()  # draws the values
first = network[1].weight
part = first.to_local().nbytes / first.nbytes
print(
    f"{before} bytes at first; now {part:.0%} of a tensor of shape {tuple(first.shape)}"
)

# %% [markdown]
# `to_empty` leaves whatever was in that memory, so draw values or load a checkpoint. On CPUs, each rank draws only its shard, so with one seed all shards would be equal. On GPUs, PyTorch
# counts on one seed for all ranks, and gives each shard numbers of its own. `fsdp2.py` takes another way: it gives memory to one whole layer, draws its
# values, and shards it before it turns to the next one. Then the network is the same on any number of ranks.
#
# ## Checkpoints in shards
#
# You could gather the whole network on rank 0 and save it there. With 7 billion parameters and Adam's state, that's 84 GB through
# one process. With *distributed checkpoints*, all ranks write their own shards at the same time:

# %%
team.push(folder=folder)

# %%
# %%ranks
import shutil

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict

if comm.rank == 0:
    shutil.rmtree(folder / "sharded", ignore_errors=True)
comm.Barrier()
_ = dcp.save({"model": get_model_state_dict(in_bf16)}, checkpoint_id=folder / "sharded")

# %%
for file in sorted((folder / "sharded").iterdir()):
    print(f"{file.stat().st_size / 2**20:6.2f} MiB  {file.name}")

# %% [markdown]
# `.metadata` says which piece of which tensor is in which file. A different number of ranks can therefore load the checkpoint,
# too. To resume training, save the optimizer as well: `get_state_dict(model, optimizer)` returns both states, and you save them
# in one dictionary, `{"model": …, "optimizer": …}`. Later, make the same dictionary from a fresh model and optimizer, let
# `dcp.load(states, checkpoint_id=…)` fill it in place, and give both entries to `set_state_dict`
# ([13b](13b_runs_that_survive.ipynb)). A single process can turn the shards into one file:

# %%
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

dcp_to_torch_save(folder / "sharded", folder / "whole.pt")
whole = torch.load(folder / "whole.pt")["model"]
print(
    f"{(folder / 'whole.pt').stat().st_size / 2**20:.2f} MiB in one file, "
    f"in {whole['1.weight'].dtype}"
)

# %% [markdown]
# ## Deeper: fp16, and the scale of the loss
#
# *fp16* has a much smaller range than bf16. Gradients are small, so does the range matter? Check which of the perceptron's
# gradients each format can hold.

# %%
gradient = lesson.recompute.gradient_of_a_trained_perceptron()
print(
    f"{len(gradient):,} gradients that aren't 0, "
    f"half of them smaller than {gradient.abs().median():.1e}"
)
formats = {
    "bf16": (torch.bfloat16, 1),
    "fp16": (torch.float16, 1),
    "fp16, loss times 2^16": (torch.float16, 2.0**16),
}
for name, (dtype, scale) in formats.items():
    cast = (gradient * scale).to(dtype)
    zero = (cast == 0).float().mean()
    imprecise = (cast.abs() < torch.finfo(dtype).tiny).float().mean() - zero
    print(
        f"{name:>22}: {zero:6.2%} become 0, {imprecise:6.2%} lose precision, "
        f"{cast.isinf().sum()} are too large"
    )

# %% [markdown]
# A gradient that becomes 0 teaches the network nothing. *Loss scaling* multiplies the loss, and so all gradients, by a large
# number. The order of the operations matters:
#
# 1. Run the forward pass in 16 bits, scale the loss, and run the backward pass. DDP and FSDP average *scaled* gradients during
#    the backward pass.
# 2. Check the averages for infinities and NaN, not each rank's own gradients. If there are any, all ranks skip this
#    step and lower the scale. They agree because an infinity on one rank makes the average infinite on all of them, or
#    NaN if another rank has an infinity of the opposite sign. Under FSDP a rank sees only shards, so the ranks share
#    the result of the check, as `torch.amp.GradScaler` does for DTensors.
# 3. Divide the gradients by the scale, in fp32.
# 4. Do whatever depends on the gradients' size: clip them, or compute LARS's ratios ([07d](07d_large_batch_optimizers.ipynb)),
#    from the master weights.
# 5. Take the optimizer's step on the master weights.
#
# If you swap 3 and 4, you clip scaled gradients, and nothing raises an error. bf16 needs no scale, so prefer it.
#
# ## Deeper: 8 bits
#
# On an H100 or newer, matrix products in *FP8* run at up to twice the rate of bf16. FP8's range is so small that values have to be
# scaled into it. With one scale per tensor, a single large value ruins the small ones. So Blackwell GPUs give each block of 32
# values a scale (*MXFP8*), or, in 4 bits, each block of 16 (*NVFP4*). Nothing of this can be seen on a CPU.
#
# In torchao, `convert_to_float8_training(model)` replaces the linear layers, before `fully_shard`. With the option
# `enable_fsdp_float8_all_gather`, FSDP also gathers in FP8, half the bytes of bf16. Its authors report up to 1.25 times the
# speed for 8 billion parameters on 8 GPUs.
#
# The weights and the optimizer stay as they are, so this saves hardly any memory. Take care when you compare *MFU*, the share of
# the peak rate that training reaches: if FP8 makes 40 % of the bf16 peak 1.3 times as fast, that's 26 % of the FP8 peak.
# [12](12_thousand_ranks.ipynb) forecasts what FP8 brings.
#
# ## Deeper: offload
#
# With an offload policy, FSDP keeps the shards, their gradients and the optimizer's state in the host's memory, and takes the
# step there. Here everything is on the host anyway, so this cell runs the policy and *computes* what would move in each step:

# %%
# %%ranks
cost = lesson.by_hand.train_fsdp(
    lesson.by_hand.with_fsdp(
        lesson.by_hand.perceptron(), offload_policy=CPUOffloadPolicy(pin_memory=False)
    )
)
up = 2 * cost.held_bytes["parameters"] / 2**20  # both allgathers read the shards
down = cost.held_bytes["gradients"] / 2**20
print(
    f"on the host {sum(cost.held_bytes.values()) / 2**20:.1f} MiB; "
    f"each step moves {up:.1f} MiB up and {down:.1f} MiB down"
)

# %% [markdown]
# ## Deeper: several nodes, and a mesh
#
# *Hybrid sharding* (HSDP) shards the model only inside each node, and keeps one copy per node. The allgathers then stay inside
# the nodes, and only reduced gradients cross between them. To ask for it, you pass a *device mesh*, which arranges the ranks in
# rows and columns. PyTorch's process group `fake` only pretends to send, so you can rehearse 16 GPUs on 4 nodes right here:

# %%
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=16)
meshes = {"FSDP over 16": init_device_mesh("cpu", (16,))}
meshes["HSDP, 4 nodes of 4"] = init_device_mesh(
    "cpu", (4, 4), mesh_dim_names=("nodes", "gpus")
)
for title, mesh in meshes.items():
    print(
        f"{title}:",
        lesson.recompute.rehearse(
            lesson.by_hand.with_fsdp(lesson.by_hand.perceptron(), mesh=mesh)
        ),
    )
dist.destroy_process_group()

# %% [markdown]
# With HSDP, the allreduces are new. Together they add up arrays of $n/4$ bytes per rank, and they're the only messages between
# nodes. You pay with memory: each rank holds a quarter of the model instead of a sixteenth.
#
# ## Remember
#
# - Recomputation trades a second forward pass for most of the activations.
# - Computing in bf16 saves time, and halves the activations and FSDP's allgathers. The master weights stay in fp32.
# - Build large models on the meta device, and save them in shards.
#
# **Take it home:** [scripts/fsdp2.py](scripts/fsdp2.py), with `--bf16 --recompute --accumulate 2 --clip 1`. Killed and started
# again, on the same number of ranks or another, it goes on. [scripts/trainer.py](scripts/trainer.py) is a larger script
# in which you'll find both: its `build` creates a GPT on the meta device, and its `Checkpoints` are in shards.
#
# **Sources.** T. Chen et al., [*Sublinear Memory Cost*](https://arxiv.org/abs/1604.06174), for recomputation. V. Korthikanti et
# al., [*Reducing Activation Recomputation*](https://arxiv.org/abs/2205.05198), for the bytes. P. Micikevicius et al., [*Mixed
# Precision Training*](https://arxiv.org/abs/1710.03740). NVIDIA's [Megatron
# Core](https://docs.nvidia.com/megatron-core/developer-guide/latest/api-guide/dist_optimizer.html), for 18 bytes.
# DeepSeek-AI, [*DeepSeek-V3*](https://arxiv.org/abs/2412.19437), for Adam's means in bf16. P. Zamirai et al.,
# [*Revisiting BFloat16 Training*](https://arxiv.org/abs/2010.06192), for stochastic rounding. B. Rouhani et al., [*Microscaling
# Data Formats*](https://arxiv.org/abs/2310.10537). [torchao](https://docs.pytorch.org/ao/stable/workflows/training.html), for FP8. PyTorch's
# [`checkpoint`](https://docs.pytorch.org/docs/stable/checkpoint.html) and [distributed
# checkpoints](https://pytorch.org/docs/stable/distributed.checkpoint.html), and its source, version 2.15, for `GradScaler`.

# %%
ranks.stop()
