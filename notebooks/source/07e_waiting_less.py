# %% [markdown] track="large batches"
# # Waiting less
#
# Seven of eight workers finish their step in 100 ms, and the eighth needs 110. So every step takes 110 ms, and seven workers
# wait. Does it matter whether it's the same worker each time? And do the others have to wait at all?
#
# **You will** write a training loop in which gradients arrive one step late, so that nobody waits for a worker that's late once.
# Then you'll compare it with a run that never waits, and see what both cost you.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first.

# %%
from workshop_lib import predict, profile, ranks

from lessons import waiting_less as lesson

sizes = profile.current()
steps = 60 if sizes.name == "quick" else 150
team = ranks.start(3)
team.push(steps=steps)

# %% [markdown]
# ## Everybody waits for the slowest
#
# The worker that all others wait for is the *straggler*. A *fixed* straggler is always the same worker, for example on a
# hot node. A *roaming* one is a different worker each time.
#
# Here two workers train on MNIST, ranks 1 and 2. They take turns: in every step, one is 20 ms late. Rank 0 sleeps until it gets
# a job further down.

# %%
# %%ranks --timeout 300
from mpi4py import MPI

from lessons import waiting_less as lesson

workers = lesson.Workers(MPI.COMM_WORLD, late_s=0.02)
synchronous = workers.train("synchronous", "roaming", steps)

# %%
synchronous = team.pull("synchronous")[0]
lesson.figures.timelines([synchronous])

# %% [markdown]
# Each worker is late only in every *second* step. Yet every step takes 20 ms longer, because whoever is on time has to wait.
#
# ## One step late
#
# The workers wait because the next gradient needs the new weights, and the new weights need everybody's gradients. So what if
# you don't insist on the newest weights? Start to average the gradients, and compute the next ones meanwhile, with the weights
# you have. Apply the average when it arrives, one step late. Then a worker that's late *once* has a whole step to catch up.
#
# The price is that gradients are *stale*: they were computed with weights that lack some updates. The number of missing updates
# is the *staleness*, here 1.
#
# ### Exercise 1 (normal): one step late
#
# With this function, two workers will train without waiting for a roaming straggler. `gradient(weights, step)` returns this
# rank's gradient. `start_average(array)` begins to average an array over the ranks, and returns at once. The object it returns
# has a method `wait()`, which returns the average when it arrives. Your task is to put these calls in the right order.
#
# <details><summary>Hint 1: what happens in one step?</summary>
#
# Compute a gradient first, while the average of the step before is still traveling. Then wait for that average, and apply it.
# Then start the average of the new gradient. What's different in the first step? And what's left to do after the last one?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `traveling = None` before the loop, and `if traveling is not None:` in it. `weights = weights - lr * traveling.wait()`, in the
# loop and once more after it.
#
# </details><details><summary>Solution</summary>
#
# {solution of one_step_late}
#
# </details>


# %%
def one_step_late(start_average, gradient, weights, lr, steps):
    """Weights [n] after `steps` (1 or more) steps of SGD.

    Each average is applied after the next gradient is computed.
    """
    # <solution>
    traveling = None
    for step in range(steps):
        new = gradient(weights, step)
        if traveling is not None:
            weights = weights - lr * traveling.wait()
        traveling = start_average(new)
    return weights - lr * traveling.wait()
    # <stub>
    # for step in range(steps):
    #     new = gradient(weights, step)
    #     weights = weights - lr * start_average(new).wait()  # this is synchronous SGD
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.one_step_late(one_step_late)

# %%
guess = predict(
    "With a roaming straggler, "
    "a synchronous step takes how many times as long as yours?",
    1,
    3,
    unit="times",
)
guess

# %%
team.push(train=lesson.check.written(one_step_late))

# %%
# %%ranks --timeout 300
late = workers.train("lag_sync", "roaming", steps, train=train)
late_fixed = workers.train("lag_sync", "fixed", steps, train=train)

# %%
late, late_fixed = team.pull("late")[0], team.pull("late_fixed")[0]
guess.compare(synchronous["ms per step"] / late["ms per step"])

# %%
lesson.figures.timelines([synchronous, late, late_fixed])

