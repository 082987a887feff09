# %% [markdown] track="large batches"
# # Waiting less
#
# Seven of eight workers finish their step in 100 ms, and the eighth needs 110. So every step takes 110 ms, and seven workers
# wait. Does it matter whether it's the same worker each time? And do the others have to wait at all?
#
# **You will** write a training loop in which gradients arrive one step late, so that nobody waits for a worker that's late
# once. Then you'll compare this loop with one that never waits, see what each of them costs, and try both on eight workers.
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
# hot node. A *roaming* straggler is a different worker each time, for example wherever another program happens to run.
#
# Here two workers, ranks 1 and 2, train on MNIST. In every step, one of them sleeps for 20 ms before it hands in its gradient.
# The workers take turns: rank 1 is late in the first step, rank 2 in the second, and so on. Rank 0 sleeps; it gets a job
# further down.

# %%
# %%ranks --timeout 300
from mpi4py import MPI

from lessons import waiting_less as lesson

workers = lesson.Workers(MPI.COMM_WORLD, late_s=0.02)
in_turn = workers.train("synchronous", "in turn", steps)

# %%
in_turn = team.pull("in_turn")[0]
print(f"{in_turn['ms per step']:.1f} ms per step")
lesson.figures.timelines([in_turn])

# %% [markdown]
# Each worker is late in every *second* step, so it sleeps for 10 ms per step on average. How much of your step time is the
# straggler's fault? Run the same training with nobody late.

# %%
guess = predict(
    "How long does a synchronous step take if nobody is late?", 0, 40, unit="ms"
)
guess

# %%
# %%ranks --timeout 300
nobody = workers.train("synchronous", "nobody", steps)

# %%
nobody = team.pull("nobody")[0]
guess.compare(nobody["ms per step"])

# %% [markdown]
# If nothing else runs on your machine, you pay for about 20 ms in *every* step, not for 10, because the worker that's on time
# has to wait.
#
# ## One step late
#
# The workers wait because the next gradient needs the new weights, and the new weights need everybody's gradients. So what if
# you don't insist on the newest weights? Start averaging the gradients, and meanwhile compute the next ones with the weights
# you have. Apply the average when it arrives, one step late. Then a worker that's late *once* has a whole step to catch up.
#
# The price is that gradients are *stale*: by the time they're applied, the weights have moved on. The number of updates in
# between is the *staleness*, here 1.
#
# ### Exercise 1 (normal): one step late
#
# With this function, two workers will train without waiting for a straggler that roams. `gradient(weights, step)` returns this
# rank's gradient. `start_average(array)` begins to average an array over the ranks, and returns at once. The object it returns
# has a method `wait()`, which waits for the average and returns it. Your task is to put these calls in the right order.
#
# <details><summary>Hint 1: what happens in one step?</summary>
#
# Compute a gradient first, while the average of the step before is still traveling. Then wait for that average, and apply it.
# Only then start averaging the new gradient. What's different in the first step? And what's left to do after the last one?
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

# %% [markdown]
# Taking turns is the best case, because nobody is late twice in a row. Chance isn't as kind. In the second of the next three
# runs, chance chooses who is late in each step. (The random numbers have a fixed seed, so all runs draw the same workers.)

# %%
guess = predict(
    "With your function, how long does a step take if chance chooses who is late?",
    0,
    40,
    unit="ms",
)
guess

# %%
team.push(train=lesson.check.written(one_step_late))

# %%
# %%ranks --timeout 300
late = [
    workers.train("lag_sync", straggler, steps, train=train)
    for straggler in ("in turn", "at random", "fixed")
]

# %%
late_in_turn, late_at_random, late_fixed = team.pull("late")[0]
guess.compare(late_at_random["ms per step"])

# %%
lesson.figures.timelines([in_turn, late_in_turn, late_at_random, late_fixed])

# %% [markdown]
# With your function, the delays of workers that take turns overlap instead of adding up, so most of the gaps are gone. If
# chance chooses who is late, some gaps come back. Look for a worker that's late twice in a row: it has no step in between to
# catch up, so the other worker waits after all. In the last panel, the same worker is late in *every* step. It never catches
# up, and the quick worker waits as before.
#
# Kurth et al. (2018) call this *gradient lag*, and trained with it on 27,360 of Summit's GPUs. Gradient lag also hides the one
# message that DDP can't hide ([05](05_ddp.ipynb)): the first layer's gradient has the whole next step to travel.
#
# ## Never wait
#
# What helps against a fixed straggler? You could give it fewer images, or start a few workers too many and ignore the last
# gradients of each step (*backup workers*, Chen et al. 2016). Or you could let nobody wait at all. In *asynchronous* SGD, a
# *parameter server* holds the weights. Each worker fetches them, computes a gradient and sends it, and the server applies each
# gradient as it arrives. Here rank 0 is the server.

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
    workers.train(mode, straggler, steps)
    for mode, straggler in (
        ("asynchronous", "nobody"),
        ("synchronous", "fixed"),
        ("asynchronous", "fixed"),
        ("asynchronous", "fixed"),
    )
]

