# %% [markdown] track="large models"
# # Experts: more weights, hardly more work
#
# DeepSeek-V3 has 671 billion weights, yet it uses only 37 billion of them for any one token. So a token costs about as much as
# in a model an eighteenth of its size. Who decides which weights a token needs? How does the token get there, if those weights
# are on another GPU? And what happens if all tokens want the same ones?
#
# **You will** write a router, send tokens to experts on other ranks and back, and prove that the result is that of one process,
# forward and backward. Then you'll measure what eight experts are worth, compared with a dense model that does the same work.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [11](11_model_parallelism.ipynb) first.

# %%
import inspect

import pandas as pd
import torch

from workshop_lib import picture, predict, ranks

from lessons import experts as lesson

team = ranks.start(4)
team

# %% [markdown]
# ## Many MLPs, and a router
#
# Most weights of a transformer are in its MLPs. A *mixture of experts* replaces one MLP by several, which are called *experts*. A
# small linear layer, the *router*, gives each expert a probability, and each token goes only to the $k$ most probable ones. Here
# are six tokens and four experts:

# %%
torch.manual_seed(1)
tokens = torch.randn(6, 64)
router = torch.nn.Linear(64, 4, bias=False)
probabilities = router(tokens).softmax(dim=1)
table = (
    pd.DataFrame(probabilities.detach())
    .rename_axis("token")
    .rename_axis("expert", axis=1)
)
table.style.format("{:.2f}").highlight_max(axis=1, props="font-weight: bold")

# %% [markdown]
# A token's output is the sum of what its $k$ experts return, each multiplied by its probability. This factor is called the
# *gate*, and it's what the router learns from: choosing has no gradient, but the gate has one.
#
# How many tokens does an expert get? That's different in every step, while buffers and messages are simplest if their size is
# fixed. So of each rank's tokens, an expert accepts at most a fixed number, its *capacity*. An even load of $t$ tokens
# over $E$ experts would be $k t / E$, and the Switch Transformer allows up to 1.25 times as much. A token beyond the capacity is
# *dropped*: this expert returns 0 for it. A block adds its input to the result, so a token that all its $k$ experts have dropped
# simply skips the MLP.
#
# ## Exercise 1 (normal): the router
#
# `route` decides which experts each token goes to, and which of their slots it takes. From the probabilities
# `[tokens, experts]` it returns three tensors, each `[tokens, k]`:
#
# - `chosen`: the k most probable experts of each token, the most probable one first;
# - `gates`: their probabilities, as they are, even if they don't add up to 1;
# - `slots`: each expert numbers the choices that it gets, from 0. It starts with all first choices, in the order of the tokens, then
#   come all second choices, and so on. So if slots run out, nobody loses a first choice to somebody's second one.
#
# For example, three tokens with the choices `[[1, 0], [1, 2], [0, 1]]` have the slots `[[0, 1], [1, 0], [0, 2]]`.
#
# <details><summary>Hint 1: the choices</summary>
#
# `probabilities.topk(k, dim=1)` returns the k largest values of each row, and where they were.
#
# </details><details><summary>Hint 2: one queue</summary>
#
# `chosen.T.flatten()` is a queue of all choices: all first ones, then all second ones. The slot of a choice is the number of
# choices before it in this queue that want the same expert. You may simply walk through the queue in a loop, and keep a count for
# each expert.
#
# </details><details><summary>Hint 3: without a loop</summary>
#
# `one_hot(queue, experts)` has a row for each choice in the queue, with a 1 at the expert it wants. In each column,
# `cumsum(dim=0)` counts the choices up to this one. Subtract the choice itself, pick its own column, and bring the result back
# into the shape `[tokens, k]` with `.view(k, -1).T`.
#
# </details><details><summary>Solution</summary>
#
# {solution of route}
#
# </details>


# %%
from torch.nn.functional import one_hot