# %% [markdown]
# With your function, the delays of the two workers overlap instead of adding up, so most of the gaps are gone. But look
# at the last panel. If the same worker is late in *every* step, it never catches up, and the quick one waits as before.
#
# Kurth et al. (2018) call this *gradient lag*, and trained with it on 27,360 of Summit's GPUs. It also hides the one message that
# DDP can't hide ([05](05_ddp.ipynb)): the first layer's gradient has the whole next step to travel.
#
# ## Never wait
#
# What helps against a fixed straggler? You could give it fewer images, or not wait for its gradients (*backup workers*, Chen et
# al. 2016). Or you let nobody wait at all. In *asynchronous* SGD, a *parameter server* holds the weights. Each worker fetches
# them, computes a gradient and sends it, and the server applies each gradient as it arrives. Here that's the job of rank 0.

# %%
guess = predict(
    "For the same number of gradients, "
    "synchronous SGD takes how many times as long as asynchronous SGD?",
    0.5,
    4,
    unit="times",
)
guess

# %%
# %%ranks --timeout 300
others = [
    workers.train(mode, "fixed", steps)
    for mode in ("synchronous", "asynchronous", "asynchronous")
]

# %%
others = team.pull("others")[0]
guess.compare(others[0]["ms per step"] / others[1]["ms per step"])

# %%
lesson.table([synchronous, late, late_fixed, *others])

# %%
lesson.figures.timelines(others[:2])

# %% [markdown]
# The asynchronous run is faster, because the quick worker computes more of the gradients. (Local SGD wouldn't help. If both
# workers take 10 steps alone before they average their weights, as in [07c](07c_less_communication.ipynb), the quick one waits
# only every tenth step, but ten times as long.) But there's a price:
#
# - **Staleness can cost accuracy** while the network still learns fast. Can you see it in the table? The last two rows
#   are the same run, so compare their difference with that between the modes. With two asynchronous workers, the mean
#   staleness is about 1. With a hundred workers it's about a hundred, and the learning rate has to go down. (Here the
#   asynchronous run takes twice as many steps at half the rate, so its weights move as far per image as those of the
#   others.)
# - **You lose reproducibility.** The two asynchronous runs have the same seed, and end with different weights. The
#   straggler doesn't change the arithmetic of the other modes: compare the two synchronous rows, and the two that are
#   one step late.
#
# So begin with synchronous SGD. If a straggler roams, one step of staleness takes away most of the waiting, and all of
# it if nobody is late by more than a step. (Here, a worker is late by several steps' computing. But in two steps, each
# worker is late once, so they share the delay.) If the straggler is fixed, repair the node or drop it.
#
# *Try it:* set `late_s=0.0` in the first cell with `%%ranks`. Which mode costs the most when nobody is late?
#
# ## Deeper: a trainer and its generators
#
# Today, you meet asynchrony mostly in reinforcement learning of language models. *Generators* write answers, a program checks
# them, and a *trainer* makes answers with a high reward more likely. If they take turns, half of the machines wait. So the
# generators write the next answers while the trainer still learns from the last ones. Their weights are then a few steps old.
# How old may they be?
#
# Rank 0 is the trainer here, and ranks 1 and 2 are generators. A tiny GPT gets a number and writes three digits, which should
# add up to that number. A program can check this in one line:

# %%
# %%ranks
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

comm = MPI.COMM_WORLD


def reward(texts):
    """[n]: 1 for each text whose digits add up to its prompt, 0 for any other text."""
    return (texts[:, 1:].sum(dim=1) == texts[:, 0]).float()


# %% [markdown]
# The trainer keeps its weights in float32, a tensor per layer. A generator only reads them, so it gets one flat message in bf16,
# which is half as large. It sends back its texts, each of which is a prompt and an answer, and how likely each digit was under
# *its* weights.

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
# An answer's *advantage* is its reward minus the mean reward of the eight answers to the same prompt. (GRPO, by Shao et al. 2024,
# also divides by their standard deviation.) The *policy gradient* makes a digit more likely if its answer's advantage is
# positive, and less likely if it's negative.
#
# This is right only for texts that the trainer's own weights wrote. With old weights, some digits turn up more often than they
# would now. The *importance ratio* corrects for that: how many times as likely is a digit under the trainer's weights as under
# the generator's? PPO (Schulman et al. 2017) also *clips* the ratio. Once a digit's probability has changed by 20 % in the
# direction that its advantage asks for, the digit stops pushing.

