# %% [markdown] track="large batches"
# # Waiting less
#
# Seven of eight workers finish their step in 100 ms, and the eighth needs 110. So every step takes 110 ms, and seven workers
# wait. Does it matter whether it's the same worker each time? And do the others have to wait at all?
#
# **You will** write a training loop in which gradients arrive one step late, so that nobody waits for a worker that's late once.
# Then you'll compare it with a run that never waits, see what both cost you, and put all three to work on eight workers.
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
# Here two workers train on MNIST, ranks 1 and 2. In every step, one of them sleeps for 20 ms before it hands in its gradient. The
# workers take turns: rank 1 is late in the first step, rank 2 in the second, and so on. Rank 0 sleeps until it gets a job
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
# Each worker is late in every *second* step, so it sleeps for 10 ms per step on average. How much of your step is the
# straggler's doing? Run the same thing with nobody late.

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
# If nothing else runs on your machine, you pay for about 20 ms in *every* step, not for 10, because whoever is on time has to
# wait.
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

# %% [markdown]
# Turns are the best case, because then nobody is late twice in a row. Chance isn't as kind. In the second of the next three
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
# If the workers take turns, their delays overlap with your function instead of adding up, so most of the gaps are gone. If
# chance chooses, some gaps come back. Look for a worker that's late twice in a row: it has no step in between to catch up, so the
# other worker waits after all. In the last panel, the same worker is late in *every* step. It never catches up, and the quick
# worker waits as before.
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
# - **You lose reproducibility.** The last two rows are the same run with the same seed, and it ends with different weights.
#   A straggler doesn't change the arithmetic of the other modes: all synchronous rows end with the same weights, and so do
#   all rows that are one step late.
# - **Workers don't count equally.** Both workers draw their images from all of MNIST here. If each worker had a shard of its own,
#   the network would learn mostly from the quick worker's shard.
# - **Staleness can cost accuracy**, but a staleness of 1 is too little to be sure of it here. Compare the two printed numbers: only
#   if the second number is clearly larger than the first has your table shown a cost. With a hundred asynchronous workers, the
#   staleness is about a hundred, and the learning rate has to go down. [07f](07f_trainer_and_generators.ipynb) raises the
#   staleness until training breaks. (Here the asynchronous run takes twice as many steps at half the rate, so its weights
#   move as far per image as those of the others.)
#
# ## Eight workers
#
# Now you can answer the question at the top. Nine ranks start: a server and eight workers. A gradient takes 100 ms, and one
# worker per step needs 110. (The slow computing is emulated: each worker computes its gradient, then sleeps until its time is
# over. So two cores are enough for eight workers.)

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
# With your function it matters a lot: a roaming straggler almost disappears, because with eight workers the same one is rarely
# late twice in a row. A fixed straggler costs as much as before. And do the others have to wait at all? In the last row nobody
# waits, but the mean staleness is about 7. (If your synchronous steps take far more than 110 ms, other programs use your
# cores.)
#
# So begin with synchronous SGD. If a straggler roams, one step of staleness takes away most of the waiting. If the straggler is
# fixed, repair the node or drop it.
#
# ## Remember
#
# - A synchronous step takes as long as its slowest worker.
# - Gradients that are applied one step late hide a straggler that roams, at a staleness of 1. Only a worker that's late
#   twice in a row still holds the others up.
# - One step of staleness doesn't hide a fixed straggler. Asynchronous SGD does, but its results differ from run to run, and
#   its staleness grows with the number of workers.
#
# **Sources.** Gradient lag: T. Kurth et al., arXiv:1810.01993. Parameter servers: J. Dean et al., *Large Scale Distributed Deep
# Networks* (NIPS 2012). Backup workers: J. Chen et al., arXiv:1604.00981. Groups of synchronous ranks that are asynchronous to
# each other: T. Kurth et al., arXiv:1708.05256.

# %%
ranks.stop()
