# %% [markdown] track="large models"
# # Fitting more into the same GPUs
#
# Your model of 7 billion parameters needs 112 GB for weights, gradients and the optimizer's state. FSDP divides them among
# eight GPUs of 80 GB, so each holds 14 GB. Still, training runs out of memory: the activations of four sequences of 4,096
# tokens need another 75 GB on each GPU, even in bf16. What else can you do before you ask for more GPUs?
#
# **You will** write a backward pass that recomputes what wasn't kept, and an optimizer whose small steps aren't lost in 16 bits.
# You will also build a model that is never whole on any rank, and save it in shards.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [06](06_zero_and_fsdp.ipynb) first.

# %%
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
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
# their `.grad` afterwards. Stop at `x`, because autograd continues with the blocks before this one.
#
# <details><summary>Hint 1: what, and in which order?</summary>
#
# Compute the block once more, this time so that PyTorch records it. Then go backward from its output, starting from `gradient`.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `x.detach().requires_grad_()` is a tensor with the same values, cut off from the layers that computed `x`. Autograd calls your
# function with recording switched off; inside `with torch.enable_grad():` it's on. `y.backward(gradient)` starts from a given
# gradient.
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
# Compare three ways on eight transformer blocks. (As long as you haven't written `backward_again`, `lesson.check.written` uses
# the solution.)

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
# The gradients are equal, and the forward pass keeps far less. Is that enough for the model at the top? The calculator of
# notebook 06 has a formula for the activations of a transformer. With recomputation, every block keeps its input, but only one
# block at a time keeps everything else.

# %%
parameters = 7e9
_, shape = lesson.MODELS["Llama 7B"]
shards_gb = 16 * parameters / 8 / 1e9
for recompute, title in ((False, "keep everything"), (True, "recompute")):
    kept_bytes = lesson.activation_bytes(shape, 4096, 4, checkpointing=recompute)
    kept_gb = kept_bytes / 1e9
    print(
        f"{title}: {shards_gb:.0f} GB of shards + {kept_gb:.0f} GB of activations "
        f"= {shards_gb + kept_gb:.0f} of 80 GB"
    )

# %% [markdown]
# So it fits. But every block computes its forward pass twice. A backward pass takes about as many operations as two forward
# passes, so that's a third more operations. The time may grow less than that, because a step also spends time on other things.
# By how much did your step's time grow?
#
# Autograd calls the `backward` of your `Recompute` only if `x` requires a gradient, as `tokens` does. In the first block of a
# network, `x` may be images, which require none, so that block's weights would never be trained. With `use_reentrant=False`,
# PyTorch's `checkpoint` works there, too. This function also repeats the random numbers, so that dropout drops the same units
# both times.
#
# In a transformer, recompute *each block*, as here, and call `fully_shard` afterwards. If that saves more than you need,
# recompute only every second block. Or use *selective* recomputation
# (`torch.utils.checkpoint.create_selective_checkpoint_contexts`): a block then keeps the outputs of its matrix products, and
# recomputes the rest, which is cheap.
#
# *Try it:* `lesson.recompute.compare(torch.nn.Sequential(blocks), tokens, ways)` treats all eight blocks as one. The forward
# pass keeps even less. But how much is in memory once the backward pass has recomputed that block?
#
# ## What 16 bits change
#
# *bf16* has the range of fp32, but only two to three significant digits. Start with a weight of 1, and take a hundred steps of
# 0.001.

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
# In bf16 the weight never moves, because the next larger number is 1.0078. That's why *mixed precision* computes in bf16, while
# the optimizer updates *master weights*, a second copy in fp32.
#
# ### Exercise 2 (normal): steps that aren't lost
#
# With `MasterWeights`, your network computes in bf16 without losing small steps. `__init__` copies the weights to fp32, as
# `self.masters`, and creates an optimizer for these copies. Write `step`, which the training loop calls after the backward pass.
# The optimizer takes its step in fp32, and the network continues with the masters, rounded to bf16. Don't keep more bytes than
# necessary: when `step` returns, no gradient is left in memory.
#
# <details><summary>Hint 1: what, and in which order?</summary>
#
# The backward pass leaves gradients in bf16, in each weight's `.grad`. Where does the optimizer look for them, and in which
# type? And how does the network get its new weights?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `tensor.float()` is a copy in fp32. `weight.data.copy_(master.detach())` writes a master's values into a weight, and rounds
# them. A gradient is gone when `.grad` is None.
#
# </details><details><summary>Solution</summary>
#
# {solution of MasterWeights.step}
#
# </details>


