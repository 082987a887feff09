# %% [markdown]
# # Context parallelism: one sequence on several ranks
#
# You'd like to train on whole books, with 131,072 tokens in one sequence. Flash attention never stores the scores, so memory no
# longer grows with the square of the length. And yet a GPU runs out of memory, and so do eight GPUs with tensor parallelism. What
# fills them? And how do you split *one* sequence?
#
# **You will** write ring attention on real ranks and prove that it equals full attention, forward and backward. You'll count its
# bytes, find out why a causal mask leaves ranks idle, and repair that. Then you'll know when to pass keys around, gather them, or
# trade tokens for heads.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [11](11_model_parallelism.ipynb) first.

# %%
import inspect

import pandas as pd
import torch

from workshop_lib import predict, ranks
from workshop_lib.lessons.context_parallelism import figures, other_ways, ring
from workshop_lib.lessons.context_parallelism import judge as check
from workshop_lib.lessons.context_parallelism.blocks import contiguous
from workshop_lib.lessons.context_parallelism.judge import written

team = ranks.start(4)
team

# %% [markdown]
# ## What fills the memory?
#
# Take Llama 3 8B and one sequence of 131,072 tokens, in bfloat16:

# %%
tokens, layers, width, kv_width, mlp_width, vocabulary = 131_072, 32, 4096, 1024, 14_336, 128_256
heads, kv_heads = 32, 8
# Inputs and outputs of two norms, queries, attention's output; keys and values; four tensors inside the MLP.
kept_per_token = 6 * width + 2 * kv_width + 4 * mlp_width
gigabytes = {
    "the scores of one layer, if they were stored": 2 * heads * tokens**2 / 1e9,
    "what all layers keep for backward": 2 * layers * tokens * kept_per_token / 1e9,
    "the same on each of 8 GPUs, if they share it": 2 * layers * tokens * kept_per_token / 8 / 1e9,
    "the logits, in float32": 4 * tokens * vocabulary / 1e9,
}
pd.Series(gigabytes, name="GB").to_frame().style.format("{:,.0f}")

# %% [markdown]
# A GPU has 80 GB, and weights, gradients and Adam's state need their share of it. So the *activations* don't fit, although nobody
# stores any scores: they grow with the number of tokens, in every layer. (Recomputing layers in the backward pass postpones that,
# at a price.)
#
# Can tensor parallelism spread them over more GPUs? It cuts attention by heads. Llama 3 8B has 32 heads of queries, but only 8 heads
# of keys and values, which the queries share. With more than 8 ranks, some would compute the same keys and values again. They'd
# also leave the node and its fast links.
#
# ## What to shard
#
# Norms, linear layers and the loss treat each token alone. So give each rank a part of the *tokens*, in all layers. That's *context
# parallelism*. Only attention has to communicate, because a query needs the keys and values of all tokens.
#
# | | norms | linear layers | attention | weights |
# |---|---|---|---|---|
# | tensor parallelism (11) | all tokens | all tokens, some outputs | all tokens, some heads | a part |
# | with sequence parallelism (11) | some tokens | all tokens, some outputs | all tokens, some heads | a part |
# | context parallelism | some tokens | some tokens | some queries, **all keys and values** | all, or FSDP's shards |
#
# ## Attention to one part of the keys at a time
#
# Must a rank hold all keys and values at once? Softmax divides by a sum over *all* keys. But you can keep that sum and the weighted
# sum of the values, and divide at the very end. Only `exp` needs care. It would overflow, so you subtract the largest score first:


# %%
def part_of_attention(query, key, value):
    scores = query @ key.T / query.shape[1] ** 0.5
    top = scores.amax(dim=1, keepdim=True)  # the largest score of each query
    weights = (scores - top).exp()
    return top, weights.sum(dim=1, keepdim=True), weights @ value


torch.manual_seed(1)
query, key, value = torch.randn(3, 6, 8)  # 6 tokens of one head, with 8 numbers each
top, total, out = part_of_attention(query, key, value)
first = part_of_attention(query, key[:4], value[:4])
second = part_of_attention(query, key[4:], value[4:])
pd.DataFrame({"top of the first part": first[0][:, 0], "of the second": second[0][:, 0], "of all keys": top[:, 0]}).T.round(2)

