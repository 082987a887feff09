# %% [markdown] track="core path"
# # ZeRO and FSDP: when the model no longer fits
#
# You have a network of 7 billion parameters and GPUs with 80 GB. In 16 bits its weights take 14 GB, yet training runs out of
# memory before the first step is over. Eight such GPUs with DDP don't help at all. Where does the memory go, and why does every
# GPU have to hold all of it?
#
# **You will** count what a parameter costs in training, write stages 1 and 3 of ZeRO, see when your ranks gather weights,
# compute with them and drop them, meet stage 3 again as FSDP, and find out whether a model fits your GPUs.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebooks
# [02](02_synchronous_sgd.ipynb) and [05](05_ddp.ipynb) first.

# %%
import pandas as pd
import torch
from torch.nn.functional import cross_entropy

from workshop_lib import predict, profile, ranks, take_home

from lessons import zero_and_fsdp as lesson

torch.set_num_threads(1)
sizes = profile.current()

# %% [markdown]
# ## What does a parameter cost?
#
# The workshop's network is too small for memory to matter, so here is a larger one, with three hidden layers of 1,024 units.
# (It has 12 outputs, not 10 as in [05](05_ddp.ipynb), because 2, 3, 4 and 6 ranks can divide 12 outputs evenly.)

# %%
model = lesson.by_hand.perceptron()
parameters = sum(p.numel() for p in model.parameters())
print(f"{parameters:,} parameters")

# %%
guess = predict(
    "Adam, all numbers in fp32: how many bytes does a parameter cost in training?",
    low=0,
    high=40,
    unit="B",
)
guess

# %% [markdown]
# Take one step, and add up the bytes of the weights, the gradients and whatever the optimizer keeps.

# %%
images, labels = torch.randn(64, 784), torch.randint(12, (64,))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
cross_entropy(model(images), labels).backward()
optimizer.step()

one_process = {
    "parameters": sum(p.nbytes for p in model.parameters()),
    "gradients": sum(p.grad.nbytes for p in model.parameters()),
    "optimizer": sum(
        tensor.nbytes for state in optimizer.state.values() for tensor in state.values()
    ),
}
for kind, size in one_process.items():
    print(f"{kind:>10}: {size / parameters:5.2f} bytes per parameter")
guess.compare(sum(one_process.values()) / parameters)

# %% [markdown]
# For each weight, Adam keeps a running mean of its gradients and another of their squares. This is the *optimizer's state*, and
# it takes half of these bytes. Training in 16 bits is faster, but takes 16 bytes per parameter, too: 2 for the weight, 2 for
# the gradient, 8 for Adam, and 4 for a copy of the weight in fp32 ([06c](06c_fitting_more.ipynb)). How large a model does that
# let you fit on one GPU? (When vendors say 80 GB of memory, they mean 80 GiB.)

# %%
for gib in (16, 40, 80):
    print(f"{gib} GiB: {gib * 2**30 / 16 / 1e9:.1f} billion parameters")

# %% [markdown]
# With DDP, more GPUs don't help, because each holds all 16 bytes of every parameter, and by default 4 more in DDP's buckets
# ([05](05_ddp.ipynb)). But why should every rank keep the same numbers?
#
# *ZeRO*, the zero redundancy optimizer, is still data parallel: each rank trains on its own samples. But each rank keeps only a
# *shard* of what all ranks have in common, and the ranks send each other the rest when they need it. Here is what each of four
# ranks holds. The dotted frames show what DDP would hold.

# %%
lesson.figures.stages(ranks=4)

# %% [markdown]
# Stage 0 is DDP. Stage 1 shards the optimizer's state. Stage 2 also shards the gradients, and stage 3 the weights as well.
#
# ## Two halves of an allreduce
#
# Suppose each rank updates only its own shard of the weights. Before the step, it needs the mean gradient of *that shard*. In a
# *reduce-scatter*, the ranks add up their arrays, and each rank receives one part of the sum. After the step, every rank needs
# all the weights. In an *allgather*, every rank receives the parts of all ranks.
#
# A ring allreduce is exactly these two operations, one after the other ([01](01_mpi_basics.ipynb)). If the whole array has $n$
# bytes, how many does each half send?

