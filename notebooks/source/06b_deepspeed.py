# %% [markdown] track="frameworks"
# # DeepSpeed: ZeRO from a configuration
#
# A colleague gives you a training script and a JSON file. The script looks almost like the one in notebook 05. The file decides
# whether the model fits and what the ranks send each other. And if one line is missing from the file, DeepSpeed's version decides
# whether your gradients are clipped. Can you read such a file, and write one?
#
# **You will** find three faults in a colleague's run, write a configuration of your own, measure what each stage keeps, clip a
# gradient that is spread over the ranks, and merge a sharded checkpoint into one file.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores and DeepSpeed, which `make setup` installs; no GPU,
# no network. Do notebook [06](06_zero_and_fsdp.ipynb) first: it explains the stages.

# %%
from workshop_lib import paths, predict, profile, ranks, take_home

from lessons import deepspeed as lesson

sizes = profile.current()
folder = paths.BUILD / "06b_deepspeed"
folder.mkdir(parents=True, exist_ok=True)
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## From DDP to DeepSpeed
#
# *DeepSpeed* wraps the model and the optimizer in an *engine*, and you control the engine through a configuration. Here is
# everything that changes in notebook 05's DDP script:

# %%
take_home.diff("ddp.py", "zero_deepspeed.py")

# %% [markdown]
# | change | why |
# |---|---|
# | `__compatible_ops__ = {}` | only for CPUs, where DeepSpeed would otherwise spend two minutes compiling its own allreduce |
# | `deepspeed.initialize` | moves the model to the rank's device, sends rank 0's weights to every rank, and takes over the optimizer and the schedule |
# | `engine(…)`, `engine.backward`, `engine.step` | the engine decides when to send gradients. `step` also clears the gradients and steps the schedule |
# | `engine.save_checkpoint` on *every* rank | each rank writes its shards. On rank 0 alone, the call would wait until the time-out |
#
# Start it with `torchrun`, or with DeepSpeed's launcher: `deepspeed --no_local_rank zero_deepspeed.py`. You can ignore the
# warnings.

# %%
take_home.train("zero_deepspeed.py")

# %% [markdown]
# ## The configuration
#
# The configuration is a dictionary in the script, or a JSON file. You'll meet these keys in almost every one:
#
# | key | what it says |
# |---|---|
# | `train_batch_size` | samples per step, on all ranks together |
# | `train_micro_batch_size_per_gpu` | samples per backward pass on one rank |
# | `gradient_accumulation_steps` | backward passes per step |
# | `zero_optimization: stage` | 0 to 3 |
# | `zero_optimization: offload_optimizer` | `{"device": "cpu"}` keeps the optimizer's state on the host, which also takes the step |
# | `zero_allow_untested_optimizer` | lets you use any optimizer of PyTorch's. Adam, AdamW and Adagrad don't need it, SGD does |
# | `bf16: enabled`, `fp16: enabled` | mixed precision, with master weights in fp32 |
# | `gradient_clipping` | largest norm of the whole gradient; 0 means no clipping |
#
# From two of the first three keys, DeepSpeed computes the third. If the three don't match the number of ranks, DeepSpeed
# refuses to start.
#
# Always write `gradient_clipping`. If this key is missing, DeepSpeed 0.19.3 and later versions clip at a norm of 1, and earlier
# versions don't clip at all. No message tells you which.
#
# ### Exercise 1 (normal): what's wrong with this run?
#
# Here is your colleague's configuration:

# %%
colleague = {
    "train_batch_size": 128,
    "train_micro_batch_size_per_gpu": 48,
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": True},
}

# %% [markdown]
# And this is how the script saves a checkpoint, once per epoch:
#
# ```python
# if dist.get_rank() == 0:
#     engine.save_checkpoint("checkpoint")
# ```
#
# The run has three faults, and DeepSpeed reports only one of them when the run starts. Can you see all three?
#
# With `problems`, you find such faults in any run before it starts. The configuration gives both batch sizes, and possibly the
# accumulation steps. Return a list of what's wrong: `"batch"` if these numbers don't agree with the number of ranks, `"clipping"`
# if DeepSpeed's version decides whether gradients are clipped, and `"saving"` if the run would get stuck when it saves. For a run
# without faults, the list is empty.
#
# <details><summary>Hint 1: what to compare</summary>
#
# How many samples do all ranks together take in one backward pass? Does a whole number of these passes add up to a step? And
# what does the table of changes, further up, say about `save_checkpoint`?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `config.get(key, other)` is `other` if the key is missing, and `key in config` says whether it's there. A key whose value is 0
# is there, too. `set(saving_ranks)` and `set(range(ranks))` are equal if they contain the same ranks.
#
# </details><details><summary>Solution</summary>
#
# {solution of problems}
#
# </details>