# %%
class MasterWeights:
    """Trains weights in bf16. The optimizer updates copies of them in fp32."""

    def __init__(self, weights, make_optimizer):
        self.weights = list(weights)
        self.masters = [w.detach().float().requires_grad_() for w in self.weights]
        self.optimizer = make_optimizer(self.masters)

    def step(self):
        """Take the optimizer's step, and drop all gradients."""
        # <solution>
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad = weight.grad.float()
            weight.grad = None
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters, strict=True):
            weight.data.copy_(master.detach())
            master.grad = None
        # <stub>
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>


# %%
lesson.check.MasterWeights(MasterWeights)

# %% [markdown]
# Take the hundred steps again, now with your class. And how much memory does your class take? Train the perceptron of notebook
# 06 with it, and count the bytes before a step.

# %%
Masters = lesson.check.written(MasterWeights)
weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
masters = Masters([weight], lambda copies: torch.optim.SGD(copies, lr=1e-3))
for _ in range(100):
    weight.grad = -torch.ones_like(weight)
    masters.step()
print(f"bf16 with your masters: {weight.item():.4f}")

network = lesson.by_hand.perceptron().to(torch.bfloat16)
masters = Masters(network.parameters(), torch.optim.Adam)
images, labels = lesson.by_hand.batch()
for _ in range(2):
    cross_entropy(network(images.to(torch.bfloat16)).float(), labels).backward()
    held_bytes = lesson.by_hand.live_bytes(network, masters.optimizer)
    masters.step()
count = sum(p.numel() for p in network.parameters())
for kind, size in held_bytes.items():
    print(f"{kind:>10}: {size / count:.2f} bytes per parameter")

# %% [markdown]
# Now the weight moves. It ends at 1.1016, the bf16 number nearest to 1.1. But a parameter still costs 16 bytes: 2 for the
# weight and 4 for its master, 2 for the gradient, and 8 for Adam. Other recipes keep other numbers in 16 bits:
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
# small steps aren't lost on average, and even the masters can go.) In all of these recipes except the first, 16 bits roughly
# halve the activations, and GPUs compute several times as fast. An allgather of bf16 weights also sends half the bytes. Under
# FSDP, you ask for bf16 with a policy:

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
# The weights differ more than in notebook 06, because both passes were computed in bf16. A rank sends a third fewer bytes,
# because both allgathers carry bf16. Gradients are still added up in fp32, because in bf16 every sum would be rounded to two or
# three digits. [fsdp2.py](scripts/fsdp2.py) has this policy as its option `--bf16`.
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
# `to_empty` leaves whatever was in that memory, so draw random values or load a checkpoint. On CPUs, each rank draws only its
# shard, so with the same seed all shards would be equal. On GPUs, PyTorch expects the same seed on all ranks, and gives each
# shard numbers of its own. `fsdp2.py` takes another way: it gives memory to one whole layer, draws its values, and shards it
# before it turns to the next one. Then the network is the same on any number of ranks.
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
# *fp16* has a much smaller range than bf16. Does that matter for gradients, which are small? Let's look at the perceptron's
# gradients after 32 steps of training.

# %%
guess = predict(
    "What percentage of the gradients lose precision or become 0 in fp16?",
    low=0,
    high=100,
    unit="%",
)
guess

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
too_small = gradient.half().abs() < torch.finfo(torch.float16).tiny
guess.compare(100 * too_small.float().mean().item())

