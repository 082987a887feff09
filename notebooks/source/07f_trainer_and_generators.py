# %% [markdown] track="large batches"
# # A trainer and its generators
#
# A language model learns arithmetic from its own answers: half of your GPUs write answers, and the other half trains on these
# answers. If the halves take turns, one of them always waits. If they work at the same time, the trainer learns from answers
# that were written with older weights. How old may these weights be?
#
# **You will** write the loss with which a trainer learns from old answers, and measure how old the answers may be before
# training breaks, with your loss and without it.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [07e](07e_waiting_less.ipynb) first.

# %%
import statistics

import torch

from workshop_lib import predict, profile, ranks

from lessons import trainer_and_generators as lesson

sizes = profile.current()
team = ranks.start(3)
team.push(rl_steps=200, seeds=[1] if sizes.name == "quick" else [1, 2, 3])

# %% [markdown]
# ## A reward that a program can compute
#
# Nowadays, you find asynchronous training mostly in reinforcement learning for language models. *Generators* write answers, a
# program checks them, and a *trainer* makes answers with a high reward more likely.
#
# Rank 0 is the trainer here, and ranks 1 and 2 are generators. A tiny GPT gets a number and writes three digits, which should
# add up to that number. A program can check this in one line:

# %%
# %%ranks
import torch
from mpi4py import MPI
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lessons import trainer_and_generators as lesson

comm = MPI.COMM_WORLD


def reward(texts):
    """[n]: 1 for each text whose digits add up to its prompt, 0 for any other text."""
    return (texts[:, 1:].sum(dim=1) == texts[:, 0]).float()


def test(policy, seed):
    """The share of right answers to 50 prompts of each number from 9 to 18."""
    prompts = torch.arange(9, 19).repeat(50)
    texts = policy.write(prompts, torch.Generator().manual_seed(seed))
    return reward(texts).mean().item()


untrained = test(lesson.Policy(seed=1), seed=1)

# %%
untrained = team.pull("untrained")[0]
print(f"right answers before training: {untrained:.1%}")

# %% [markdown]
# Before training, all digits are equally likely, so about one answer in 15 is right by chance.
#
# ## Two programs
#
# The trainer keeps its weights in float32, one tensor per parameter. A generator only reads them, so the trainer sends all of
# them in one flat bf16 message, half as large as in float32. The generator sends back its texts (each is a prompt with its
# answer) and the log-probability of each digit under the *generator's* weights.

# %%
# %%ranks
def generate(mail, policy, seed, steps, staleness):
    """Write texts for each step, with the weights of `staleness` steps earlier."""
    random = torch.Generator().manual_seed(10 * seed + comm.rank)
    flat = parameters_to_vector(policy.parameters()).bfloat16()
    for step in range(steps):
        if step > staleness:
            flat = mail.receive(flat.shape, torch.bfloat16, rank=0)
        vector_to_parameters(flat.float(), policy.parameters())
        # 8 answers to each of 8 prompts
        prompts = torch.randint(9, 19, (8,), generator=random).repeat_interleave(8)
        texts = policy.write(prompts, random)
        mail.send(texts, rank=0)
        mail.send(policy.log_probabilities(texts), rank=0)


# %% [markdown]
# An answer's *advantage* is its reward minus the mean reward of the eight answers to the same prompt. (GRPO, by Shao et al.
# 2024, also divides by the standard deviation of the eight rewards.) The *policy gradient* makes a digit more likely if its
# answer's advantage is positive, and less likely if it's negative. A loss gets two log-probabilities for each digit: `new`,
# under the trainer's weights, and `old`, under the weights with which the generator wrote the digit. The simplest loss ignores
# `old`.

# %%
# %%ranks
def plain_loss(new, old, advantage):
    return -(advantage * new).mean()


def learn(mail, policy, steps, staleness, loss):
    """Train with all generators' texts, and send them new weights as they need them."""
    generators = range(1, comm.size)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.003)
    for step in range(steps):
        texts = torch.cat(
            [mail.receive((64, 4), torch.int64, rank) for rank in generators]
        )
        old = torch.cat(
            [mail.receive((64, 3), torch.float32, rank) for rank in generators]
        )
        groups = reward(texts).view(-1, 8)
        advantage = (groups - groups.mean(dim=1, keepdim=True)).view(-1, 1)
        optimizer.zero_grad()
        loss(policy.log_probabilities(texts), old, advantage).backward()
        optimizer.step()
        if step + 1 + staleness < steps:
            flat = parameters_to_vector(policy.parameters()).bfloat16()
            for rank in generators:
                mail.send(flat, rank)


def train(seed, staleness, ratios, loss):
    mail, policy = lesson.Mail(comm), lesson.Policy(seed)
    if comm.rank == 0:
        learn(mail, policy, rl_steps, staleness, loss)
    else:
        generate(mail, policy, seed, rl_steps, staleness)
    mail.close()
    return {"staleness": staleness, "ratios": ratios, "reward": test(policy, seed)}


# %% [markdown]
# At a staleness of 0, the trainer waits for the generators, and the generators wait for the trainer. From a staleness of 1 on,
# all of them work at the same time. (You'd hardly see that in the times here, unless each rank has a core of its own.) But
# does the GPT still learn as well?

# %%
guess = predict(
    "With the plain loss, at which staleness does the trained GPT give "
    "a fifth fewer right answers than at 0?",
    low=1,
    high=16,
    unit="steps",
)
guess