# %%
team = ranks.start(sizes.ranks)

# %%
# %%ranks
import numpy as np
import torch
from torch.nn.functional import cross_entropy

from lessons import zero_and_fsdp as lesson

comm = lesson.by_hand.join()
counting = lesson.by_hand.CountingComm(comm)
array = np.full(1_000_000, 1.0 + comm.rank, dtype=np.float32)
part = lesson.ring.reduce_scatter(counting, array)
print(
    f"reduce-scatter: a part of {len(part):,} sums, "
    f"{counting.bytes_sent / array.nbytes:.2f} n bytes sent"
)

array[lesson.ring.part(len(array), comm.rank, comm.size)] = part
lesson.ring.allgather(counting, array)
print(
    f"and allgather: all {len(array):,} sums, "
    f"{counting.bytes_sent / array.nbytes:.2f} n bytes sent in total"
)

# %% [markdown]
# On $p$ ranks, each half sends $(p-1)/p \cdot n$ bytes per rank. Stage 1 only puts the optimizer's step between the two halves,
# so it sends no more than DDP's allreduce.
#
# ## Exercise 1 (normal): stage 1
#
# With `Zero1`, your ranks train one model, but each keeps Adam's state only for its own shard. `__init__` copies all weights
# into one flat array, `self.weights`, padded so that the ranks can divide it evenly. The model's parameters become *views* of
# this array. `self.shard` is a view, too, and the only part that this rank's optimizer knows.
#
# Write `step`, which the training loop calls after the backward pass. Afterwards every rank must hold the weights that one
# process would have after a step with the global batch. Send no more bytes than an allreduce would. (The training loop clears
# the gradients.)
#
# You have the two halves: `lesson.ring.reduce_scatter(comm, array)` returns this rank's part of the sum, and
# `lesson.ring.allgather(comm, array)` fills in the other ranks' parts of `array`, in place. Both take NumPy arrays, but
# `gradient` is a tensor.
#
# <details><summary>Hint 1: what, and in which order?</summary>
#
# You need the mean gradient of your shard before the step, and everybody's weights after it. `gradient` has the same layout as
# `self.weights`. Where does an optimizer look for gradients?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `tensor.numpy()` is an array that shares the tensor's memory, and `torch.from_numpy(array)` is a tensor that shares the
# array's memory. The optimizer reads `self.shard.grad`.
#
# </details><details><summary>Solution</summary>
#
# {solution of Zero1.step}
#
# </details>


# %%
class Zero1:
    """Each rank keeps the optimizer's state of its shard, and updates that shard."""

    def __init__(self, model, comm, make_optimizer):
        self.comm = comm
        self.parameters = list(model.parameters())
        self.weights = lesson.by_hand.flat_weights(self.parameters, comm.size)
        mine = lesson.ring.part(len(self.weights), comm.rank, comm.size)
        self.shard = torch.nn.Parameter(self.weights[mine])
        self.optimizer = make_optimizer([self.shard])

    def step(self):
        gradient = lesson.by_hand.flat_gradient(self.parameters, self.comm.size)
        # <solution>
        total = lesson.ring.reduce_scatter(self.comm, gradient.numpy())
        self.shard.grad = torch.from_numpy(total / self.comm.size)
        self.optimizer.step()
        lesson.ring.allgather(self.comm, self.weights.numpy())
        # <stub>
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>


# %%
lesson.check.Zero1(Zero1)

# %% [markdown]
# Now train the large network for three steps, and compare its weights with those of one process. (As long as you haven't
# written a class, `lesson.check.written` uses the solution in its place.)

# %%
team.push(Zero1=lesson.check.written(Zero1))