def route(probabilities, k):
    """Which k experts each token goes to, with which gates and at which slots.

    Returns chosen, gates, slots, each [t, k].
    """
    # <solution>
    gates, chosen = probabilities.topk(k, dim=1)
    wants = one_hot(chosen.T.flatten(), probabilities.shape[1])
    before = wants.cumsum(dim=0) - wants
    slots = (before * wants).sum(dim=1).view(k, -1).T
    return chosen, gates, slots
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.route(route)

# %% [markdown]
# ## Experts on other ranks
#
# Now give each rank a part of the experts. That's *expert parallelism*. Each rank still has its own tokens, as in data
# parallelism. It puts each of them on the slot that `route` has found, one group of slots for each expert. Then every rank
# sends every other rank the slots for that rank's experts. That's an *all-to-all*:

# %%
picture("an_exchange")

# %% [markdown]
# Do it a second time, and everything is back where it came from. So an all-to-all of equal parts is its own inverse, and the
# gradients of what a rank has received go back the same way:

# %%
print(inspect.getsource(lesson.layer.exchange))

# %% [markdown]
# ## Exercise 2 (hard): there and back
#
# `through_experts` returns the experts' results for this rank's tokens, wherever those experts are. Every rank calls it with
#
# - `tokens`, `[tokens, width]`, and `routing`, which is what `route` has returned for them;
# - `buffer`, the memory of all slots: zeros `[ranks, experts per rank, capacity, width]`, for you to fill. `buffer.flatten(0, 1)` is the same memory as
#   `[experts, capacity, width]`;
# - `experts(arrived)`, which runs this rank's experts on what has arrived and returns results of the same shape;
# - `exchange(buffer)`, as above.
#
# Return `[tokens, width]`: for each token the sum of its experts' results times their gates, and 0 from an expert that dropped
# it.
#
# <details><summary>Hint 1: who travels?</summary>
#
# `kept = slots < buffer.shape[2]` says of each choice whether the expert has a slot for it. `chosen[kept]` and `slots[kept]`
# then say where these tokens go, and `kept.nonzero()[:, 0]` says which tokens they are.
#
# </details><details><summary>Hint 2: there</summary>
#
# With `token = kept.nonzero()[:, 0]`, the assignment `buffer.flatten(0, 1)[chosen[kept], slots[kept]] = tokens[token]` fills all
# slots at once. Then exchange, compute, and exchange again.
#
# </details><details><summary>Hint 3: back</summary>
#
# After the second exchange, each result lies on the slot where you put its token. So read them with the same indices, and
# multiply each by its gate, `gates[kept][:, None]`.
#
# </details><details><summary>Hint 4: one row per token</summary>
#
# A token may have several results. `torch.zeros_like(tokens).index_add(0, token, results)` adds each row of `results` to the
# row of its token.
#
# </details><details><summary>Solution</summary>
#
# {solution of through_experts}
#
# </details>


# %%
def through_experts(tokens, routing, buffer, experts, exchange):
    """The results of all ranks' experts for this rank's tokens: [t, w].

    Called on every rank.
    """
    # <solution>
    chosen, gates, slots = routing
    kept = slots < buffer.shape[2]
    token = kept.nonzero()[:, 0]
    buffer.flatten(0, 1)[chosen[kept], slots[kept]] = tokens[token]
    arrived = exchange(buffer)
    home = exchange(experts(arrived)).flatten(0, 1)
    outputs = home[chosen[kept], slots[kept]] * gates[kept][:, None]
    return torch.zeros_like(tokens).index_add(0, token, outputs)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.through_experts(through_experts)

# %% [markdown]
# ## Is it the same, and what does it send?
#
# Compare with one process that holds all experts, computes every expert for every token, and multiplies by 0 where a token wasn't
# sent. The 4 ranks have 256 tokens each, 64 numbers wide, and there are 8 experts with a capacity of 1.25 times an even load.

# %%
team.push(
    route=lesson.check.written(route),
    through_experts=lesson.check.written(through_experts),
)

# %%
# %%ranks
import torch
from mpi4py import MPI

from lessons import experts as lesson

torch.set_num_threads(1)
comm = MPI.COMM_WORLD
proof = {
    k: lesson.with_one_process(route, through_experts, k, 1.25, comm) for k in (1, 2, 4)
}