# %% [markdown]
# The two parts have subtracted different numbers, so you can't simply add them up.
#
# ## Exercise 1 (warm-up): merge two parts
#
# With `merge` you get the partial result of two sets of keys from the partial results of each. A partial result is a tuple `(top, total,
# out)`. `top` and `total` have one number per query, and `out` has a row per query. If one part has no keys at all, its `top` is
# minus infinity and the rest is 0.
#
# <details><summary>Hint 1: the new top</summary>
#
# It's the larger one for each query: `torch.maximum(top_a, top_b)`.
#
# </details><details><summary>Hint 2: from the old top to the new one</summary>
#
# The first part has summed up exp(score − top_a), and you want exp(score − top). Which factor turns one into the other?
#
# </details><details><summary>Solution</summary>
#
# {solution of merge}
#
# </details>


# %%
def merge(a, b):
    """The partial result (top, total, out) over the keys of both parts."""
    # <solution>
    top_a, total_a, out_a = a
    top_b, total_b, out_b = b
    top = torch.maximum(top_a, top_b)
    scale_a = (top_a - top).exp()
    scale_b = (top_b - top).exp()
    total = total_a * scale_a + total_b * scale_b
    out = out_a * scale_a + out_b * scale_b
    return top, total, out
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.merge(merge)

# %%
merge = written(merge)
_, total_of_both, out_of_both = merge(first, second)
print(f"largest difference to attention to all keys: {(out_of_both / total_of_both - out / total).abs().max():.0e}")

# %% [markdown]
# This is called the *online softmax*. Flash attention uses it to load one block of keys after another into a GPU's fast memory.
# You'll use it to look at one rank's keys after another's.
#
# ## Pass the keys around
#
# Put the ranks in a ring. Each rank first computes with its own block of keys and values. Then it passes this block to the right
# and goes on with the block that arrives from the left. When the blocks have been all the way around, each query has seen every key.

# %%
figures.ring_steps(team.n)

# %% [markdown]
# ## Exercise 2 (hard): ring attention
#
# With `ring_attention`, a sequence of any length fits if you have enough ranks. Each rank calls it with the queries, keys and values of its own tokens,
# `[sequences, heads, tokens, numbers]`.
#
# - `attend(query, key, value, source)` returns the partial result of your queries over the keys and values of rank `source`. It
#   applies the causal mask, which is why it needs to know whose they are.
# - `merge` is your function.
# - `comm.Isend(array, rank)` and `comm.Irecv(array, rank)` begin to send and to receive and return at once. You wait for
#   what they return with its `Wait()`. Start both *before* you compute, and the next block can travel meanwhile.
#
# Return the attention of your queries, and the logarithm of each query's sum of exponentials, which backward needs.
#
# <details><summary>Hint 1: whose block?</summary>
#
# In step 0 you hold your own. In step 1 you hold that of your left neighbor, `comm.rank - 1`, and so on around the ring:
# `source = (comm.rank - step) % comm.size`.
#
# </details><details><summary>Hint 2: one message</summary>
#
# `block = torch.stack([key, value])` is one tensor with both. `arriving = torch.empty_like(block)` has room for the next
# one: a message must not arrive in the tensor that you're sending. `block.numpy()` is an array that shares its memory.
#
# </details><details><summary>Hint 3: a step</summary>
#
# Unless this is the last step, start sending `block` to the right and receiving `arriving` from the left. Compute
# `attend(query, block[0], block[1], source)` and merge it with what you have. Then wait for both, and go on with
# `block = arriving`. If that's too much at once, begin with a single `comm.Sendrecv(block.numpy(), right,
# recvbuf=arriving.numpy(), source=left)` after you've computed.
#
# </details><details><summary>Hint 4: the end</summary>
#
# With the last `(top, total, out)`, the attention is `out / total`. The sum of exponentials is `total * exp(top)`, so its
# logarithm is `top + total.log()`.
#
# </details><details><summary>Solution</summary>
#
# {solution of ring_attention}
#
# </details>