# %%
# %%ranks
def loss(new, old, advantage, ratios):
    """The loss, from log-probabilities [n, 3] of digits and from advantages [n, 1].

    The probabilities are those under the trainer's weights and a generator's.
    """
    if not ratios:
        return -(advantage * new).mean()
    ratio = (new - old).exp()
    return -torch.minimum(advantage * ratio, advantage * ratio.clip(0.8, 1.2)).mean()


def learn(mail, policy, steps, staleness, ratios):
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
        loss(policy.log_probabilities(texts), old, advantage, ratios).backward()
        optimizer.step()
        if step + 1 + staleness < steps:
            flat = parameters_to_vector(policy.parameters()).bfloat16()
            for rank in generators:
                mail.send(flat, rank)


# %%
team.push(rl_steps=200, seeds=[1] if sizes.name == "quick" else [1, 2, 3])
guess = predict(
    "Without ratios, at which staleness does the trained GPT give "
    "a fifth fewer right answers than at 0?",
    low=1,
    high=16,
    unit="steps",
)
guess

# %%
# %%ranks --timeout 300
from itertools import product


def run(seed, staleness, ratios):
    mail, policy = lesson.Mail(comm), lesson.Policy(seed)
    if comm.rank == 0:
        learn(mail, policy, rl_steps, staleness, ratios)
    else:
        generate(mail, policy, seed, rl_steps, staleness)
    mail.close()
    texts = policy.write(
        torch.arange(9, 19).repeat(50), torch.Generator().manual_seed(seed)
    )
    return {
        "staleness": staleness,
        "ratios": ratios,
        "reward": reward(texts).mean().item(),
    }


runs = [run(*chosen) for chosen in product(seeds, (0, 1, 2, 4, 8, 16), (False, True))]

# %%
runs = team.pull("runs")[0]
guess.compare(lesson.figures.breaks_at(runs, ratios=False))

# %%
lesson.figures.rewards(runs)

# %% [markdown]
# The legend says where your runs broke. Without ratios, ours broke at a staleness of 2, because old texts keep pushing digits
# whose probability has already changed. With clipped ratios, training got through a staleness of 4. But no ratio turns old texts
# into new ones, and at 8 it broke as well. That's why real systems *bound* the staleness: a generator that would get too far
# ahead has to wait. In AReaL (Fu et al. 2025) the bound is an option, `max_head_offpolicyness`.
#
# At 0, the trainer waits for the generators, and they wait for the trainer. From 1 on, they work at the same time. (You'd hardly
# see that in times here, unless each rank has a core of its own.) Noukhovitch et al. (2025) trained a chatbot of 8 billion
# parameters about 40 % faster that way, and it ended as good as the synchronous one.
#
# *Write down:* all answers here take equally long. Why would generators whose answers have very different lengths need more
# staleness than ours, before nobody waits? And why might a smaller learning rate let you allow more?
#
# *Try it:* is it the ratio that helps, or the clip? Take `.clip(0.8, 1.2)` out of `loss`, and run the cells from there on
# again.
#
# ## Remember
#
# - A synchronous step takes as long as its slowest worker.
# - Gradients that are applied one step late hide a roaming straggler, at a staleness of 1.
# - They don't hide a fixed straggler. Asynchronous SGD does, but its results differ from run to run, and its staleness grows with
#   the number of workers.
#
# **Sources.** Gradient lag: T. Kurth et al., arXiv:1810.01993. Parameter servers: J. Dean et al., *Large Scale Distributed Deep
# Networks* (NIPS 2012). Backup workers: J. Chen et al., arXiv:1604.00981. Groups of synchronous ranks that are asynchronous to
# each other: T. Kurth et al., arXiv:1708.05256. Asynchronous reinforcement learning: W. Fu et al., arXiv:2505.24298 (AReaL), and M.
# Noukhovitch et al., arXiv:2410.18252. Clipped ratios: J. Schulman et al., arXiv:1707.06347 (PPO). Groups: Z. Shao et al.,
# arXiv:2402.03300 (GRPO).

# %%
ranks.stop()
