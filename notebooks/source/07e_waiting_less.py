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
from workshop_lib.lessons.waiting_less import figures
from workshop_lib.lessons.waiting_less import judge as check
from workshop_lib.lessons.waiting_less.workers import table

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

from workshop_lib.lessons.waiting_less.workers import Workers

workers = Workers(MPI.COMM_WORLD, late_s=0.02)
synchronous = workers.train("synchronous", "roaming", steps)

# %%
synchronous = team.pull("synchronous")[0]
figures.timelines([synchronous])

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
    """Weights [n] after `steps` (1 or more) steps of SGD. Each average is applied after the next gradient is computed."""
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
check.one_step_late(one_step_late)

# %%
guess = predict("With a roaming straggler, a synchronous step takes how many times as long as yours?", 1, 3, unit="times")
guess

# %%
team.push(train=check.written(one_step_late))

# %%
# %%ranks --timeout 300
late = workers.train("lag_sync", "roaming", steps, train=train)
late_fixed = workers.train("lag_sync", "fixed", steps, train=train)

# %%
late, late_fixed = team.pull("late")[0], team.pull("late_fixed")[0]
guess.compare(synchronous["ms per step"] / late["ms per step"])

# %%
figures.timelines([synchronous, late, late_fixed])

# %% [markdown]
# With your function the delays of the two workers overlap instead of adding up, and the gaps are nearly gone. But look at the
# last panel. If the same worker is late in *every* step, it never catches up, and the quick one waits as before.
#
# Kurth et al. (2018) call this *gradient lag*, and trained with it on 27,360 of Summit's GPUs. It also hides the one message that
# DDP can't hide ([05](05_ddp.ipynb)): the first layer's gradient has the whole next step to travel.
#
# ## Never wait
#
# What helps against a fixed straggler? You could give it fewer images, or not wait for its gradients (*backup workers*, Chen et
# al. 2016). Or you let nobody wait at all. In *asynchronous* SGD, a *parameter server* holds the weights. Each worker fetches
# them, computes a gradient and sends it, and the server applies each gradient as it arrives. Here that's the job of rank 0. For
# comparison, *local SGD* lets each worker take 10 steps alone before they average their weights
# ([07c](07c_less_communication.ipynb)).

# %%
question = "For the same number of gradients, synchronous SGD takes how many times as long as asynchronous SGD?"
guess = predict(question, 0.5, 4, unit="times")
guess

# %%
# %%ranks --timeout 300
others = [workers.train(mode, "fixed", steps) for mode in ("synchronous", "local_sgd", "asynchronous")]
others.append(workers.train("asynchronous", "fixed", steps))

# %%
others = team.pull("others")[0]
guess.compare(others[0]["ms per step"] / others[2]["ms per step"])

# %%
table([synchronous, late, late_fixed, *others])

# %%
figures.timelines(others[:3])

# %% [markdown]
# Local SGD doesn't help: the quick worker waits only every tenth step, but ten times as long. The asynchronous run is faster,
# because the quick worker computes more of the gradients. But there's a price:
#
# - **Staleness can cost accuracy** while the network still learns fast. With two asynchronous workers, the mean staleness is
#   about 1. With a hundred workers it's about a hundred, and the learning rate has to go down. (Here the asynchronous run takes
#   twice as many steps at half the rate, so its weights move as far per image as those of the others.)
# - **You lose reproducibility.** The last two rows are the same run, twice, and end with different weights. The straggler doesn't
#   change the arithmetic of the other modes: compare the two synchronous rows, and the two that are one step late.
#
# So begin with synchronous SGD. If a straggler roams, and is late by less than a step, one step of staleness is enough. If it's
# fixed, repair the node or drop it. Bounded staleness is mainstream today in reinforcement learning of language models: generators
# write answers with weights that are a few steps old while the trainer goes on, and importance ratios correct for it (Fu et al.
# 2025).
#
# *Try it:* set `late_s=0.0` in the first cell with `%%ranks`. Which mode costs the most when nobody is late?
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
# each other: T. Kurth et al., arXiv:1708.05256. Asynchronous reinforcement learning: W. Fu et al., arXiv:2505.24298 (AReaL).

# %%
ranks.stop()