# %%
def ring_attention(query, key, value, attend, merge, comm):
    """The attention of this rank's queries over the keys of all ranks, and their logsumexp. Called on every rank."""
    # <solution>
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    block = torch.stack([key, value])
    merged = None
    for step in range(comm.size):
        is_last = step == comm.size - 1
        if not is_last:
            arriving = torch.empty_like(block)
            sending = comm.Isend(block.numpy(), right)
            receiving = comm.Irecv(arriving.numpy(), left)
        source = (comm.rank - step) % comm.size
        part = attend(query, block[0], block[1], source)
        merged = part if merged is None else merge(merged, part)
        if not is_last:
            sending.Wait()
            receiving.Wait()
            block = arriving
    top, total, out = merged
    return out / total, top + total.log()
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.ring_attention(ring_attention)

# %% [markdown]
# ## Is it the same, and what does it send?
#
# Autograd knows nothing about your messages. The library adds the backward pass, a second ring in which the blocks travel *with their
# gradients*. (A *Deeper* section below shows it.) Now compare the result with PyTorch's own attention over the whole sequence, in
# float32, on rings of 1, 2 and 4 ranks.

# %%
team.push(merge=merge, ring_attention=written(ring_attention))


# %%
# %%ranks
import torch
from mpi4py import MPI

from workshop_lib.lessons.context_parallelism import ring
from workshop_lib.lessons.context_parallelism.blocks import BlockAttention, contiguous
from workshop_lib.lessons.context_parallelism.compare import with_full_attention

torch.set_num_threads(1)
comm = MPI.COMM_WORLD


def in_a_ring(query, key, value, attend, comm):
    return ring.with_backward(ring_attention, query, key, value, attend, merge, comm)