# %% [markdown]
# A gradient that becomes 0 teaches the network nothing. *Loss scaling* multiplies the loss by a large number, which multiplies
# all gradients, too. DDP and FSDP average these scaled gradients. Three steps follow, in this order:
#
# 1. The ranks look for infinities and NaN in the averages. If there are any, all ranks skip the optimizer's step and lower the
#    scale. (Under DDP they agree, because an infinity on one rank makes the average infinite or NaN on all of them. Under FSDP
#    a rank sees only shards, so `torch.amp.GradScaler` shares the result.)
# 2. They divide the gradients by the scale, in fp32.
# 3. They clip the gradients, or compute LARS's ratios ([07d](07d_large_batch_optimizers.ipynb)), and take the optimizer's step
#    with the master weights.
#
# If you swap the last two steps, you clip scaled gradients, and nothing raises an error. bf16 needs no scale, so prefer it.
#
# Are 8 bits better still? On an H100 or newer, matrix products in *FP8* run at up to twice the rate of bf16. FP8's range is so
# small that each tensor, or even each block of 32 values (*MXFP8*), needs a scale of its own. Blackwell GPUs can compute in 4
# bits, in blocks of 16 (*NVFP4*). In torchao, `convert_to_float8_training(model)` replaces the linear layers, before
# `fully_shard`. The weights and the optimizer's state stay as they are, so FP8 saves time, but hardly any memory. In
# [torchtitan's measurements](https://github.com/pytorch/torchtitan), Llama 3.1 8B trains 1.28 times as fast on 8 H100.
#
# ## Deeper: offload
#
# With an offload policy, FSDP keeps the shards, their gradients and the optimizer's state in the host's memory, and takes the
# step there. Here everything is on the host anyway, so this cell runs the policy and *computes* how many bytes each step would
# move up to a GPU and back down:

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
# HSDP also uses allreduces, because each gradient shard is summed over the nodes. The allreduces process $n/4$ bytes per rank,
# and they're the only messages between nodes. You pay with memory: each rank holds a quarter of the model instead of a
# sixteenth.
#
# ## Remember
#
# - Recomputation spends a second forward pass to save most of the activations' memory.
# - Computing in bf16 saves time, and halves the activations and FSDP's allgathers. The optimizer updates master weights in fp32,
#   so that small steps aren't lost, and a parameter still costs 16 bytes.
# - Build large models on the meta device, and save them in shards.
#
# **Take it home:** [scripts/fsdp2.py](scripts/fsdp2.py), with `--bf16 --recompute --accumulate 2 --clip 1`. If it's killed and
# you start it again, on the same number of ranks or another, it goes on from its last checkpoint. In a larger script,
# [scripts/trainer.py](scripts/trainer.py), `build` creates a GPT on the meta device, and `Checkpoints` saves it in shards.
#
# **Sources.** T. Chen et al., [*Sublinear Memory Cost*](https://arxiv.org/abs/1604.06174), for recomputation. V. Korthikanti et
# al., [*Reducing Activation Recomputation*](https://arxiv.org/abs/2205.05198), for the bytes. P. Micikevicius et al., [*Mixed
# Precision Training*](https://arxiv.org/abs/1710.03740). NVIDIA's [Megatron
# Core](https://docs.nvidia.com/megatron-core/developer-guide/latest/api-guide/dist_optimizer.html), for 18 bytes.
# DeepSeek-AI, [*DeepSeek-V3*](https://arxiv.org/abs/2412.19437), for Adam's means in bf16. P. Zamirai et al.,
# [*Revisiting BFloat16 Training*](https://arxiv.org/abs/2010.06192), for stochastic rounding. B. Rouhani et al., [*Microscaling
# Data Formats*](https://arxiv.org/abs/2310.10537). [torchao](https://docs.pytorch.org/ao/stable/workflows/training.html), for
# FP8. PyTorch's [`checkpoint`](https://docs.pytorch.org/docs/stable/checkpoint.html) and [distributed
# checkpoints](https://pytorch.org/docs/stable/distributed.checkpoint.html), and its source, version 2.15, for `GradScaler`.

# %%
ranks.stop()
