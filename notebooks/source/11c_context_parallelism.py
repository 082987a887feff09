# %% [markdown] track="large models"
# # Context parallelism: one sequence on several ranks
#
# You'd like to train on whole books, with 131,072 tokens in one sequence. One GPU runs out of memory, and so do eight with
# tensor parallelism. What fills them? And how do you split *one* sequence?
#
# **You will** write ring attention on real ranks, and prove that it equals full attention, forward and backward. Then you'll hide
# its messages behind computing, and keep a causal mask from leaving ranks idle.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [11](11_model_parallelism.ipynb) first.

# %%
import inspect

import pandas as pd
import torch

from workshop_lib import picture, predict, ranks

from lessons import context_parallelism as lesson

team = ranks.start(4)
team

# %% [markdown]
# ## Attention, briefly
#
# A transformer turns each token into a vector, and *attention* lets a token read from the others. For each token, linear layers
# compute a *query* (what it looks for), a *key* (what it offers) and a *value* (what others read from it). The *score* of a query
# and a key is their dot product, and *softmax* turns a query's scores into weights: it takes `exp` of each score and divides by
# the sum. The result is the sum of the values with these weights. With a *causal mask*, a token sees only itself and earlier
# tokens, so a model can learn to predict the next one.
#
# Attention does this several times side by side, in *heads*, each on its own slice of the vector. In many models, several query
# heads share the keys and values of one *KV head*. And *flash attention* is a GPU kernel that computes all of this without ever
# storing the scores, so its memory doesn't grow with the square of the length.
#
# ## What fills the memory?
#
# Yet take Llama 3 8B and one sequence of 131,072 tokens, in bfloat16:

# %%
tokens, layers = 131_072, 32
width, kv_width, mlp_width = 4096, 1024, 14_336
# Inputs and outputs of two norms, queries, attention's output; keys and values; four
# tensors inside the MLP.
kept_per_token = 6 * width + 2 * kv_width + 4 * mlp_width
kept_gb = 2 * layers * tokens * kept_per_token / 1e9
print(f"kept for the backward pass: {kept_gb:,.0f} GB, or {kept_gb / 8:,.0f} on each")
print("of 8 GPUs, if tensor parallelism cuts all of it")

# %% [markdown]
# A GPU has 80 GB. But every layer keeps some 84,000 numbers for each token, and these *activations* don't fit. *Checkpointing*
# ([06c](06c_fitting_more.ipynb)) keeps only the layers' inputs, but those grow with the tokens, too. So more ranks have to share
# the sequence.
#
# ## What to shard
#
# Norms, linear layers and the loss treat each token alone. So give each rank a part of the *tokens*, in all layers. That's
# *context parallelism*. Within a layer, only attention has to communicate, because a query needs the keys and values of other
# tokens. (Tensor parallelism cuts the heads instead, and runs out of KV heads: this model has 8.)
#
# This doesn't divide the weights, because every rank uses all of them for its own tokens. So the ranks sum their gradients, as in
# data parallelism, and FSDP can shard weights, gradients and Adam's state over the same ranks.
#
# ## Attention to one part of the keys at a time
#
# Softmax divides by a sum over *all* keys. But you can keep that sum and the weighted sum of the values, and divide at the
# very end. Only `exp` needs care, because it can overflow. So you subtract the query's largest score first:


# %%
def part_of_attention(query, key, value):
    scores = query @ key.T / query.shape[1] ** 0.5
    top = scores.amax(dim=1, keepdim=True)  # the largest score of each query
    weights = (scores - top).exp()
    return top, weights.sum(dim=1, keepdim=True), weights @ value


torch.manual_seed(4)
query, key, value = torch.randn(3, 6, 8)  # 6 tokens of one head, with 8 numbers each
first = part_of_attention(query, key[:4], value[:4])
second = part_of_attention(query, key[4:], value[4:])
pd.DataFrame({"first top": first[0][:, 0], "second top": second[0][:, 0]}).T.round(2)