# %%
# %%ranks
lesson.by_hand.train(Zero1)

# %% [markdown]
# Each rank holds only its shard of the optimizer's state, and the weights are those of one process except for rounding. (Adam
# enlarges rounding errors, because every weight's first step has the same length, no matter how small its gradient is.)
# PyTorch's stage 1 is `ZeroRedundancyOptimizer`. You use it together with DDP, so it sends more than your class: a whole
# allreduce, and then the weights.
#
# ## Stage 2
#
# In stage 1, every rank holds all gradients when the backward pass ends. `Zero2` reduces each gradient *as soon as it's
# finished*, keeps this rank's shard of it, and drops the rest. So each parameter has its own flat array, with this rank's shard
# in `self.shards[p]`. `reduce` is a hook, which autograd calls with each parameter once `p.grad` is complete.

# %%
class Zero2(lesson.by_hand.ReducedInBackward):
    """Gradients are reduced during the backward pass. Each rank keeps its shards."""

    def reduce(self, p):
        gradient = lesson.by_hand.flat_gradient([p], self.comm.size)
        total = lesson.ring.reduce_scatter(self.comm, gradient.numpy())
        mean = torch.from_numpy(total / self.comm.size)
        before = self.shards[p].grad  # of an earlier backward pass in the same step
        self.shards[p].grad = mean if before is None else before + mean
        p.grad = None  # frees the memory


team.push(Zero2=Zero2)

# %%
# %%ranks
lesson.by_hand.train(Zero2)

# %% [markdown]
# Stage 2 needs less memory and sends no more bytes than stage 1. But all ranks must finish the same gradients in the same
# order. If one rank skips a parameter, the ranks add up gradients of different parameters from then on. MPI raises an error if
# these gradients differ in length. If they have the same length, the weights are silently wrong.
#
# Each hook of `Zero2` also waits for the other ranks. FSDP's hooks don't, because they start a reduce-scatter with
# `async_op=True`, as your hooks in [05](05_ddp.ipynb) start an allreduce.
#
# ## Stage 3
#
# In stage 3, a rank keeps only a shard of the weights, too. The ranks *gather* a layer's weights whenever that layer computes:
# once in the forward pass and, because they drop the weights in between, once more in the backward pass.
#
# How can a rank drop weights that autograd still refers to? It keeps the tensor and frees only the memory behind it, as FSDP
# does. (Don't read or write such a tensor before it has memory again, not even with `print`: Python would crash.)

# %%
flat = torch.arange(6.0)
view = flat[:3]  # autograd keeps views such as this one
flat.untyped_storage().resize_(0)
print(f"{flat.untyped_storage().nbytes()} bytes")
flat.untyped_storage().resize_(flat.nbytes)  # new memory
flat.copy_(10 * torch.arange(6.0))
print(f"the view sees the new values: {view}")

# %%
guess = predict(
    "How many times as many bytes as stage 2 does stage 3 send per step?", low=1, high=3
)
guess

# %% [markdown]
# ### Exercise 2 (hard): gather and drop
#
# With `Zero3`, your ranks train a network that none of them ever holds as a whole. `GatheredByLayer` copies each layer's
# parameters into one flat array, `self.weights[layer]`, and the parameters become views of it. It keeps this rank's part as
# `self.shards[layer]`, for the optimizer, and frees the flat array.
#
# The hooks in `watch` call your `gather` before a layer computes, in both passes, and your `drop` afterwards. (`finish` waits
# until all gradients of the layer are complete, reduces them as in stage 2, and calls `drop`.)
#
# Write `gather`, which brings all weights of one layer into memory, and `drop`, which frees that memory. Besides its shards, a
# rank may hold one layer at a time, and one allgather per call of `gather` is enough. The code above that freed an array and
# filled it again has become two functions: `lesson.by_hand.free(flat)` frees the memory of an array, and
# `lesson.by_hand.fill(flat, values)` gives it new memory with these values. Let the ranks exchange their shards in a new array,
# because PyTorch can't free memory that it has lent to NumPy.
#
# <details><summary>Hint 1: what does a rank have, and what is missing?</summary>
#
# A rank has its own shard, and it needs those of all ranks, each in its place. That's the allgather of `Zero1.step`, except
# that your shard isn't in the new array yet.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `torch.empty_like(self.weights[layer])` is a new array, as long as the layer's, even if the layer's memory has been freed.
# `lesson.ring.part(len(whole), self.comm.rank, self.comm.size)` is this rank's place in it, as a slice, and
# `self.shards[layer].detach()` goes there.
#
# </details><details><summary>Solution</summary>
#
# {solution of Zero3.gather}
# {solution of Zero3.drop}
#
# </details>