# %%
# %%ranks --timeout 300
plain = [
    train(seed, staleness, False, plain_loss)
    for seed in seeds
    for staleness in (0, 1, 2, 4, 8, 16)
]

# %%
plain = team.pull("plain")[0]
guess.compare(lesson.figures.breaks_at(plain, ratios=False))

# %%
lesson.figures.rewards(plain)

# %% [markdown]
# The legend says where your runs broke. Why do old answers do harm? They contain some digits more often than the trainer would
# write them now. The plain loss keeps pushing these digits, although their probability has already changed.
#
# ## Learn from old answers
#
# The policy gradient is correct only for texts written with the trainer's current weights. The *importance ratio* corrects for
# old weights: how many times as likely is a digit under the trainer's weights as under the generator's? Multiply the advantage
# by this ratio. A digit whose probability hasn't changed then counts as in the plain loss. A digit that the trainer would now
# write less often counts less.
#
# PPO (Schulman et al. 2017) also *clips* the ratio to the range from 0.8 to 1.2. Once a digit's probability has changed by 20 %
# in the direction that its advantage asks for, the digit no longer contributes to the gradient. But if the probability has
# changed in the *other* direction, the digit still has to contribute. So PPO computes two products, the advantage times the
# ratio and the advantage times the clipped ratio, and takes the smaller one.
#
# ### Exercise 1 (normal): a clipped loss
#
# With this loss, your trainer will run at the same six values of staleness again. Your function gets log-probabilities, and
# returns the loss that the optimizer minimizes. The generator's log-probabilities are constants.
#
# <details><summary>Hint 1: the ratio</summary>
#
# The probabilities are `new.exp()` and `old.exp()`. The quotient of two exponentials is the exponential of a difference.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `ratio.clip(0.8, 1.2)` clips, and `torch.minimum(a, b)` takes the smaller of two numbers, element by element. Which two
# products do you compare? And which sign does the loss need, if the optimizer minimizes it and a large product is good?
#
# </details><details><summary>Solution</summary>
#
# {solution of clipped_loss}
#
# </details>


# %%
def clipped_loss(new, old, advantage):
    """The mean loss of all digits, with importance ratios clipped to 0.8 to 1.2.

    new, old: log-probabilities [n, 3] of the digits under the trainer's weights and
    the generator's. advantage: [n, 1], one for each answer.
    """
    # <solution>
    ratio = (new - old).exp()
    clipped = ratio.clip(0.8, 1.2)
    return -torch.minimum(advantage * ratio, advantage * clipped).mean()
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.clipped_loss(clipped_loss)

# %% [markdown]
# How well does your loss cope with old answers? Guess for a staleness of 4, with the figure above in mind.

# %%
guess = predict(
    "With your loss, what share of the answers is right at a staleness of 4?",
    low=0,
    high=100,
    unit="%",
)
guess

# %%
team.push(clipped_loss=lesson.check.written(clipped_loss))

# %%
# %%ranks --timeout 300
clipped = [
    train(seed, staleness, True, clipped_loss)
    for seed in seeds
    for staleness in (0, 1, 2, 4, 8, 16)
]

# %%
clipped = team.pull("clipped")[0]
right = [run["reward"] for run in clipped if run["staleness"] == 4]
guess.compare(100 * statistics.median(right))

# %%
lesson.figures.rewards(plain + clipped)

# %% [markdown]
# With both losses, the GPT learns at a staleness of 0, and yours should tolerate more staleness than the plain one. But no
# ratio turns old texts into new ones, so with enough staleness, training breaks with your loss as well. That's why real
# systems *bound* the staleness: a generator that would get too far ahead has to wait. In AReaL (Fu et al. 2025) the bound is
# an option, `max_head_offpolicyness`.
#
# So how old may the weights be? For your GPT and your learning rate, the legend has the answer: choose a staleness below the
# one at which training breaks with your loss. If all answers take equally long, a staleness of 1 is enough to keep everybody
# busy, because the trainer and the generators no longer take turns. Noukhovitch et al. (2025) trained a chatbot of 8 billion
# parameters about 40 % faster that way, and it ended up as good as one trained synchronously.
#
# *Write down:* all answers here take equally long. If answers had very different lengths, why would it take more staleness
# until nobody waits? And why might a smaller learning rate let you allow more staleness?
#
# *Try it:* is it the ratio that helps, or the clip? Return `-(advantage * ratio).mean()`, without the clip, and run the cells
# again, from the one with `team.push(clipped_loss=…)` on.
#
# ## Remember
#
# - If the generators write while the trainer learns, nobody has to wait, but the answers are stale.
# - The policy gradient is correct only for texts written with the trainer's current weights. The importance ratio corrects for
#   old weights.
# - PPO's clip takes a digit out of the gradient once its probability has changed enough in the direction that its advantage
#   asks for.
# - With clipped ratios, training survives more staleness, but not any amount. So bound the staleness.
#
# **Sources.** Asynchronous reinforcement learning: W. Fu et al., arXiv:2505.24298 (AReaL), and M. Noukhovitch et al.,
# arXiv:2410.18252. Clipped ratios: J. Schulman et al., arXiv:1707.06347 (PPO). Groups: Z. Shao et al., arXiv:2402.03300 (GRPO).

# %%
ranks.stop()