# %% [markdown]
# For each query, the two parts have subtracted different numbers, so you can't simply add them up.
#
# ## Exercise 1 (warm-up): merge two parts
#
# `merge` joins the partial results of two sets of keys. A partial result is a tuple `(top, total, out)`, as above. If a part
# has no keys at all, its `top` is minus infinity, and the rest is 0.
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
lesson.check.merge(merge)

# %%
merge = lesson.check.written(merge)
top, total, out = merge(first, second)
whole = torch.nn.functional.scaled_dot_product_attention(
    query[None], key[None], value[None]
)[0]
print(
    "largest difference to attention over all keys: "
    f"{(out / total - whole).abs().max():.0e}"
)

# %% [markdown]
# This is the *online softmax*, which flash attention uses as well.
#
# ## Pass the keys around
#
# Put the ranks in a ring. Each rank first computes with its own block of keys and values. Then it passes this block to the
# right and continues with the block that arrives from the left. Once every block has visited every rank, each query has seen
# every key.

# %%
picture("ring_steps")

# %% [markdown]
# This is what a rank computes with one block. `needed` finds the queries that see any of these keys, and the keys that any of
# them sees. `_scores` is `query @ key.T` as above, with a causal mask by the tokens' positions:

# %%
print(inspect.getsource(lesson.BlockAttention.__call__))

# %% [markdown]
# ## Exercise 2 (normal): ring attention
#
# With `ring_attention`, the keys and values of a sequence of any length fit if you have enough ranks. Each rank calls it with the
# queries, keys and values of its own tokens, `[sequences, heads, tokens, numbers]`. Write one step of the ring: compute with the
# block, merge the result with what you have, and pass the block on.
#
# - `merge` is your function.
# - `attend(query, key, value, source)` is the method above; `source` is the rank that owns these keys and values.
# - `comm.Sendrecv(array, right, recvbuf=other, source=left)` sends one array and receives another. Call it after you've computed
#   with a block. `block.numpy()` is an array that shares the block's memory.
#
# Besides the attention, the last line returns each query's *logsumexp*, the logarithm of its sum of exponentials. The backward
# pass needs it.
#
# <details><summary>Hint 1: whose block?</summary>
#
# In step 0 you hold your own. In step 1 you hold your left neighbor's, that of `comm.rank - 1`, and so on around the ring:
# `source = (comm.rank - step) % comm.size`.
#
# </details><details><summary>Hint 2: a step</summary>
#
# Compute `attend(query, block[0], block[1], source)` and merge it with what you have. Unless this is the last step, call
# `comm.Sendrecv(block.numpy(), right, recvbuf=arriving.numpy(), source=left)`, and go on with `block = arriving`. Here
# `arriving = torch.empty_like(block)` is a new tensor, because a message must not arrive in the tensor that you're sending.
#
# </details><details><summary>Solution</summary>
#
# {solution of ring_attention}
#
# </details>


# %%
def ring_attention(query, key, value, attend, merge, comm):
    """This rank's queries' attention over the keys of all ranks, and their logsumexp.

    Called on every rank.
    """
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    block = torch.stack([key, value])
    merged = None  # the partial result over all blocks so far
    for step in range(comm.size):
        # <solution>
        source = (comm.rank - step) % comm.size
        part = attend(query, block[0], block[1], source)
        merged = part if merged is None else merge(merged, part)
        if step < comm.size - 1:
            arriving = torch.empty_like(block)
            comm.Sendrecv(block.numpy(), right, recvbuf=arriving.numpy(), source=left)
            block = arriving
        # <stub>
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>
    top, total, out = merged
    return out / total, top + total.log()


# %%
lesson.check.ring_attention(ring_attention)

# %% [markdown]
# ## Is it the same, and what does it send?
#
# Autograd knows nothing about your messages, so the library adds a backward pass. Compare the results with PyTorch's own
# attention over the whole sequence, on rings of 1, 2 and 4 ranks.