# %%
class Zero3(lesson.by_hand.GatheredByLayer):
    """Weights are in memory only while their layer computes. Each rank keeps shards."""

    def watch(self, layer):
        layer.register_forward_pre_hook(lambda *_: self.gather(layer))
        layer.register_forward_hook(lambda *_: self.drop(layer))
        layer.register_full_backward_pre_hook(lambda *_: self.gather(layer))
        for p in layer.parameters(recurse=False):
            p.register_post_accumulate_grad_hook(lambda p: self.finish(layer))

    def gather(self, layer):
        """Bring the layer's whole weights into memory. All ranks call it together.

        Until then, `self.weights[layer]` has no memory, and can't be read or written.
        """
        # <solution>
        whole = torch.empty_like(self.weights[layer])
        mine = lesson.ring.part(len(whole), self.comm.rank, self.comm.size)
        whole[mine] = self.shards[layer].detach()
        lesson.ring.allgather(self.comm, whole.numpy())
        lesson.by_hand.fill(self.weights[layer], whole)
        # <stub>
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>

    def drop(self, layer):
        """Free the memory of the layer's whole weights."""
        # <solution>
        lesson.by_hand.free(self.weights[layer])
        # <stub>
        # raise NotImplementedError("and here")
        # </stub>
        # </solution>


# %%
lesson.check.Zero3(Zero3)

# %%
team.push(Zero3=lesson.check.written(Zero3))

# %%
# %%ranks
costs = {make.__name__: lesson.by_hand.train(make) for make in (Zero1, Zero2, Zero3)}
costs["Zero3"]

# %%
costs = team.pull("costs")
guess.compare(costs[0]["Zero3"].sent / costs[0]["Zero2"].sent)

# %% [markdown]
# And this is how rank 0 spent the last of these steps:

# %%
lesson.figures.over_time(costs[0]["Zero3"])

# %% [markdown]
# The forward pass goes down through the layers, and the backward pass comes back up. A gray background means that all of the
# layer's weights are in memory, and this is never true of two layers at once. But while your ranks gather, they don't compute.
# (The first *Deeper* section changes that.)
#
# Stages 1 and 2 take a reduce-scatter and an allgather, but stage 3 takes a reduce-scatter and *two* allgathers. That makes 1.5
# times as many bytes. (If you split a batch into *micro-batches* to save memory, stage 2 sends gradients in each of them, and
# stage 3 also sends weights.)
#
# ## FSDP: stage 3 in PyTorch
#
# PyTorch's own stage 3 is *fully sharded data parallel*, FSDP. Its second version, FSDP2, is a single function. Each call of
# `fully_shard` makes a unit, whose weights are gathered together, and the last call, on the whole model, takes the parameters
# that are left. In a transformer, use one unit per block. Does FSDP hold and send as many bytes as your stage 3?

# %%
# %%ranks
from torch.distributed.fsdp import fully_shard


def with_fsdp(model, **options):
    """Make each layer of the perceptron a unit of FSDP."""
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


model = with_fsdp(lesson.by_hand.perceptron())
costs["FSDP"] = lesson.by_hand.train_fsdp(model)
costs["FSDP"]