proof = {size: with_full_attention(in_a_ring, contiguous, comm.Split(comm.rank // size)) for size in (1, 2, 4)}

# %%
proof = team.pull("proof")[-1]
table = pd.DataFrame(proof.values(), index=[f"{size} ranks" for size in proof])
differences, blocks = ["out", "grad_query", "grad_key", "grad_value"], ["forward_blocks", "backward_blocks"]
table[differences + blocks].style.format("{:.0e}").format("{:g}", subset=blocks)

# %% [markdown]
# The differences, as shares of the largest number, are rounding. A *block* here is the keys and values of $t/p$ tokens, where $t$ is
# the number of tokens and $p$ that of the ranks. Each rank sends $p - 1$ blocks forward. Backward sends twice as many, because of the
# gradients. If all key heads together are $w_{kv}$ wide, a rank sends $2 \frac{p-1}{p} t\, w_{kv}$ numbers forward per layer, so
# nearly the same however many ranks there are.
#
# ## Does sending cost time?
#
# Not while a block arrives during the computation with the one before. A block of $c = t/p$ tokens means $4 c^2 w$ operations of attention, where
# $w$ is the width of all query heads, but only $2 c\, w_{kv}$ numbers to send. Take GPUs that compute 400 TFLOP/s, and 50 GB/s between them:

# %%
c = 4096
compute_ms = 1e3 * 4 * c**2 * width / 400e12
send_ms = 1e3 * 2 * c * kv_width * 2 / 50e9  # 2 bytes per number
figures.overlap(compute_ms, send_ms, steps=team.n)

# %% [markdown]
# With fewer than about 2,000 tokens per rank, the network is too slow to hide. With a causal mask there's half as much to compute, so
# you need twice the tokens. (On our ranks hardly anything overlaps, because most MPI libraries only move a large message while you're
# inside one of their calls. NCCL's messages travel by themselves.)
#
# *Try it:* set `c = 1024`.
#
# ## A causal mask: who waits?
#
# Early tokens see few keys, and late tokens see nearly all of them. `attend` skips whatever no query may see, as flash kernels do. But
# in every step of the ring, ranks that have nothing to compute wait for those that do.

# %%
guess = predict("For what share of the time is a rank idle, on average, if each holds neighboring tokens?", 0, 100, unit="%")
guess

# %%
# %%ranks
in_order = with_full_attention(in_a_ring, contiguous, comm, repeats=5)

# %%
in_order = pd.DataFrame(team.pull("in_order"))
print(f"By the scores that each rank computes, {list(in_order.scores)}, they're idle for {figures.idle(in_order.scores):.1%}.")
guess.compare(100 * figures.idle(in_order.cpu_ms))

# %% [markdown]
# The busiest rank sets the pace. With $p$ ranks, the idle share is $\frac{p-1}{2p}$, so you can lose up to half.
#
# ## Exercise 3 (normal): a fair order
#
# Nothing forces a rank to hold neighboring tokens. With `zigzag`, all ranks get the same number of tokens and the same amount of work, in *each*
# step of the ring. Cut the sequence into `2 * size` chunks, and give each rank two of them. Which two? Return their positions in the sequence,
# in ascending order.
#
# <details><summary>Hint 1</summary>
#
# The later a chunk, the more keys its queries see. Which chunk would you pair with the very first, so that all pairs see the same?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `torch.arange(tokens).chunk(2 * size)` is a list of the chunks' positions, and `torch.cat([…])` joins two of them.
#
# </details><details><summary>Solution</summary>
#
# {solution of zigzag}
#
# </details>


# %%
def zigzag(tokens, rank, size):
    """The positions of this rank's tokens, ascending. Every rank has two of 2 * size chunks: [tokens / size]."""
    # <solution>
    chunks = torch.arange(tokens).chunk(2 * size)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.zigzag(zigzag)

# %%
zigzag = written(zigzag)
team.push(zigzag=zigzag)
orders = {"in order": contiguous, "zigzag": zigzag}
figures.who_computes({name: [order(64, rank, team.n) for rank in range(team.n)] for name, order in orders.items()})

# %%
# %%ranks
in_zigzag = with_full_attention(in_a_ring, zigzag, comm, repeats=5)

# %%
in_zigzag = pd.DataFrame(team.pull("in_zigzag"))
print(f"Now the ranks compute {list(in_zigzag.scores)} scores. Results differ by {in_zigzag[differences].max().max():.0e} at most.")
figures.busy({"in order": in_order.cpu_ms, "zigzag": in_zigzag.cpu_ms}, "CPU time in attention, milliseconds")

# %% [markdown]
# Your ring hasn't changed, and its results haven't either, because `attend` masks by *position*. PyTorch, Megatron-LM and Llama 3 use this
# order.
#
# ## Ring, gather, or trade tokens for heads?
#
# There are two other ways. Each rank can *gather* all keys and values of a layer. Or the ranks trade tokens for heads with an
# all-to-all, so that each has the whole sequence for a few heads, and trade back after attention. That's *Ulysses*. What does a rank
# send in the forward pass of one layer of Llama 3 8B, and what does it hold of keys and values?

# %%
rows = []
for p in (2, 4, 8, 16, 32):
    ring_mb = 2 * (p - 1) / p * tokens * 2 * kv_width / 1e6
    ulysses_mb = 2 * (p - 1) / p * tokens / p * (2 * width + 2 * kv_width) / 1e6 if p <= kv_heads else float("nan")
    all_mb = 2 * tokens * 2 * kv_width / 1e6
    rows.append([p, ring_mb, ring_mb, ulysses_mb, 2 * all_mb / p, all_mb, all_mb / p])
columns = ["ranks", *(f"{way} {does}, MB" for does in ("sends", "holds") for way in ("ring", "gather", "Ulysses"))]
pd.DataFrame(rows, columns=columns).set_index("ranks").style.format("{:,.0f}", na_rep="too few KV heads")

# %% [markdown]
# - A **ring** hides what it sends if blocks are large. A rank holds two blocks, the one in use and the one that arrives.
# - **Gathering** sends as much, at once. It's simple, and any mask works, such as one that keeps documents in a sequence apart. Llama 3 was
#   trained this way: with few KV heads, keys and values are small.
# - **Ulysses** sends less the more ranks there are, runs a plain kernel, and is balanced without zigzag. But the ranks have to
#   divide the KV heads, and nothing hides what it sends. Some combine it with a ring: heads inside a node, tokens between nodes.
#
# ## Deeper: train on one sequence
#
# Now train a tiny GPT on one sequence of 1,024 bytes. In the model, only the function that mixes tokens changes. But three things are
# easy to get wrong, and no error tells you:
#
# - A token's *position* is its place in the whole sequence, with rotary embeddings, too.
# - A token's *target* is the next one of the whole sequence. At the end of a chunk another rank has it, so shift the text *before* you
#   cut it.
# - The loss is a sum over all tokens that count, divided by their number *on all ranks*. Here the first quarter is a prompt, which
#   doesn't count. So some ranks have fewer such tokens, and a mean of the ranks' means is wrong.


# %%
# %%ranks
from torch.nn.functional import cross_entropy

from workshop_lib.lessons.context_parallelism.gpt import Gpt, text

tokens = text(1024)  # one more than 1,024: the last is only a target
targets = tokens[1:].clone()
targets[:256] = -100  # cross_entropy leaves these out


def losses(comm, seen, numbers, wanted, counted):
    """Five steps with this rank's tokens: what it sees, their positions, their targets, and by what it divides."""
    attend = BlockAttention([zigzag(1024, rank, comm.size) for rank in range(comm.size)], comm.rank)
    model = Gpt(1024, lambda query, key, value: in_a_ring(query, key, value, attend, comm))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    curve = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = cross_entropy(model(seen[None], numbers)[0], wanted, reduction="sum") / counted
        loss.backward()
        for p in model.parameters():
            comm.Allreduce(MPI.IN_PLACE, p.grad.numpy())
        optimizer.step()
        curve.append(comm.allreduce(loss.item()))
    return curve


# %%
# %%ranks --timeout 120
at = zigzag(1024, comm.rank, comm.size)
right = {"seen": tokens[at], "numbers": at, "wanted": targets[at], "counted": 768}
mistakes = {
    "context parallel": {},
    "positions from 0": {"numbers": torch.arange(len(at))},
    "shifted after cutting": {"wanted": torch.where(targets[at] < 0, -100, tokens[at].roll(-1))},
    "mean of means": {"counted": comm.size * (targets[at] >= 0).sum()},
}
curves = {"one process": losses(MPI.COMM_SELF, tokens[:-1], torch.arange(1024), targets, 768)}
curves |= {name: losses(comm, **right | mistake) for name, mistake in mistakes.items()}

# %%
table = pd.DataFrame(team.pull("curves")[0], index=[f"step {step}" for step in range(1, 6)]).T
table["differs by"] = table.sub(table.loc["one process"]).abs().max(axis=1)
table.style.format("{:.3f}").format("{:.0e}", subset=["differs by"])

# %% [markdown]
# Done right, it's one process up to rounding. The three mistakes train as well, and their losses look harmless. So compare once
# with one process, on a sequence that fits.
#
# In a real run, context parallelism is one dimension of a mesh. Gradients are averaged over it as over data, and FSDP usually shards
# weights over both.
#
# ## Deeper: the ring of the backward pass
#
# Backward computes a block's weights again from the scores and `logsumexp`, so nobody has to store them. A rank finds gradients for *its own*
# queries, and for *another* rank's keys and values. The second kind travels with the block, collects what each rank adds, and comes
# home after a full round:

# %%
print(inspect.getsource(ring.ring_backward))

# %% [markdown]
# ## Deeper: gather and Ulysses, for real
#
# The other two ways are short with the tools of [11](11_model_parallelism.ipynb), collectives whose backward is a collective, too.

# %%
print(inspect.getsource(other_ways.gathered), inspect.getsource(other_ways.ulysses), sep="\n")

# %%
# %%ranks
from workshop_lib.lessons.context_parallelism import other_ways

ways = {
    "ring, zigzag": with_full_attention(in_a_ring, zigzag, comm),
    "gather, zigzag": with_full_attention(other_ways.gathered, zigzag, comm),
    "Ulysses, in order": with_full_attention(other_ways.ulysses, contiguous, comm),
}

# %%
ways = team.pull("ways")[0]
table = pd.DataFrame(ways.values(), index=list(ways))
table[differences + blocks].style.format("{:.0e}").format("{:g}", subset=blocks)

# %% [markdown]
# Here all heads have keys and values of their own, so $w = w_{kv}$, and Ulysses sends $2 \frac{p-1}{p}$ blocks each way. Gathering sends less
# backward than the ring, because here each rank keeps all keys and values. Real systems gather them again instead.
#
# ## Deeper: PyTorch's own
#
# PyTorch has `context_parallel`, as an experiment. Inside it, your tensors are cut in place, in the zigzag order, and
# `scaled_dot_product_attention` becomes a ring:

# %%
# %%ranks --timeout 120
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from workshop_lib.training import rendezvous, world

rendezvous.join_process_group(world.detect(), torch.device("cpu"))
torch.manual_seed(1)
whole = torch.randn(3, 1, 4, 1024, 32)
expected = scaled_dot_product_attention(*whole, is_causal=True)
qkv = [each.clone() for each in whole]
at = zigzag(1024, comm.rank, comm.size)
try:
    with context_parallel(init_device_mesh("cpu", (comm.size,)), buffers=qkv, buffer_seq_dims=[2, 2, 2]):
        print(f"the shape of q inside: {tuple(qkv[0].shape)}", "in zigzag order:", torch.equal(qkv[0], whole[0][:, :, at]))
        by_name = scaled_dot_product_attention(*qkv, is_causal=True)  # imported by name, before
        functional.scaled_dot_product_attention(*qkv, is_causal=True)
except NotImplementedError as error:
    print(error)
print(f"imported by name, it differs by {(by_name - expected[:, :, at]).abs().max():.1f}")

# %% [markdown]
# It needs a GPU's flash, memory-efficient or cuDNN kernel; the CPU's isn't registered. And look at the last line. PyTorch replaces the
# function inside `torch.nn.functional`, so code that has imported it *by name* keeps the old one. Each rank then attends to its own
# tokens only, and no error tells you.
#
# The ring inside takes any kernel that returns its output and logsumexp, also the CPU's. (Its name begins with an underscore, so it
# may change.)

# %%
# %%ranks --timeout 120
from torch.distributed.tensor.experimental._context_parallel._attention import _templated_ring_attention


def flash_on_cpu(query, key, value, is_causal):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal)


mine = [each[:, :, at].contiguous() for each in whole]
out, _ = _templated_ring_attention(dist.group.WORLD, 2, flash_on_cpu, *mine, is_causal=True)
right = expected[:, :, at]
print(f"PyTorch's ring differs from full attention by {(out - right).abs().max() / right.abs().max():.0e}")

# %% [markdown]
# ## Remember
#
# - Flash attention never stores the scores, but activations still grow with the number of tokens, and tensor parallelism ends at
#   the number of KV heads.
# - Context parallelism shards the tokens in all layers. Only attention communicates.
# - Partial results of a softmax can be merged: keep the largest score, the sum and the weighted sum, and divide at the end.
# - A ring sends $p - 1$ blocks forward and twice as many backward, while it computes. A causal mask leaves ranks idle for up to half of
#   the time, unless each has an early and a late chunk.
# - Positions, targets and the loss belong to the whole sequence.
#
# **Take it home:** [scripts/context_parallel.py](scripts/context_parallel.py).
#
# **Sources.** H. Liu, M. Zaharia and P. Abbeel, [*Ring Attention with Blockwise Transformers for Near-Infinite
# Context*](https://arxiv.org/abs/2310.01889). W. Brandon et al., [*Striped Attention*](https://arxiv.org/abs/2311.09431), for the
# imbalance; zigzag comes from Z. Zhu's [ring-flash-attention](https://github.com/zhuzilin/ring-flash-attention) and
# Megatron-LM. S. A. Jacobs et al., [*DeepSpeed Ulysses*](https://arxiv.org/abs/2309.14509). *The Llama 3 Herd of
# Models*, [section 3.3.2](https://arxiv.org/abs/2407.21783), for gathering keys and values. M. Milakov and N. Gimelshein, [*Online normalizer
# calculation for softmax*](https://arxiv.org/abs/1805.02867). PyTorch's tutorial on [context
# parallelism](https://docs.pytorch.org/tutorials/unstable/context_parallel.html).

# %%
ranks.stop()
