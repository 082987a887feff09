# %% [markdown] track="frameworks"
# # DeepSpeed: ZeRO from a configuration
#
# A colleague gives you a training script and a JSON file. The script is almost the one you know. The file decides whether the
# model fits and what the ranks send each other. And if one line is missing from it, DeepSpeed clips your gradients without
# telling you. Can you read such a file, and write one?
#
# **You will** write DeepSpeed's configuration, see what turns a DDP script into a DeepSpeed script, measure what each stage
# keeps and sends, and merge a sharded checkpoint into one file.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores and DeepSpeed, which `make setup` installs; no GPU, no
# network. Do notebook [06](06_zero_and_fsdp.ipynb) first: it explains the stages.

# %%
from contextlib import suppress

import pandas as pd
from IPython.display import display

from workshop_lib import ranks
from workshop_lib.lessons.deepspeed import judge as check
from workshop_lib.lessons.zero_and_fsdp import figures
from workshop_lib.notebook import profile, take_home
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, MNIST, SCRIPTS
from workshop_lib.ranks import scripts
from workshop_lib.training import backends

backends.require("deepspeed")
sizes = profile.current()
folder = BUILD / "06b_deepspeed"
folder.mkdir(parents=True, exist_ok=True)
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## From DDP to DeepSpeed
#
# *DeepSpeed* comes from the people who proposed ZeRO. It wraps the model and the optimizer in an *engine*, and you control the
# engine through a configuration. Here's everything that changes in notebook 05's DDP script:

# %%
take_home.diff("ddp.py", "zero_deepspeed.py")

# %% [markdown]
# | change | why |
# |---|---|
# | `deepspeed.init_distributed()` | the ranks find each other, through torchrun's variables if they're set, otherwise through MPI |
# | `__compatible_ops__ = {}` | only for CPUs, where DeepSpeed would otherwise spend two minutes compiling its own allreduce |
# | `config` | the stage, and the number of samples per backward |
# | `deepspeed.initialize` | replaces the DDP wrapper. It moves the model to the rank's device, sends rank 0's weights to every rank, and takes over the optimizer and the schedule |
# | `engine(…)`, `engine.backward`, `engine.step` | the engine now decides when to send. `step` also clears the gradients and steps the schedule |
# | `engine.save_checkpoint` on *every* rank | each rank holds a share of the optimizer's state, and writes it to a file of its own |
# | `DistributedSampler` stays | ZeRO is data parallel, so each rank still needs its own samples |
#
# You can start it in three ways:
#
# - `deepspeed --no_local_rank zero_deepspeed.py` is DeepSpeed's own launcher. It takes all GPUs of this machine, or of the hosts in a
#   `--hostfile`. Without `--no_local_rank`, it passes an argument `--local_rank=0` to the script, which would have to accept
#   it.
# - `mpiexec -n 2 python -m mpi4py zero_deepspeed.py`, or `srun` on a cluster. Each process then asks MPI for its rank. Rank 0 always
#   listens on port 29500, so two people on the same machine get in each other's way.
# - `torchrun`, as for DDP. It takes any free port and needs no network, so we use it here. (You can ignore the warnings. They
#   come from DeepSpeed and from the PyTorch functions it calls.)

# %%
launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", sizes.ranks]
options = ["--data", MNIST, "--images", sizes.sweep_samples or 60_000, "--epochs", 1, "--out", folder / "cnn"]
scripts.run(*launch, SCRIPTS / "zero_deepspeed.py", *options, timeout_s=sizes.timeout_s)