# %%
lesson.figures.measured(one_process, team.pull("costs"))

# %% [markdown]
# FSDP and your stage 3 hold a shard of everything, and send 1.5 times the bytes of an allreduce. But this figure shows the
# moment after the backward pass. If training runs out of memory, it does so earlier, at the moment when a rank holds the most:

# %%
for name, cost in team.pull("costs")[0].items():
    after = sum(cost.held_bytes.values()) / parameters
    print(
        f"{name}: {after:.1f} bytes per parameter after the backward pass, "
        f"up to {cost.peak_bytes / parameters:.1f} before"
    )

# %% [markdown]
# While a layer computes, a rank holds all of its weights on top of the shards and, in the backward pass, all of its gradient.
# So `Zero3` and FSDP have the same peak. (These numbers leave out activations and message buffers. FSDP's buffers are larger
# than those of your class, because in the backward pass they already hold the next layer's weights.)
#
# *Try it:* with `reshard_after_forward=False`, the weights stay gathered until the backward pass has used them. In a `%%ranks`
# cell, how many allgathers does
# `lesson.by_hand.train_fsdp(with_fsdp(lesson.by_hand.perceptron(), reshard_after_forward=False))` report?
#
# [scripts/fsdp2.py](scripts/fsdp2.py) is notebook 05's DDP script with FSDP. Besides `fully_shard`, this changes:
#
# | change | why |
# |---|---|
# | `torch.device("meta")`, then `to_empty` | the layers get their memory one after the other, so no rank ever holds all of them ([06c](06c_fitting_more.ipynb)) |
# | `DataLoader(test, batch_sampler=…)` | each forward pass gathers weights, so all ranks must run the same number of them, in tests too |
# | `get_state_dict(…)` and `dcp.save(…)` on *every* rank | each rank writes its own shards. On rank 0 alone, `dcp.save` would wait for the other ranks until the time-out |
#
# Two lines haven't changed, but matter more now:
#
# - All ranks use the same seed. DDP copies rank 0's weights to all ranks at the start, but `fully_shard` doesn't. With
#   different seeds, each rank would keep shards of a *different* network, and no error would tell you.
# - The script creates the optimizer once the model is wrapped. Only after `fully_shard` are the parameters shards: *DTensors*,
#   which know their layout.
#
# If you come from FSDP1: `fully_shard` replaces the wrapper and its policies, `reshard_after_forward=False` replaces
# `SHARD_GRAD_OP`, and a mesh of two dimensions replaces `HYBRID_SHARD`.

# %%
take_home.train("fsdp2.py")

# %% [markdown]
# ## Does it fit?
#
# Here is a calculator that also counts the activations. It keeps a tenth of each GPU free, for buffers and for the layer that
# is gathered. How many A100s with 40 GB does Llama 7B need, in fp32 as above? And how many if you recompute activations
# (*activation checkpointing*, [06c](06c_fitting_more.ipynb))?
#
# <details><summary>Answer</summary>
#
# Six, or three if you recompute.
#
# </details>

# %%
lesson.memory_calculator()