# %%
others = team.pull("others")[0]
never_nobody, fixed, never, again = others
guess.compare(fixed["ms per step"] / never["ms per step"])

# %%
lesson.figures.timelines([fixed, never])

# %%
lesson.table(
    [nobody, never_nobody, in_turn, late_in_turn, late_at_random, late_fixed]
    + [fixed, never, again]
)

# %%
luck = 100 * abs(never["test accuracy"] - again["test accuracy"])
cost = 100 * (in_turn["test accuracy"] - late_in_turn["test accuracy"])
print(f"the same asynchronous run, twice: {luck:.1f} points of accuracy apart")
print(f"one step late: {cost:.1f} points below synchronous")

# %% [markdown]
# The asynchronous run is faster, because the quick worker computes more of the gradients. (Local SGD wouldn't help. If both
# workers take 10 steps alone before they average their weights, as in [07c](07c_less_communication.ipynb), the quick worker waits
# only every tenth step, but ten times as long.) But there's a price:
#
# - **You lose reproducibility.** The last two rows are the same run with the same seed, but they end with different weights.
#   In the other modes, a straggler doesn't change the arithmetic: all synchronous runs end with the same weights, and all runs
#   that are one step late end with the same weights as each other.
# - **Workers don't count equally.** Both workers draw their images from all of MNIST here. If each worker had a shard of its own,
#   the network would learn mostly from the quick worker's shard.
# - **Staleness can cost accuracy**, but a staleness of 1 is too little to show that reliably here. Compare the two printed
#   numbers: your runs show a cost only if the second number is clearly larger than the first. With a hundred asynchronous
#   workers, the staleness is about a hundred, and the learning rate has to go down. [07f](07f_trainer_and_generators.ipynb)
#   raises the staleness until training breaks. (Here the asynchronous run makes twice as many updates at half the learning
#   rate, so its weights move as far per image as those of the other runs.)
#
# ## Eight workers
#
# Now you can answer the questions at the top. Nine ranks start: a server and eight workers. A gradient takes 100 ms, but in
# each step one worker needs 110. (The slow computing is emulated: each worker computes its gradient, then sleeps until the 100
# or 110 ms are over. So two cores are enough for eight workers.)

# %%
guess = predict(
    "With your function, how long does a step of eight workers take "
    "if chance chooses who needs 110 ms?",
    95,
    115,
    unit="ms",
)
guess

# %%
team = ranks.start(9)
team.push(
    train=lesson.check.written(one_step_late),
    steps=15 if sizes.name == "quick" else 40,
)

# %%
# %%ranks --timeout 300
from mpi4py import MPI

from lessons import waiting_less as lesson

workers = lesson.Workers(MPI.COMM_WORLD, late_s=0.01, gradient_s=0.1)
eight = [
    workers.train("synchronous", "at random", steps),
    workers.train("synchronous", "fixed", steps),
    workers.train("lag_sync", "at random", steps, train=train),
    workers.train("lag_sync", "fixed", steps, train=train),
    workers.train("asynchronous", "fixed", steps),
]

# %%
eight = team.pull("eight")[0]
guess.compare(eight[2]["ms per step"])

# %%
lesson.table(eight)[["ms per step", "mean staleness"]]

# %% [markdown]
# Does it matter whether it's the same worker each time? Not to synchronous SGD, which takes 110 ms or a little more either way.
# With your function it matters a lot: a roaming straggler almost disappears, because with eight workers chance rarely picks the
# same worker twice in a row. A fixed straggler costs as much as before. And do the others have to wait at all? In the last row
# nobody waits, but the mean staleness is about 7: while one worker computes a gradient, each of the other seven delivers one.
# (If your synchronous steps take far more than 110 ms, other programs are using your cores.)
#
# So begin with synchronous SGD. If stragglers roam, one step of staleness removes most of the waiting. If the straggler is
# fixed, repair the node or drop it.
#
# ## Remember
#
# - A synchronous step takes as long as its slowest worker.
# - If gradients are applied one step late, a roaming straggler holds the others up only when it's late twice in a row. The
#   staleness is 1.
# - One step of staleness doesn't hide a fixed straggler. Asynchronous SGD does, but its results differ from run to run, and
#   its staleness grows with the number of workers.
#
# **Sources.** Gradient lag: T. Kurth et al., arXiv:1810.01993. Parameter servers: J. Dean et al., *Large Scale Distributed Deep
# Networks* (NIPS 2012). Backup workers: J. Chen et al., arXiv:1604.00981. Groups of synchronous ranks that are asynchronous to
# each other: T. Kurth et al., arXiv:1708.05256.

# %%
ranks.stop()