# %%
def problems(config, ranks, saving_ranks):
    """The faults of a run: a list with any of "batch", "clipping" and "saving".

    `saving_ranks` are the ranks that call `save_checkpoint`.
    """
    # <solution>
    found = []
    batch = config["train_batch_size"]
    samples = config["train_micro_batch_size_per_gpu"] * ranks  # in a backward pass
    steps = config.get("gradient_accumulation_steps", batch // samples)
    if samples * steps != batch:
        found.append("batch")
    if "gradient_clipping" not in config:
        found.append("clipping")
    if set(saving_ranks) != set(range(ranks)):
        found.append("saving")
    return found
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.problems(problems)

# %% [markdown]
# What does your function find in your colleague's run? (As long as you haven't written it, `lesson.check.written` uses the
# solution.)

# %%
lesson.check.written(problems)(colleague, team.n, saving_ranks=[0])

# %% [markdown]
# Now let DeepSpeed try this configuration, on the perceptron of notebook 06:

# %%
team.push(colleague=colleague)

# %%
# %%ranks --timeout 120
from lessons import deepspeed as lesson

comm = lesson.engines.join()

import deepspeed
import torch
from torch.nn.functional import cross_entropy


def train(config):
    """Two steps: the engine, the bytes held before the last step, and the last loss."""
    model = lesson.by_hand.perceptron()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    config = lesson.engines.for_a_small_network(config)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for images, labels in lesson.engines.micro_batches(engine):
        loss = cross_entropy(engine(images).float(), labels)
        engine.backward(loss)
        held = lesson.engines.held_bytes(engine)
        engine.step()  # takes a step only after the last micro-batch
    return engine, held, loss.item()


try:
    train(colleague)
except AssertionError as error:
    print(f"DeepSpeed refuses: {error}")

# %% [markdown]
# So DeepSpeed reports one fault, the batch. With a batch that divides evenly, the run starts:

# %%
# %%ranks --timeout 120
engine, *_ = train(colleague | {"train_batch_size": 48 * comm.size})
print(
    f"the gradient's norm was {engine.get_global_grad_norm():.2f}, "
    f"and DeepSpeed clips at {engine.gradient_clipping()}"
)

# %% [markdown]
# Nobody asked DeepSpeed to clip. If the gradient's norm is above that limit, DeepSpeed scales the gradient down, and prints no
# warning. The third fault shows only at the end of the first epoch: rank 0 waits in `save_checkpoint` for the other ranks,
# which never call it.
#
# ### Exercise 2 (warm-up): write one
#
# With `configuration` you can train with any global batch, however little memory a rank has. Each step should see
# `global_batch` samples, which the ranks can share evenly. But a rank can hold the activations of at most `largest_micro_batch`
# samples at a time. Make the micro-batch as large as memory allows. The optimizer is PyTorch's SGD, and gradients aren't
# clipped. Give both batch sizes, so that DeepSpeed can check them against the number of ranks.
#
# <details><summary>Hint 1: the numbers</summary>
#
# Each rank takes `global_batch // ranks` samples per step. The micro-batch has to divide that number evenly. What's the largest
# number up to `largest_micro_batch` that does?
#
# </details><details><summary>Hint 2: the keys</summary>
#
# Besides the two batch sizes, the configuration has to say three things: the stage, that SGD is fine, and that DeepSpeed
# shouldn't clip. The table has a row for each.
#
# </details><details><summary>Solution</summary>
#
# {solution of configuration}
#
# </details>


# %%
def configuration(global_batch, ranks, largest_micro_batch, stage):
    """DeepSpeed's configuration for PyTorch's SGD.

    A backward pass has at most `largest_micro_batch` samples.
    """
    # <solution>
    mine = global_batch // ranks
    micro_batch = max(m for m in range(1, largest_micro_batch + 1) if mine % m == 0)
    return {
        "train_batch_size": global_batch,
        "train_micro_batch_size_per_gpu": micro_batch,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
    }
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.configuration(configuration)

# %% [markdown]
# If every rank saves, does `problems` find anything wrong with your own configuration?

# %%
write = lesson.check.written(configuration)
config = write(64 * team.n, team.n, largest_micro_batch=64, stage=3)
lesson.check.written(problems)(config, team.n, saving_ranks=range(team.n))

# %% [markdown]
# ## Stages 0 to 3, measured
#
# Now train with your configuration.

# %%
team.push(configuration=lesson.check.written(configuration), folder=folder)

# %%
guess = predict(
    f"DeepSpeed, fp32, {sizes.ranks} ranks: "
    "bytes per parameter on each rank in stage 3?",
    low=0,
    high=20,
    unit="B",
)
guess

# %%
# %%ranks --timeout 120
by_stage = {}
for stage in range(4):
    engine, by_stage[f"stage {stage}"], loss = train(
        configuration(64 * comm.size, comm.size, 64, stage)
    )
    print(f"stage {stage}: loss {loss:.4f}")

# %%
by_rank = team.pull("by_stage")
parameters = by_rank[0]["stage 0"]["parameters"] // 4
guess.compare(sum(by_rank[0]["stage 3"].values()) / parameters)

# %%
lesson.engines.draw(by_rank, parameters)

# %% [markdown]
# The stages differ only in who holds and sends what, so each rank's loss is the same in all of them. From stage 1 on, DeepSpeed
# keeps *master weights*, a second copy of this rank's shard. If you train in 16 bits, master weights make sure that small steps
# aren't lost ([06c](06c_fitting_more.ipynb)), but DeepSpeed has them even in fp32. The optimizer therefore takes 12 bytes per
# parameter of the shard, not 8. And without accumulation, DeepSpeed drops the gradients of other ranks' shards even in stage 1.
# So stages 1 and 2 take the same memory: on two ranks, 4 + 2 + 6 = 12 bytes by the formula. If the figure shows more, that's
# because a tensor that lies across the border of two shards keeps its whole gradient on both ranks.
#
# ### Sixteen bits
#
# You turn on mixed precision with a single key:

# %%
# %%ranks --timeout 120
in_bf16 = {"stage 0, fp32": by_stage["stage 0"]}
for stage in (1, 3):
    config = configuration(64 * comm.size, comm.size, 64, stage) | {
        "bf16": {"enabled": True}
    }
    _, in_bf16[f"stage {stage}, bf16"], _ = train(config)

# %%
lesson.engines.draw(team.pull("in_bf16"), parameters)

# %% [markdown]
# That's the recipe of ZeRO's paper: 2 bytes per parameter for the weights, 2 for the gradients and 12 for the optimizer. On two
# ranks, stage 1 takes 2 + 1 + 6 = 9 bytes by the formula, and again a little more where a tensor lies across the border. With
# `"fp16": {"enabled": true}` DeepSpeed also scales the loss for you ([06c](06c_fitting_more.ipynb)).
#
# ### Exercise 3 (warm-up): clip as DeepSpeed does
#
# With `clip`, your ranks do what `gradient_clipping` does: they limit the norm of a gradient that no rank has as a whole.
# Together, the arrays in all ranks' `shards` make up the gradient. If its norm is larger than `max_norm`, scale every shard in
# place, so that the norm becomes `max_norm`. Return the original norm.
#
# <details><summary>Hint 1</summary>
#
# The norm is the square root of the sum of squares. What can each rank add up alone, and what do the ranks have to add up
# together?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `(shard**2).sum()` adds up the squares in a shard, `comm.allreduce(number)` adds up a number over the ranks, and `shard *=
# factor` scales an array in place.
#
# </details><details><summary>Solution</summary>
#
# {solution of clip}
#
# </details>


# %%
def clip(shards, max_norm, comm):
    """Scale the shards so that the whole gradient's norm is at most `max_norm`.

    Must be called on every rank.
    """
    # <solution>
    squares = sum(float((shard**2).sum()) for shard in shards)
    norm = comm.allreduce(squares) ** 0.5
    if norm > max_norm:
        for shard in shards:
            shard *= max_norm / norm
    return norm
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.clip(clip)

# %% [markdown]
# Does the engine compute the same norm?

# %%
team.push(clip=lesson.check.written(clip))

# %%
# %%ranks --timeout 120
from deepspeed.utils import safe_get_local_grad

images, labels = lesson.by_hand.batch(0, comm.rank, comm.size)
engine.backward(cross_entropy(engine(images), labels))
shards = [safe_get_local_grad(p).numpy().copy() for p in engine.module.parameters()]
norm = clip(shards, 1.0, comm)
engine.step()
print(f"your norm {norm:.4f}, DeepSpeed's {engine.get_global_grad_norm():.4f}")

# %% [markdown]
# ## Checkpoints
#
# In stage 3 no rank has all the weights, so call `save_checkpoint` on *all* ranks. Each rank writes its own shards:

# %%
# %%ranks --timeout 120
_ = engine.save_checkpoint(folder / "checkpoint", tag="last")

# %%
for file in sorted((folder / "checkpoint").rglob("*")):
    if file.is_file():
        print(f"{file.stat().st_size / 2**20:7.3f} MiB  {file.relative_to(folder)}")

# %% [markdown]
# Besides two files per rank, DeepSpeed writes conversion scripts, and a file `latest` that names the last checkpoint (its *tag*).
# In the folder `checkpoint`, `python zero_to_fp32.py . model` merges the ranks' files into fp32 weights, in a new folder `model`.
# You can also merge them with a function call:

# %%
# %%ranks --timeout 120
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

if comm.rank == 0:
    network = lesson.by_hand.perceptron()
    network.load_state_dict(
        get_fp32_state_dict_from_zero_checkpoint(folder / "checkpoint", tag="last")
    )
images, labels = lesson.by_hand.batch()
with torch.no_grad():
    ours = cross_entropy(engine(images), labels)
if comm.rank == 0:
    print(
        f"loss of the engine {ours:.6f}, "
        f"of the merged file {cross_entropy(network(images), labels):.6f}"
    )

# %% [markdown]
# To resume, call `engine.load_checkpoint(folder / "checkpoint")` on all ranks, after `initialize`. If it finds no checkpoint,
# it raises no error but returns `(None, None)`. If the number of ranks has changed, convert to DeepSpeed's *universal
# checkpoint* first.
#
# ## DeepSpeed or FSDP?
#
# | | DeepSpeed 0.19 | FSDP2 |
# |---|---|---|
# | stages | 0 to 3, one number in a file | 3, or 2 with `reshard_after_forward=False` |
# | the training loop | `engine.backward(loss)` and `engine.step()`. From stage 1 on, `loss.backward()` works, too, or `engine.scale(loss).backward()` in fp16 | as for one process |
# | master weights | fp32 shards beside the weights, even if these are fp32 | the fp32 shards themselves |
# | offload | to the host, or to disk (ZeRO-Infinity) | to the host |
# | shards inside a node, one copy per node | of the weights: `zero_hpz_partition_size` | a mesh of two dimensions |
# | tensor and pipeline parallelism | `autotp_size`, and its own pipeline | PyTorch's, over one mesh |
# | checkpoint to one file | `zero_to_fp32.py` | `dcp_to_torch_save` |
#
# If you start from plain PyTorch, use FSDP. If your code uses DeepSpeed already, or you want to switch to stage 1 or to offload
# to disk by changing a line in a file, use DeepSpeed.
#
# ## Remember
#
# - In a configuration, check the stage, and whether the batch sizes agree with your number of ranks. Always write
#   `gradient_clipping`.
# - All ranks call `save_checkpoint`.
# - From stage 1 on, Adam and the master weights take 12 bytes per parameter of the shard, even in fp32.
# - To compute the norm of a sharded gradient, the ranks add up their sums of squares with an allreduce.
#
# **Take it home:** [scripts/zero_deepspeed.py](scripts/zero_deepspeed.py).
#
# **Sources.** S. Rajbhandari et al., [*ZeRO*](https://arxiv.org/abs/1910.02054) and
# [*ZeRO-Infinity*](https://arxiv.org/abs/2104.07857). DeepSpeed's [configuration](https://www.deepspeed.ai/docs/config-json/),
# its source (0.19.2, 0.19.3, 0.19.8), and the [new default for clipping](https://github.com/deepspeedai/DeepSpeed/pull/8068).

# %%
ranks.stop()