# %% [markdown]
# ## When to use which
#
# Stop at the first yes:
#
# | question | then use | what it costs |
# |---|---|---|
# | Do 20 bytes per parameter and the activations fit? (16 with `gradient_as_bucket_view=True`) | DDP | one allreduce per step |
# | Does everything fit except the activations? | smaller micro-batches; recomputation and bf16 ([06c](06c_fitting_more.ipynb)) | up to one more forward pass |
# | Do weights and gradients fit, with a shard of the optimizer's state? | ZeRO-1 | no extra bytes, but with `ZeroRedundancyOptimizer` 1.5 times as many |
# | Do the weights fit, with a shard of the rest? | ZeRO-2, or FSDP with `reshard_after_forward=False` | messages in every micro-batch |
# | Does one layer fit, with a shard of everything, if only the GPUs of one node divide the model? And is the network between nodes slow? | HSDP: FSDP inside each node ([06c](06c_fitting_more.ipynb)) | a whole copy in every node |
# | Does one layer fit, with a shard of everything? | ZeRO-3 or FSDP | 1.5 times the bytes in every micro-batch, so a fast network |
# | Is one layer, or what it computes, too large for a GPU? | *tensor parallelism*: ranks divide each layer ([11](11_model_parallelism.ipynb)) | messages in nearly every layer, so only between GPUs of one node |
# | Does the model fit if the host's memory holds a part of it? | offload ([06b](06b_deepspeed.ipynb), [06c](06c_fitting_more.ipynb)) | time, because the link to the host is slow |
# | Still no? | more GPUs | |
#
# If ZeRO-3's messages are too much for the network between nodes, use *pipeline parallelism*, in which each rank holds a few
# layers ([11b](11b_pipelines.ipynb)).
#
# And the network from the top of this page, with 7 billion parameters? Your classes would divide it among eight GPUs in the
# same way:

# %%
print(f"DDP: {7 * sum(one_process.values()) / parameters:.1f} of 80 GB")
for name, cost in costs[0].items():
    gigabytes = 0
    for kind, whole_bytes in one_process.items():
        is_sharded = cost.held_bytes[kind] < whole_bytes
        gigabytes += 7 * whole_bytes / parameters / (8 if is_sharded else 1)
    print(f"{name}: {gigabytes:.1f} of 80 GB")

# %% [markdown]
# With DDP it's 112 GB everywhere, because every GPU holds a copy, and by default 28 more for DDP's buckets. With your stage 3
# it's 14 GB, and one layer at a time comes on top. If there are 32 equal layers, each has 0.9 GB of weights and 0.9 GB of
# gradients. So more than 60 GB are left for activations.
#
# ## Deeper: gather ahead
#
# In your stage 3, a layer can't compute until its weights have arrived. But the ranks know which layer comes next, so they can
# ask for its weights early.
#
# ### Exercise 3 (warm-up): stage 3 that looks ahead
#
# With `Lookahead`, your ranks gather the *next* layer while this one computes. Write `enter`, which is called right before a
# layer computes, in both passes. `self.start(layer)` starts gathering a layer, unless its weights are already on their way.
# `self.wait(layer)` returns when the weights are there. Never gather more than two layers at once.
#
# <details><summary>Hint</summary>
#
# Nobody has started to gather the first layer of a pass. And what is `following` after the last layer?
#
# </details><details><summary>Solution</summary>
#
# {solution of Lookahead.enter}
#
# </details>


# %%
class Lookahead:
    """Decides when the layers of stage 3 are gathered."""

    def __init__(self, start, wait):
        self.start = start
        self.wait = wait

    def enter(self, layer, following):
        """Called right before `layer` computes.

        `following` computes next, or is None after the last layer of a pass.
        """
        # <solution>
        self.start(layer)
        if following is not None:
            self.start(following)
        self.wait(layer)
        # <stub>
        # self.start(layer)
        # self.wait(layer)
        # raise NotImplementedError(
        #     "your code here: without it, each layer waits for its weights"
        # )
        # </stub>
        # </solution>


# %%
lesson.check.Lookahead(Lookahead)

# %% [markdown]
# How much time does that save? Sixteen ranks emulate imagined machines on 10 Gb Ethernet, as in [05](05_ddp.ipynb). In this
# emulation, a layer takes 2 ms in the forward pass and 4 ms in the backward pass.

# %%
guess = predict(
    "What share of a step's time will looking ahead save?",
    low=0,
    high=75,
    unit="%",
)
guess

# %%
team = ranks.start(16, machine="ethernet-10g")
team.push(Lookahead=lesson.check.written(Lookahead))

# %%
# %%ranks --timeout 120
from lessons import zero_and_fsdp as lesson