# %% [markdown]
# ## The configuration
#
# The configuration is a dictionary in the script, or a JSON file. You'll meet these keys in almost every one:
#
# | key | what it says |
# |---|---|
# | `train_micro_batch_size_per_gpu` | samples of one backward on one rank |
# | `gradient_accumulation_steps` | backwards per step, 1 by default. Multiply it by the micro-batch and by the number of ranks, and you get the global batch |
# | `zero_optimization: stage` | 0 to 3 |
# | `zero_optimization: offload_optimizer` | where the optimizer's state lives: on the device, or `{"device": "cpu"}` |
# | `zero_allow_untested_optimizer` | lets you use PyTorch's optimizers. DeepSpeed's own are faster on GPUs, but have to be compiled |
# | `bf16: enabled`, `fp16: enabled` | mixed precision, with master weights in fp32 |
# | `gradient_clipping` | largest norm of the gradient, over all shares. It defaults to 1.0. Unless you set it to 0, gradients are clipped silently and your results differ from DDP's |
# | `steps_per_print` | how often it reports |
#
# ### Exercise 1 (normal): write one
#
# With `configuration` you can train with any global batch, however little memory a rank has. Each step should see
# `global_batch` samples, which the `ranks` ranks split evenly. (You can rely on that leaving no remainder.) But a rank can
# hold the activations of at most `most` samples at a time. Return the dictionary.
# Make the micro-batch as large as memory allows, so that you need as few as possible.
# The optimizer is one of PyTorch's, and gradients aren't clipped, because the result should be the same as DDP's.
#
# <details><summary>Hint 1: the numbers</summary>
#
# Each rank takes `global_batch // ranks` samples per step. The micro-batch has to divide that number, without a remainder. What's
# the largest number up to `most` that does?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `max(m for m in range(1, most + 1) if mine % m == 0)` finds it. You need five keys from the table:
# two numbers, the stage, one that
# allows PyTorch's optimizer, and one that stops the clipping.
#
# </details><details><summary>Solution</summary>
#
# {solution of configuration}
#
# </details>


# %%
def configuration(global_batch, ranks, most, stage):
    """DeepSpeed's configuration: no more than `most` samples per backward on a rank, and PyTorch's optimizer."""
    # <solution>
    mine = global_batch // ranks
    micro_batch = max(m for m in range(1, most + 1) if mine % m == 0)
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": mine // micro_batch,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
    }
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.configuration(configuration)

# %% [markdown]
# *Break it:* leave out `gradient_clipping`, and train with a large learning rate. Would you notice the clipping?
#
# ## Stages 0 to 3, measured
#
# Now train with your configuration. The network is the perceptron of notebook 06,
# because the workshop's own is too small for memory to
# matter.

# %%
team.push(configuration=configuration, folder=folder)

# %%
# %%ranks --timeout 120
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # in this notebook everything stays there, also beside a GPU

import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist
from workshop_lib.lessons.zero_and_fsdp.traffic import Traffic
from workshop_lib.models import torch_cnn
from workshop_lib.training import memory, world
from workshop_lib.training.backends import deepspeed as ours
from workshop_lib.training.backends.deepspeed import deepspeed

torch.set_num_threads(1)
ours.start(world.detect(), torch.device("cpu"))  # deepspeed.init_distributed(), without compiling anything
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
train_set = mnist.load("train")
images = torch_cnn.normalize(torch.tensor(train_set.images[: 64 * size]))[rank::size]
labels = torch.tensor(train_set.labels[: 64 * size]).long()[rank::size]


# %%
# %%ranks
def perceptron(width=1024):
    """784 inputs, three hidden layers, 12 outputs; the same weights wherever it is built."""
    torch.manual_seed(1)
    widths, layers = [784, width, width, width], [torch.nn.Flatten()]
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 12))