# %%
table = pd.DataFrame(team.pull("proof")[0].values(), index=["k = 1", "k = 2", "k = 4"])
counts, differences = list(table.columns[4:7]), list(table.columns[:4])
styled = table.style.format("{:.0e}", subset=differences)
styled.format("{:,.0f}", subset=counts).format("{:.0%}", subset=["dropped"])

# %% [markdown]
# A rank's slots hold $1.25\, k\, t\, w$ numbers, and it sends all of them except the $1/p$ for
# its own experts. That makes $2 \frac{p-1}{p} \cdot 1.25\, k\, t\, w$ numbers forward, half of them there and half of them
# back, and as many again in the backward pass. The bytes grow with $k$, but they don't depend on where the tokens want to go,
# because empty slots travel, too.
#
# ## Train with experts
#
# As in DDP, gradients are averaged over the ranks, with one exception. An expert computes for the tokens of *all* ranks, so its
# gradient is a sum over all ranks already, and nobody else has a copy of it. You only divide it by the number of ranks:


# %%
# %%ranks
def average_gradients(model, comm):
    own = set(model.mixture.experts.parameters())
    shared = [p for p in model.parameters() if p not in own]
    flat = torch.cat([p.grad.flatten() for p in shared])
    comm.Allreduce(MPI.IN_PLACE, flat.numpy())
    torch.nn.utils.vector_to_parameters(flat, [p.grad for p in shared])
    for p in model.parameters():
        p.grad /= comm.size


# %% [markdown]
# But will all experts be used? An expert that happens to get more tokens learns more. Then it's more useful, so the router
# prefers it, and it gets even more tokens. A *balance loss* works against this:
#
# $$E \sum_e f_e P_e$$
#
# Here $f_e$ is the share of all choices that go to expert $e$, and $P_e$ is its mean probability over tokens. This loss is 1 if
# the load is even, and nearly $E$ if one expert gets every token. $f_e$ is a count and has no gradient, but $P_e$ has one: the more
# tokens an expert gets, the harder the loss pushes its probability down.
#
# What can experts be good for? An MLP stores what a model knows, at about 2 bits per weight (Allen-Zhu and Li). So take
# a task with much to know, and an MLP that's too small for it. The model sees four bytes of this library's source
# code and guesses the fifth. It adds the four embeddings, each 32 numbers wide, and a mixture of experts looks at the sum.


# %%
# %%ranks
from torch.nn.functional import cross_entropy