# %%
team.push(merge=merge, ring_attention=lesson.check.written(ring_attention))


# %%
# %%ranks
import torch
from mpi4py import MPI

from lessons import context_parallelism as lesson

torch.set_num_threads(1)
comm = MPI.COMM_WORLD


def in_a_ring(query, key, value, attend, comm):
    return lesson.ring.with_backward(
        ring_attention, query, key, value, attend, merge, comm
    )


proof = {
    size: lesson.with_full_attention(
        in_a_ring, lesson.contiguous, comm.Split(comm.rank // size)
    )
    for size in (1, 2, 4)
}

# %%
table = pd.DataFrame(
    team.pull("proof")[0].values(), index=["1 rank", "2 ranks", "4 ranks"]
)
differences = ["out", "grad_query", "grad_key", "grad_value"]
blocks = ["forward_blocks", "backward_blocks"]
table[differences + blocks].style.format("{:.0e}").format("{:g}", subset=blocks)

# %% [markdown]
# The differences are rounding. A *block* is the keys and values of one rank's tokens. Each of $p$ ranks sends $p - 1$ blocks
# forward, and twice as many in the backward pass, because the blocks' gradients travel with them. Let $t$ be the number of
# tokens, and $w_{kv}$ the width of all key heads together. Then a rank sends $2 \frac{p-1}{p} t\, w_{kv}$ numbers forward per
# layer, always less than $2\, t\, w_{kv}$.
#
# ## Does sending cost time?
#
# With $c = t/p$ tokens per rank, attention to a block takes $4 c^2 w$ operations, where $w$ is the width of all query heads. The
# message with that block has only $2 c\, w_{kv}$ numbers of 2 bytes. So from some length on, computing takes longer than sending.
# Take the widths of Llama 3 8B, 4096 and 1024, and imagined GPUs that compute 400 TFLOP/s, with 50 GB/s between them:

# %%
gpu = {"flop_per_s": 400e12, "bytes_per_s": 50e9}
guess = predict(
    "From how many tokens per rank on does computing with a block take as long as "
    "sending one?",
    0,
    10_000,
    "tokens",
)
guess

# %%
compute_s = 4 * width / gpu["flop_per_s"]  # times c squared
send_s = 2 * kv_width * 2 / gpu["bytes_per_s"]  # times c
guess.compare(send_s / compute_s)

# %% [markdown]
# From there on, computing can hide the messages. But your ring first computes and then sends, so nothing is hidden yet.
#
# ## Exercise 3 (warm-up): overlap
#
# `comm.Isend(array, right)` and `comm.Irecv(other, left)` start a message and return a request, whose `Wait()` returns when the
# message is done. Copy your ring into `overlapped_ring`, and start both *before* you compute, so the next block travels
# meanwhile.
#
# <details><summary>Hint</summary>
#
# Unless this is the last step, call `Isend` and `Irecv` at the top of the step. After `attend`, call `Wait` on both requests. Only
# then go on with `block = arriving`.
#
# </details><details><summary>Solution</summary>
#
# {solution of overlapped_ring}
#
# </details>


# %%
def overlapped_ring(query, key, value, attend, merge, comm):
    """Like ring_attention, but the next block travels while this rank computes."""
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
lesson.check.overlapped_ring(overlapped_ring)

# %% [markdown]
# Now run both of your rings with 1,000 and with 4,000 tokens per rank. These ranks send your messages for real, but each carries
# a clock of *emulated* time, as in [05](05_ddp.ipynb). The tensors are tiny. The clock is charged for the operations and bytes that
# a layer of Llama 3 8B would have on the imagined GPUs.

# %%
team.push(overlapped_ring=lesson.check.written(overlapped_ring), gpu=gpu)

# %%
# %%ranks
rings = {
    "compute, then Sendrecv": ring_attention,
    "Isend, Irecv, then compute": overlapped_ring,
}
runs = {
    f"{tokens:,} tokens per rank": {
        name: lesson.emulated.run(ring, merge, lesson.contiguous, tokens, **gpu)
        for name, ring in rings.items()
    }
    for tokens in (1000, 4000)
}

# %%
last_rank = team.pull("runs")[3]  # its queries see every key
lesson.figures.overlap(last_rank)

# %% [markdown]
# With 4,000 tokens, computing takes twice as long as sending. So all of your messages disappear behind computing in the
# overlapped ring, while the ring with `Sendrecv` waits for each block. With 1,000 tokens, sending takes twice as long as
# computing, so even the overlapped ring waits. (On GPUs, NCCL moves messages in the background, as the emulation does. Most MPI
# libraries move large messages only during their own calls.)
#
# ## A causal mask: who waits?
#
# The last rank had work in every step. But early tokens see few keys, and `attend` skips keys that none of its queries may see. So
# the ranks with early tokens wait for the others.

# %%
guess = predict(
    "If each rank holds neighboring tokens, "
    "for what share of the time is it idle, on average?",
    0,
    100,
    "%",
)
guess

# %%
# %%ranks
in_order = lesson.with_full_attention(in_a_ring, lesson.contiguous, comm)

# %%
in_order = pd.DataFrame(team.pull("in_order"))
print(
    "scores per rank, forward and backward:",
    list(in_order.scores),
    f"so {lesson.figures.idle(in_order.scores):.1%} idle",
)
guess.compare(100 * lesson.figures.idle(in_order.scores))

# %% [markdown]
# The busiest rank sets the pace. Counted in scores, the idle share is $\frac{p-1}{2p}$ here, and $\frac{p-1}{2p-1}$
# with a flash kernel, which also skips half of a rank's own block. With many ranks you lose nearly half.
#
# ## Exercise 4 (normal): a fair order
#
# A rank doesn't have to hold neighboring tokens. `zigzag` cuts the sequence into `2 * size` chunks and gives each rank two of
# them, so that all ranks have the same work in *each* step of the ring. Which two? Return the positions of their tokens in the
# sequence, in ascending order.
#
# <details><summary>Hint 1</summary>
#
# The later a chunk, the more keys its queries see. Which chunk would you pair with the very first, so that all pairs see the
# same?
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
    """The positions of this rank's tokens, ascending.

    Every rank has two of 2 * size chunks: [tokens / size].
    """
    # <solution>
    chunks = torch.arange(tokens).chunk(2 * size)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.zigzag(zigzag)

# %%
zigzag = lesson.check.written(zigzag)
team.push(zigzag=zigzag)
lesson.figures.who_computes({"in order": lesson.contiguous, "zigzag": zigzag}, ranks=4)

# %%
# %%ranks
in_zigzag = lesson.with_full_attention(in_a_ring, zigzag, comm)
overlapped = {
    f"{tokens:,} per rank": lesson.emulated.run(
        overlapped_ring, merge, zigzag, tokens, **gpu
    )
    for tokens in (2000, 4000)
}

# %%
in_zigzag = pd.DataFrame(team.pull("in_zigzag"))
print(f"largest difference: {in_zigzag[differences].max().max():.0e}")
lesson.figures.busy(
    {"in order": in_order.scores, "zigzag": in_zigzag.scores},
    "scores that a rank computes, forward and backward",
)

# %% [markdown]
# Your ring and its results haven't changed, because `attend` masks by *position*. In each step after the first, a rank now
# computes only half a block. So computing hides sending from twice as many tokens per rank on, apart from a message's latency:

# %%
last_rank = team.pull("overlapped")[3]
lesson.figures.overlap({"zigzag, Isend, Irecv, then compute": last_rank})

# %% [markdown]
# PyTorch, Megatron-LM and Llama 3 use this order.
#
# ## Deeper: ring, gather, or trade tokens for heads?
#
# A ring isn't the only way. Llama 3 was trained by *gathering* all keys and values of a layer at once, which is simple and allows
# any mask. PyTorch and torchtitan gather, too, and Megatron-LM's default is the ring. The mask matters if you *pack* several
# documents into one sequence, and a token sees only its own document. Then zigzag isn't fair anymore, because the end of a long
# document has more work than any other chunk.
#
# With *Ulysses*, an all-to-all gives each rank the whole sequence for a few heads, and a second one takes the results back. What
# does a rank send forward in a layer of Llama 3 8B, and what does it hold of keys and values?

# %%
kv_heads = 8
rows = []
all_mb = 2 * tokens * 2 * kv_width / 1e6  # keys and values of all tokens
for p in (2, 4, 8, 16, 32):
    ring_mb = (p - 1) / p * all_mb
    copies = max(1, p / kv_heads)  # of each KV head, with Ulysses
    ulysses_mb = (
        2 * (p - 1) / p * tokens / p * (2 * width + 2 * kv_width * copies) / 1e6
    )
    held_mb = [min(3, p) * all_mb / p, all_mb, all_mb * copies / p]
    rows.append([p, ring_mb, ring_mb, ulysses_mb, *held_mb])
ways = ("ring", "gather", "Ulysses")
columns = [f"{way} {does}, MB" for does in ("sends", "holds") for way in ways]
table = pd.DataFrame(rows, columns=["ranks", *columns])
table.set_index("ranks").style.format("{:,.0f}")

# %% [markdown]
# - A **ring** hides what it sends if blocks are large. A rank holds up to three blocks: its own, the one in use and the one
#   that's arriving.
# - **Gathering** sends as much, all at once. Llama 3 can afford it, since with few KV heads, keys and values are small.
# - **Ulysses** sends more than a ring on 2 or 4 ranks, and less on 8 or more. It runs a plain kernel and is balanced without zigzag.
#   But the number of ranks has to divide the 32 query heads, KV heads are sent more than once beyond 8 ranks, and nothing hides
#   the messages. The two can be combined: Ulysses within a node, and a ring between nodes.
#
# The last two take a few lines with [11](11_model_parallelism.ipynb)'s collectives, whose backward pass is another collective:

# %%

print(
    inspect.getsource(lesson.other_ways.gathered),
    inspect.getsource(lesson.other_ways.ulysses),
    sep="\n",
)

# %%
# %%ranks

ways = {
    "ring, zigzag": lesson.with_full_attention(in_a_ring, zigzag, comm),
    "gather, zigzag": lesson.with_full_attention(
        lesson.other_ways.gathered, zigzag, comm
    ),
    "Ulysses, in order": lesson.with_full_attention(
        lesson.other_ways.ulysses, lesson.contiguous, comm
    ),
}

# %%
ways = team.pull("ways")[0]
table = pd.DataFrame(ways.values(), index=list(ways))
table[differences + blocks].style.format("{:.0e}").format("{:g}", subset=blocks)

# %% [markdown]
# Here each head has keys and values of its own, so Ulysses sends $2 \frac{p-1}{p}$ blocks forward, and as many backward.
#
# ## Deeper: train on one sequence
#
# Train a tiny GPT on one sequence of 1,024 bytes. In the model, only the function that mixes tokens changes. But three things
# are easy to get wrong, and no error tells you:
#
# - A token's *position* is its place in the whole sequence. Rotary embeddings need this place, too.
# - A token's *target* is the next token of the whole sequence. At the end of a chunk, that token may be on another rank, so
#   shift the text *before* you cut it.
# - The loss is a sum over all tokens that count, divided by their number *on all ranks*. Here the first quarter is a prompt,
#   which doesn't count. The ranks therefore have different numbers of tokens that count, and the mean of the ranks' means is
#   wrong.


# %%
# %%ranks
from torch.nn.functional import cross_entropy

tokens = lesson.text(1024)  # one more than 1,024: the last is only a target
targets = tokens[1:].clone()
targets[:256] = -100  # cross_entropy leaves these out


def losses(comm, seen, positions, targets, divisor):
    """The losses of five steps with this rank's tokens.

    The sum over them is divided by `divisor`.
    """
    attend = lesson.BlockAttention(
        [zigzag(1024, rank, comm.size) for rank in range(comm.size)], comm.rank
    )
    model = lesson.TinyGpt(
        1024, lambda query, key, value: in_a_ring(query, key, value, attend, comm)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    curve = []
    for _ in range(5):
        optimizer.zero_grad()
        logits = model(seen[None], positions)[0]
        loss = cross_entropy(logits, targets, reduction="sum") / divisor
        loss.backward()
        for p in model.parameters():
            comm.Allreduce(MPI.IN_PLACE, p.grad.numpy())
        optimizer.step()
        curve.append(comm.allreduce(loss.item()))
    return curve


# %%
# %%ranks --timeout 120
at = zigzag(1024, comm.rank, comm.size)
right = {"seen": tokens[at], "positions": at, "targets": targets[at], "divisor": 768}
mistakes = {
    "context parallel": {},
    "positions from 0": {"positions": torch.arange(len(at))},
    "shifted after cutting": {
        "targets": torch.where(targets[at] < 0, -100, tokens[at].roll(-1))
    },
    "mean of means": {"divisor": comm.size * (targets[at] >= 0).sum()},
}
curves = {
    "one process": losses(MPI.COMM_SELF, tokens[:-1], torch.arange(1024), targets, 768)
}
curves |= {name: losses(comm, **right | mistake) for name, mistake in mistakes.items()}

# %%
table = pd.DataFrame(
    team.pull("curves")[0], index=[f"step {step}" for step in range(1, 6)]
).T
table["differs by"] = table.sub(table.loc["one process"]).abs().max(axis=1)
table.style.format("{:.3f}").format("{:.0e}", subset=["differs by"])

# %% [markdown]
# Done right, the losses are those of one process. With each mistake, training still runs, and the losses look harmless. So
# compare with one process once, on a sequence that fits.
#
# In a mesh, DDP and FSDP take the *mean* of the gradients over this dimension, and this loss needs their sum. So multiply the loss
# by the number of ranks first.
#
# ## Deeper: the ring of the backward pass
#
# The backward pass computes the weights of a block again, from the scores and `logsumexp`, so nobody has to store them. In
# each step, a rank finds gradients for *its own* queries and for *another* rank's keys and values. The latter gradients travel
# with their block: each rank adds its part, and after a full round they arrive at home.

# %%

print(inspect.getsource(lesson.ring.ring_backward))

# %% [markdown]
# ## Remember
#
# - Context parallelism shards the tokens in all layers, but not the weights. So within a layer, only attention communicates, and
#   after the backward pass, gradients are summed over the ranks.
# - A rank of a ring sends $p - 1$ blocks forward and twice as many backward. If it starts each message before it computes, and
#   has enough tokens, the messages forward cost no time.
# - Under a causal mask, each rank needs an early and a late chunk, or some ranks are idle.
#
# Next: [11d](11d_experts.ipynb) gives each rank some of the MLPs, and sends tokens to them.
#
# **Take it home:** [scripts/context_parallel.py](scripts/context_parallel.py).
#
# **Sources.** M. Milakov and N. Gimelshein, [online softmax](https://arxiv.org/abs/1805.02867). H. Liu et al., [*Ring
# Attention*](https://arxiv.org/abs/2310.01889). W. Brandon et al., [*Striped Attention*](https://arxiv.org/abs/2311.09431), on
# its imbalance. Z. Zhu, [ring-flash-attention](https://github.com/zhuzilin/ring-flash-attention), on zigzag. S. A. Jacobs et
# al., [*DeepSpeed Ulysses*](https://arxiv.org/abs/2309.14509). [*Llama 3*](https://arxiv.org/abs/2407.21783), section 3.3.2.
# PyTorch's [tutorial](https://docs.pytorch.org/tutorials/unstable/context_parallel.html).

# %%
ranks.stop()