lesson.by_hand.join()
waiting_ms = lesson.by_hand.stage_3_ms(None)
ahead_ms = lesson.by_hand.stage_3_ms(Lookahead)
print(
    f"each layer waits: {waiting_ms:.1f} ms; "
    f"your Lookahead: {ahead_ms:.1f} ms, emulated"
)

# %%
guess.compare(
    100 * (1 - team.pull("ahead_ms")[0] / team.pull("waiting_ms")[0]),
    emulated_on="ethernet-10g",
)

# %% [markdown]
# FSDP looks ahead by itself in the backward pass. In the forward pass it does so only if the CPU is ahead of the GPU.
# Otherwise, use `set_modules_to_forward_prefetch`.
#
# ## Deeper: many micro-batches
#
# What does each stage send if a step has $m$ micro-batches? The classes run on real ranks again:

# %%
team = ranks.start(sizes.ranks)
team.push(
    Zero1=lesson.check.written(Zero1),
    Zero2=Zero2,
    Zero3=lesson.check.written(Zero3),
)

# %%
# %%ranks
import torch

from lessons import zero_and_fsdp as lesson

comm = lesson.by_hand.join()

# %%
guess = predict(
    "With 4 micro-batches, how many times as many bytes as stage 1 does stage 3 send?",
    low=1,
    high=10,
)
guess

# %%
# %%ranks
sent = {}  # per step, in multiples of n
for m in (1, 2, 4):
    sent[f"{m} micro-batches"] = {
        make.__name__: lesson.by_hand.train(make, m, steps=1).sent
        for make in (Zero1, Zero2, Zero3)
    }

# %%
table = pd.DataFrame(team.pull("sent")[0]).T
guess.compare(table["Zero3"].iloc[-1] / table["Zero1"].iloc[-1])

# %%
table

# %% [markdown]
# Stage 2 has nowhere to keep whole gradients, so it reduces them in every micro-batch. Stage 3 also gathers all weights twice
# in every micro-batch, and sends $3m/2$ times the bytes of stage 1. With many micro-batches, prefer stage 1 if the model fits.
#
# If you have memory for whole gradients, FSDP can reduce them once per step, too: call
# `model.set_requires_gradient_sync(False)` before the first micro-batch, and `(True)` before the last one.
#
# How do you clip a gradient that no rank holds as a whole? Its norm takes an allreduce of the shards' sums of squares, which
# you write in [06b](06b_deepspeed.ipynb). Under FSDP, `clip_grad_norm_` does it for you, so call it on every rank.
#
# ## Deeper: an optimizer that needs whole matrices
#
# Adam updates each weight on its own, so a shard is enough for it. *Muon* ([07d](07d_large_batch_optimizers.ipynb)) needs the
# whole momentum matrix, because it makes that matrix orthogonal in five rounds of matrix products. Can it work on shards? Under
# FSDP, parameters are DTensors, and an operation on them has the same result as on whole tensors. PyTorch sends whatever
# messages that takes.

# %%
guess = predict(
    "How many collectives does it take to make one sharded matrix orthogonal?",
    low=1,
    high=40,
)
guess

# %%
# %%ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

torch.manual_seed(0)  # the same matrix on all ranks
matrix = torch.randn(256, 128)
sharded = distribute_tensor(matrix, init_device_mesh("cpu", (comm.size,)), [Shard(0)])
with lesson.Traffic() as traffic:
    result = lesson.orthogonal(sharded)
collectives = sum(traffic.calls.values())
difference = (result.full_tensor() - lesson.orthogonal(matrix)).abs().max()
print(
    f"{collectives} collectives: {dict(traffic.calls)}; "
    f"differs by {difference:.0e} from one process"
)

# %%
guess.compare(team.pull("collectives")[0])