def train(comm, seed, experts, hidden, weight=0.03, steps=400, factor=1.25):
    """The busiest expert's share of the choices, the share dropped, and the loss.

    All three for each step.
    """
    model = lesson.ByteModel(
        seed, hidden, experts, factor, comm, route, through_experts
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    corpus = lesson.Corpus(seed, comm)
    history = []
    for _ in range(steps):
        context, targets = corpus.next_batch()
        loss = cross_entropy(model(context), targets)
        # How many tokens of all ranks want each expert
        load = comm.allreduce(model.mixture.load)
        share = load / load.sum()
        balance = len(share) * (share * model.mixture.probabilities.mean(dim=0)).sum()
        optimizer.zero_grad()
        (loss + weight * balance).backward()
        average_gradients(model, comm)
        optimizer.step()
        mine = torch.tensor([model.mixture.dropped, loss.item()])
        seen = comm.allreduce(mine) / comm.size
        history.append([share.max().item(), *seen.tolist()])
    return history


# %% [markdown]
# Do four ranks train as one process does? Give their experts enough capacity for every token, and compare the losses:

# %%
# %%ranks --timeout 120
on_ranks = torch.tensor(train(comm, 1, experts=8, hidden=32, steps=5, factor=8))
alone = torch.tensor(train(MPI.COMM_SELF, 1, experts=8, hidden=32, steps=5, factor=8))
if comm.rank == 0:
    print("losses on 4 ranks:", on_ranks[:, 2].tolist())
    print(f"they differ from one process's by {(on_ranks - alone).abs().max():.0e}")

# %% [markdown]
# They do. From now on, each rank trains whole models alone, which gives you four seeds at once.
#
# ## What are experts worth?
#
# Compare eight experts, each with 32 hidden units, with two *dense* models, in which one MLP computes every token. The
# small dense model does as many operations per token as the router and one expert, empty slots included. The large one has as
# many weights as the router and all eight experts together. In code, a dense MLP is a mixture of one expert, which gets every token
# and whose gate is 1. All losses are means over the last 50 steps:

# %%
width, hidden, experts, factor = 32, 32, 8, 1.25
router_weights = width * experts
expert_weights = 2 * width * hidden
weights = router_weights + experts * expert_weights
# Two operations for each weight that a token meets, forward
operations = 2 * (router_weights + factor * expert_weights)
small = int(operations / 2 / (2 * width))
large = weights // (2 * width)
team.push(small=small, large=large)
print(f"hidden units: {small} in the small dense model, {large} in the large one")

# %%
guess = predict(
    "From the small dense model's loss to the large one's: "
    "how much of the way do eight balanced experts get?",
    0,
    100,
    "%",
)
guess

# %%
# %%ranks --timeout 480
seed = comm.rank + 1
alone = MPI.COMM_SELF
runs = {
    "dense, same work": train(alone, seed, experts=1, hidden=small, factor=1),
    "8 experts, no balance loss": train(alone, seed, experts=8, hidden=32, weight=0),
    "8 experts, balance loss × 0.03": train(alone, seed, experts=8, hidden=32),
    "dense, same weights": train(alone, seed, experts=1, hidden=large, factor=1),
}

# %%
of_ranks = team.pull("runs")
runs = {title: [of_rank[title] for of_rank in of_ranks] for title in of_ranks[0]}
table = lesson.figures.last_steps(runs)
table.insert(0, "MLP weights", [2 * width * small, weights, weights, weights])
by_all = 2 * weights
table.insert(1, "operations per token", [operations, operations, operations, by_all])
loss = table["loss"]
way = 100 * (loss.iloc[0] - loss.iloc[2]) / (loss.iloc[0] - loss.iloc[3])
guess.compare(way)
even = table["busiest expert's share"].iloc[2] * experts
print(f"With the balance loss, the busiest expert gets {even:.1f} times an even share.")
table.style.format(lesson.figures.COLUMNS)

# %%
lesson.figures.busiest({title: runs[title] for title in list(runs)[1:3]})

# %% [markdown]
# Read the table from top to bottom. Without a balance loss, the router *collapses*: far more tokens want one expert than it can
# take, many of them are dropped, and a dropped token learns nothing from its expert. You pay for the memory of eight
# experts and for messages full of empty slots, and you're no better off than with the small dense model.
#
# With the balance loss, the same weights and the same work per token give a clearly lower loss than the small dense model, in every
# one of the four runs. That's what this page's title promises. "Balanced" doesn't mean that all experts get equally many tokens: the line above the
# table says how far the busiest one is from that. It means that the spare capacity is enough for nearly every token.
#
# The large dense model remains a bit better. It has no more weights than the eight experts, but each token uses all of them. At full size, experts
# gain much more: the Switch Transformer is as good as a dense model with the same work per token after a seventh of the time.
#
# So log each expert's load from the first step on, as NVIDIA's NeMo AutoModel does.
#
# *Try it:* train with a weight of 1 instead of 0.03. What happens to the shares, and to the loss?
#
# ## Deeper: all experts of a rank compute at once
#
# In `experts(arrived)`, each expert has the same number of slots, so one *batched* matrix product per layer is enough for all experts of
# a rank. That keeps a GPU busy although each expert is small:

# %%
print(inspect.getsource(lesson.layer.BatchedExperts.forward))

# %% [markdown]
# ## Deeper: is the exchange expensive?
#
# Take DeepSeek-V3, in which each token goes to 8 experts, on GPUs that compute 400 TFLOP/s with 50 GB/s per GPU
# between nodes:

# %%
k = 8
width = 7168
inner_width = 2048
tokens_per_gpu = 4096
# There and back, with 2 bytes per number
sent_gb = 2 * k * tokens_per_gpu * width * 2 / 1e9
# An expert has three matrices.
compute_ms = 1e3 * k * tokens_per_gpu * 3 * 2 * width * inner_width / 400e12
print(
    f"one layer, forward: {sent_gb:.2f} GB in {1e3 * sent_gb / 50:.0f} ms, "
    f"and {compute_ms:.0f} ms to compute"
)

# %% [markdown]
# Sending would take longer than the experts compute. That's why experts stay inside a node if they can. DeepSeek-V3 sends each
# token to at most 4 nodes, one copy to each, in 8 bits on the way there, which brings 19 ms down to 7. Its pipeline, DualPipe
# ([11b](11b_pipelines.ipynb)), hides them behind other micro-batches' computing.
#
# ## Deeper: what today's models do
#
# - **Gates that add up to 1.** With $k > 1$, many models scale a token's gates like that. With $k = 1$, every gate would be 1, and the
#   router couldn't learn from it.
# - **Many small experts.** Mixtral has 8 experts, of which a token uses 2. DeepSeek-V3 has 256 small ones and uses 8 of them. One
#   more, a *shared* expert, computes every token, so the others don't all have to learn the same.
# - **No dropped tokens.** Most of today's models drop none. Messages then have as many rows as there are tokens to send,
#   so ranks first tell each other how many will arrive. And the experts compute with a *grouped GEMM*, a kernel for matrices
#   with different numbers of rows (`torch.nn.functional.grouped_mm`). Its price: memory and time now depend on the busiest
#   rank.
# - **Balance without a loss.** A balance loss pulls at the router for a reason that has nothing to do with predicting the text.
#   DeepSeek-V3 replaces most of it by a *bias* for each expert, which is added to its score when experts are chosen, but not
#   to its gate. After each step, the bias of experts with too many tokens goes down a little, and that of the others goes up.
# - **Copies of experts.** With 8 data ranks and 4 of them to a set of experts, each expert has two copies. Their gradients are
#   *summed*, and divided by **all** 8 ranks. FSDP would divide by the 2 copies, and the gradient would silently be 4 times too
#   large: `set_gradient_divide_factor(8)` prevents that.
#
# ## Remember
#
# - With experts, a model has many times the weights, while a token costs as much as $k$ experts. It can know more for the same work.
# - Tokens travel in an all-to-all, there and back, and their gradients do the same. The bytes grow with $k$.
# - An expert's gradient is a sum over all ranks. Divide by the number of all data ranks, however many copies there are.
# - A router left alone may overload one expert and drop its tokens. Balance it, and log the load.
#
# Next: [12](12_thousand_ranks.ipynb) runs a mesh of a thousand ranks on your laptop.
#
# **Take it home:** [scripts/expert_parallel.py](scripts/expert_parallel.py).
#
# **Sources.** N. Shazeer et al., [*Outrageously Large Neural Networks*](https://arxiv.org/abs/1701.06538), for the layer and
# its collapse. D. Lepikhin et al., [*GShard*](https://arxiv.org/abs/2006.16668), for capacity and all-to-all. W. Fedus et al.,
# [*Switch Transformers*](https://arxiv.org/abs/2101.03961), for $k = 1$, this balance loss, and the factor of 7. Z. Allen-Zhu and Y. Li,
# [*Knowledge Capacity Scaling Laws*](https://arxiv.org/abs/2404.05405), for 2 bits per weight. T. Gale et al.,
# [*MegaBlocks*](https://arxiv.org/abs/2211.15841), without dropped tokens. A. Jiang et al.,
# [*Mixtral*](https://arxiv.org/abs/2401.04088). D. Dai et al., [*DeepSeekMoE*](https://arxiv.org/abs/2401.06066), for small and
# shared experts. L. Wang et al., [*Auxiliary-Loss-Free Load Balancing*](https://arxiv.org/abs/2408.15664).
# [*DeepSeek-V3*](https://arxiv.org/abs/2412.19437), sections 2.1 and 3.2. [DeepEP](https://github.com/deepseek-ai/DeepEP), its
# library for the exchange.

# %%
ranks.stop()