def config_of(most, stage):
    """Yours, or the finished one as long as the exercise is open."""
    try:
        return configuration(64 * size, size, most, stage)
    except NotImplementedError:
        return ours.config(most, stage) | {"gradient_accumulation_steps": 64 // most}


parameters = sum(p.numel() for p in perceptron().parameters())

# %% [markdown]
# DeepSpeed gathers layers ahead of time, merges messages, and keeps small parameters whole. Its defaults are meant for models
# with billions of parameters.
# With these defaults, all of our small network would stay gathered, so we turn them down. For a large model, leave them alone.

# %%
# %%ranks
small = dict.fromkeys(("reduce_bucket_size", "allgather_bucket_size"), 1_200_000)  # elements in one message
small |= {f"stage3_{name}": 0 for name in ("max_live_parameters", "max_reuse_distance", "prefetch_bucket_size")}
small["stage3_param_persistence_threshold"] = 0  # smaller parameters are never shared out


def train(config, steps=2, cast=torch.Tensor.float, then=lambda engine: None):
    """Train the perceptron: bytes held between backward and step, traffic and loss of the last step, what `then` says."""
    config = config | {"zero_optimization": config["zero_optimization"] | small}
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    parts = engine.gradient_accumulation_steps()
    for _ in range(steps):
        with Traffic() as traffic:
            for some, their_labels in zip(images.chunk(parts), labels.chunk(parts), strict=True):
                loss = cross_entropy(engine(cast(some)).float(), their_labels)
                engine.backward(loss)
                held = memory.live_bytes(engine.module, engine.optimizer)
                engine.step()  # steps only after the last micro-batch
    outcome = {"held": held, "traffic": dict(traffic.handed_bytes), "loss": loss.item(), "then": then(engine)}
    engine.destroy()
    return outcome


# %%
guess = predict(
    f"DeepSpeed, fp32, {sizes.ranks} ranks: bytes per parameter on each rank in stage 3?", low=0, high=20, unit="B"
)
guess

# %%
# %%ranks --timeout 120
by_stage = [train(config_of(64, stage)) for stage in range(4)]

# %%
by_rank, parameters = team.pull("by_stage"), team.pull("parameters")[0]
measured = {f"stage {stage}": [stages[stage]["held"] for stages in by_rank] for stage in range(4)}
guess.compare(sum(measured["stage 3"][0].values()) / parameters)

# %%
print("loss of the second step:", ", ".join(f"stage {stage} {row['loss']:.4f}" for stage, row in enumerate(by_rank[0])))
figures.zero(measured, parameters)

# %% [markdown]
# - The losses are the same. Stages differ in who holds and sends what, not in what is computed.
# - From stage 1 on, DeepSpeed keeps *master weights* even in fp32: a second copy of this rank's share. So the optimizer takes
#   12 bytes per parameter of the share, not 8. In bf16 DeepSpeed needs that copy. In fp32 it's the price of using the same
#   code for both.
# - Stages 1 and 2 hold the same gradients here. Without accumulation, DeepSpeed drops what the rank doesn't own, even in
#   stage 1.
#   And if a parameter lies across the border between two shares, both ranks keep its whole gradient.
# - Stage 3 holds a share of everything.
#
# ### Exercise 2 (warm-up): the formula
#
# With `bytes_per_rank` you'll know whether a model fits *before* you ask for an allocation.
# Write it for Adam in fp32, without that second copy. Each parameter takes 4 bytes for its weight, 4 for its
# gradient and 8 for Adam's state. `stage` is 0 to 3. Return the bytes
# that each rank holds, as a dictionary with `"parameters"`, `"gradients"` and `"optimizer"`.
#
# <details><summary>Hint</summary>
#
# Start with everything whole. What does stage 1 divide by the ranks, what does stage 2 add, and what stage 3?
#
# </details><details><summary>Solution</summary>
#
# {solution of bytes_per_rank}
#
# </details>


# %%
def bytes_per_rank(parameters, ranks, stage):
    """Bytes of each kind on every rank, for Adam in fp32."""
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
# Your formula can draw the same picture for ranks you don't have. Compare it with the measured one. Where does the formula
# predict less, and why?

# %%
with suppress(NotImplementedError):  # while the exercise is open
    eight = {f"stage {stage}": [bytes_per_rank(parameters, 8, stage)] * 8 for stage in range(4)}
    display(figures.zero(eight, parameters))

# %% [markdown]
# ## Which stage, when you accumulate?
#
# Split the same batch into four micro-batches per step. Stage 2 has nowhere to add up whole gradients, so how often does it send them?

# %%
guess = predict(
    "With 4 micro-batches, how many times as many gradient bytes as stage 1 does stage 2 send?", low=0, high=6
)
guess

# %%
# %%ranks --timeout 120
accumulated = {stage: train(config_of(16, stage))["traffic"] for stage in (1, 2, 3)}

# %%
handed = pd.DataFrame(team.pull("accumulated")[0]).fillna(0) / (4 * parameters)
gradients = handed.loc[[name for name in handed.index if name != "allgather" and name != "broadcast"]].sum()
guess.compare(gradients[2] / gradients[1])

# %%
handed.rename(columns="stage {}, n bytes".format).style.format("{:.2f}")

# %% [markdown]
# Stage 1 adds up whole gradients and reduces them once. Stage 2 reduces them after every micro-batch, and stage 3 also gathers
# all weights twice per micro-batch. So with many micro-batches, stage 1 is often the better choice.
#
# Did you notice the allreduces? DeepSpeed could reduce-scatter the gradients. But by default it puts the gradients of several
# owners into one bucket and allreduces that.
# Altogether it sends up to 1.5 times the bytes of your `Zero2`, but in fewer messages.
# (`use_multi_rank_bucket_allreduce: false` turns that off.)
#
# ## Checkpoints
#
# In stage 3 no rank has all the weights, and from stage 1 on, no rank has all of the optimizer's state.
# So call `save_checkpoint` on *all* ranks:
# each writes its share. If you call it on rank 0 alone, that rank waits forever.


# %%
# %%ranks --timeout 120
def save(engine):
    engine.save_checkpoint(folder / "checkpoint", tag="last")
    with torch.no_grad():
        return cross_entropy(engine(images), labels).item()


saved = train(config_of(64, 3), then=save)

# %%
for file in sorted((folder / "checkpoint").rglob("*")):
    if file.is_file():
        print(f"{file.stat().st_size / 2**20:7.3f} MiB  {file.relative_to(folder)}")

# %% [markdown]
# There are two files per rank, and a script: `python zero_to_fp32.py . model` merges them into one set of fp32 weights, for
# everyone who only wants to use the network. (The machine needs enough memory for all of them.) You can also call it as a
# function:

# %%
# %%ranks --timeout 120
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

if rank == 0:
    whole = get_fp32_state_dict_from_zero_checkpoint(folder / "checkpoint", tag="last")
    network = perceptron()
    network.load_state_dict(whole)
    torch.save(whole, folder / "whole.pt")
    with torch.no_grad():
        print(
            f"loss before saving {saved['then']:.6f}, of the one file {cross_entropy(network(images), labels).item():.6f}"
        )

# %% [markdown]
# To resume, call `engine.load_checkpoint(folder)` on all ranks, after `initialize`. The number of ranks must be the same as
# before.
# If it isn't, convert to DeepSpeed's *universal checkpoint* first. (Any number of ranks can read PyTorch's distributed
# checkpoints, from notebook 06.)
#
# ## DeepSpeed or FSDP?
#
# | | DeepSpeed | FSDP2 |
# |---|---|---|
# | stages | 0 to 3, one number in a file | 3, or 2 with `reshard_after_forward=False` |
# | the training loop | `engine.backward`, `engine.step` | as for one process |
# | master weights | one more fp32 copy of the share, from stage 1 on | the fp32 shards themselves |
# | offload | optimizer and weights, to the host, or to disk (ZeRO-Infinity) | everything that's sharded, to the host |
# | shards inside a node, one copy per node | `zero_hpz_partition_size`, `mics_shard_size` | a mesh of two dimensions |
# | combines with tensor and pipeline parallelism | its own pipeline; Megatron-DeepSpeed | PyTorch's, over one mesh |
# | checkpoint to one file | `zero_to_fp32.py` | `dcp_to_torch_save` |
#
# If you start from plain PyTorch, use FSDP. If your code uses DeepSpeed already, or you want to switch to stage 1 or to
# offload to disk by changing a line in a file, use DeepSpeed.
#
# ## Deeper: offload
#
# *ZeRO-Offload* moves the optimizer's state, and the step itself, to the host, which has more memory than the GPU. Each
# backward sends gradients down to the host, and each step sends weights back up.
# (FSDP does this with a `CPUOffloadPolicy`, as you saw.)
# Without a GPU, everything is on the host anyway, so this cell runs the configuration and *computes* what would move:

# %%
# %%ranks --timeout 120
offloading = config_of(64, 2)
offloading["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
offloading["zero_force_ds_cpu_optimizer"] = False  # DeepSpeed's Adam for CPUs would have to be compiled
offloaded = train(offloading)
if rank == 0:
    share = 4 * parameters / size
    print(f"loss {offloaded['loss']:.4f}, without offload {by_stage[2]['loss']:.4f}")
    print(f"on the host: {offloaded['held']['optimizer'] / 2**20:.1f} MiB of optimizer")
    print(f"each step: {share / 2**20:.1f} MiB of gradients down, {share / 2**20:.1f} MiB of weights up")

# %% [markdown]
# In stage 3, `offload_param` moves the weights to the host, too. With `"device": "nvme"` both go to a disk (*ZeRO-Infinity*).
#
# ## Deeper: sixteen bits
#
# You turn on mixed precision with a single key. Compare the bytes with those above,
# but not the time, because many CPUs compute slowly in bf16.

# %%
# %%ranks --timeout 120
halves = [train(config_of(64, stage) | {"bf16": {"enabled": True}}, cast=torch.Tensor.bfloat16) for stage in (1, 3)]

# %%
in_bf16 = {
    f"stage {stage}, bf16": [of_rank[at]["held"] for of_rank in team.pull("halves")] for at, stage in enumerate((1, 3))
}
figures.zero({"stage 0, fp32": measured["stage 0"]} | in_bf16, parameters)

# %% [markdown]
# That's the recipe of ZeRO's paper: 2 bytes per parameter for the weights, 2 for the gradients and 12 for the optimizer.
# With `"fp16": {"enabled": true}` DeepSpeed also
# scales the loss for you. When a gradient becomes infinite, it skips that step and halves the scale.
#
# *Try it:* add `"data_types": {"grad_accum_dtype": "fp32"}`, so that DeepSpeed adds up the gradients of micro-batches in fp32.
# How many bytes do they take then?
#
# ## Remember
#
# - The configuration decides. Read `stage` and the three numbers that make up the
#   batch, and look for what's missing: `gradient_clipping` defaults to 1.
# - Every rank calls `engine(…)`, `engine.backward` and `engine.step`, and takes part in tests and checkpoints, too.
# - From stage 1 on DeepSpeed keeps fp32 masters: the optimizer takes 12 bytes per parameter.
# - With many micro-batches, prefer stage 1 when it fits.
# - `zero_to_fp32.py` merges a sharded checkpoint into one file.
#
# **Take it home:** [scripts/zero_deepspeed.py](scripts/zero_deepspeed.py).
#
# **Sources.** S. Rajbhandari et al., [*ZeRO*](https://arxiv.org/abs/1910.02054). J. Ren et al.,
# [*ZeRO-Offload*](https://arxiv.org/abs/2101.06840). S. Rajbhandari et al., [*ZeRO-Infinity*](https://arxiv.org/abs/2104.07857). The
# documentation of DeepSpeed's [configuration](https://www.deepspeed.ai/docs/config-json/) and [model
# checkpoints](https://deepspeed.readthedocs.io/en/latest/model-checkpointing.html), and its source, version 0.19, for what it sends.

# %%
ranks.stop()