# %% [markdown]
# The result is right, but each of the five rounds moves the matrix several times. And these are the collectives of *one*
# matrix in *one* step.
#
# ### Exercise 4 (normal): let the owner compute
#
# With `by_owner`, two collectives are enough. One rank, the *owner*, puts the matrix together, makes it orthogonal, and gives
# each rank its rows back. Ranks own different matrices, so all of them compute at the same time. Ranks can have different numbers
# of rows, and only the owner may call `orthogonal`.
#
# <details><summary>Hint 1: which collectives?</summary>
#
# `comm.gather(shard, root=…)` gives the root a list of all shards, and `comm.scatter(parts, root=…)` deals a list out. Both work
# with tensors.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `torch.cat(shards)` joins tensors, and `whole.split([2, 3])` cuts a tensor into parts of 2 and 3 rows.
#
# </details><details><summary>Solution</summary>
#
# {solution of by_owner}
#
# </details>


# %%
def by_owner(comm, shard, owner, orthogonal):
    """This rank's rows of `orthogonal(matrix)`; `shard` is its rows of the matrix.

    Called on every rank.
    """
    # <solution>
    shards = comm.gather(shard, root=owner)
    parts = None
    if comm.rank == owner:
        parts = orthogonal(torch.cat(shards)).split([len(each) for each in shards])
    return comm.scatter(parts, root=owner)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.by_owner(by_owner)

# %% [markdown]
# Of sixteen collectives, two remain, and each rank sends its rows once and receives them once. In a real model, deal out the
# matrices so that all ranks have about the same work. (*Distributed Muon*, by Liu et al., works with ZeRO-1. There, every rank
# that holds a part of a matrix gathers the whole matrix, and keeps its own part of the update.)
#
# ## Deeper: the other names that you'll hear
#
# | name | where it stands today |
# |---|---|
# | Accelerate, Lightning Fabric, Ray Train | They start the ranks and call DDP, FSDP or DeepSpeed for you. |
# | Megatron-LM, torchtitan | They combine FSDP, tensor parallelism and pipelines to train large language models, on thousands of GPUs. |
# | JAX | It splits arrays over a mesh of devices, and the compiler adds the messages. The ideas are the same. |
# | DeepSpeed | It invented ZeRO. PyTorch's FSDP2 does ZeRO's stages 2 and 3 without another library. Stage 1 is PyTorch's `ZeroRedundancyOptimizer`. Choose DeepSpeed to switch stages in a file, or to offload to disk. ([06b](06b_deepspeed.ipynb)) |
# | Horovod | Its last release was in June 2023. You may inherit a script that uses it, and its ideas live on in DDP. ([03](03_horovod_pytorch.ipynb), [04](04_horovod_tensorflow.ipynb)) |
# | Keras 3 | It runs on TensorFlow, JAX or PyTorch. On PyTorch, wrap the model in DDP. |
# | `torch.nn.DataParallel` | Don't use it. One process drives all GPUs with threads that compete for Python's lock. |
#
# ## Remember
#
# - Training with Adam takes about 16 bytes per parameter. Activations come on top.
# - ZeRO is data parallelism without copies: stage 1 shards the optimizer's state, stage 2 also the gradients, stage 3 also the
#   weights.
# - An allreduce is a reduce-scatter and an allgather. Stage 3 adds a second allgather, and sends all of this in every
#   micro-batch.
# - Under FSDP, every rank takes part in each forward pass and in each checkpoint.
#
# **Take it home:** [scripts/fsdp2.py](scripts/fsdp2.py).
#
# **Sources.** S. Rajbhandari et al., [*ZeRO*](https://arxiv.org/abs/1910.02054), for bytes per parameter and messages. Y. Zhao
# et al., [*PyTorch FSDP*](https://arxiv.org/abs/2304.11277). J. Liu et al., [*Muon is Scalable for LLM
# Training*](https://arxiv.org/abs/2502.16982). PyTorch's documentation of
# [`fully_shard`](https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html) and
# [DDP](https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html), and its `clip_grad_norm_`,
# version 2.15.

# %%
ranks.stop()
