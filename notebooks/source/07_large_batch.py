# %% [markdown] track="core path"
# # Large batches: how long may a step be?
#
# A training run goes well on 16 workers. So somebody starts it on 128, and scales the learning rate the way everybody
# recommends. Each epoch is as fast as promised. Is the network as good, too?
#
# **You will** emulate 128 workers on two cores, write a learning-rate schedule for them, find out what limits the length of a
# step, and tune a recipe with which 128 workers learn.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first.

# %%
from workshop_lib import TrainOptions, picture, predict, profile, ranks

from lessons import large_batch as lesson

sizes = profile.current()
team = ranks.start(sizes.ranks)
team

# %% [markdown]
# ## More workers, fewer steps
#
# In data-parallel training a *worker* is a rank that computes on its own batch, here of 64 images. Together, $N$ workers take one
# step on the *global batch* of $64 N$ images. One worker updates the weights 938 times in an *epoch*, which is one pass over the
# 60,000 images, but 128 workers update them only 8 times. If each step is no longer than before, the network gets nowhere.
#
# You don't need 128 GPUs to see what happens. The mean gradient of 128 shards of 64 images is the gradient of one batch of 8,192
# images ([02](02_synchronous_sgd.ipynb)), so a few ranks can *emulate* many workers. The weights come out the same, up to
# rounding. (That's only true because our network, called `classic`, has no *batch normalization*, which makes the result depend
# on the number of images per worker.)
#
# ## How long should a step be?
#
# Suppose the learning rate $\eta$ suits one worker. Three rules scale it to $N$ workers:
#
# - *Not scaled*, $\eta$: safe, but slow.
# - *Linear*, $N\eta$: one step on $N$ batches goes as far as $N$ steps on one batch each. That's right as long as the gradient
#   hardly changes on the way (Goyal et al. 2017).
# - *Square root*, $\sqrt N\,\eta$: averaging $N$ batches makes the noise $\sqrt N$ times smaller, so with a $\sqrt N$ times
#   larger rate each step is as noisy as before (Krizhevsky 2014, for whom the linear rule worked better).
#
# Early in training the gradient changes fast, so the linear rule is wrong there. That's why Goyal et al. let the rate grow over
# the first few epochs, which is called *warm-up*: it begins at the rate of one worker, and ends at the scaled one.
#
# ### Exercise 1 (warm-up): climb to the peak rate
#
# Your function will set the learning rate while you train as 128 workers. The training loop calls it before every step, and
# counts the steps from 0. Step 0 has the rate of one worker, `base_lr`. From there the rate climbs by the same amount in each step,
# reaches `base_lr * workers` in step `warmup_steps`, and stays there.
#
# <details><summary>Hint 1: how far has it climbed?</summary>
#
# Draw it for 3 workers and 4 warm-up steps. Where does the line begin, where does it end, and what share of the climb is done in
# step 1?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# The whole climb is `base_lr * (workers - 1)`. The share that's done is `step / warmup_steps`, but at most 1. Watch out:
# `warmup_steps` may be 0, and you can't divide by that.
#
# </details><details><summary>Solution</summary>
#
# {solution of learning_rate}
#
# </details>


# %%
def learning_rate(step, base_lr, workers, warmup_steps):
    """The rate in step `step`, counted from 0.

    It climbs from base_lr, in equal parts, to its peak in step warmup_steps. If
    warmup_steps is 0, every step has the peak rate.
    """
    # <solution>
    share = min(1, step / warmup_steps) if warmup_steps else 1
    return base_lr * (1 + (workers - 1) * share)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.learning_rate(learning_rate)

# %% [markdown]
# ## Sixteen workers, and 128
#
# Now train `classic` for a few epochs, at a rate of 0.01 times the number of workers and without warm-up. A *momentum* of 0.5
# adds half of the previous step to each step. We switch two options off that you'll need later: *Nesterov's* kind of momentum, and
# the *decay*, which lets the rate fall towards the end. Each run takes about ten seconds on two cores. Start with 16
# workers:

# %%
epochs, samples = sizes.epochs, sizes.train_samples or 60_000
network = {
    "network": "classic",
    "momentum": 0.5,
    "nesterov": False,
    "lr": 0.01,
    "decay": "none",
    "warmup_epochs": 0,
}


def train(workers):
    """The record of `classic`, trained as this many workers, with linear scaling."""
    options = {
        "emulate_workers": workers,
        "lr_scaling": "linear",
        "epochs": epochs,
        "train_samples": samples,
    }
    return team.train(TrainOptions(**network | options), timeout=10 * sizes.timeout_s)


run_16 = train(16)

# %% [markdown]
# What about 128 workers?

# %%
guess = predict(
    f"Test accuracy with 128 workers after {epochs} epochs, without warm-up",
    low=0,
    high=100,
    unit="%",
)
guess

# %%
run_128 = train(128)

# %%
tested = [100 * epoch["test_accuracy"] for epoch in run_128["epochs"]]
# If you pressed Stop before the first test, there's nothing to compare.
guess.compare(tested[-1] if tested else None)

# %% [markdown]
# An accuracy of about 10 % is what you'd get by guessing among ten digits. At 11.35 % the network says "1" to every image. If
# that's where your run ended, it isn't just slow to learn. It has *collapsed*. Not every run does: after three epochs, two of
# our three recorded runs were at 11 %, and one was at 27 %. In the published figure further down, 128 workers collapse, too.
#
# ## Why long steps break
#
# *Gradient descent* takes a step against the slope, and hopes that the slope doesn't change much on the way. How fast the slope
# changes is the *curvature*, $\lambda$. In a bowl, whose curvature is the same everywhere, all that counts is the product
# $\eta\lambda$:

# %%
picture("bowl")

# %% [markdown]
# At a rate below $2/\lambda$ the steps lead down into the bowl. Above it, each step lands higher up on the opposite side.
# Momentum $m$ raises this limit on the rate to $2 (1 + m)/\lambda$. A network's loss isn't a bowl, but at every point there's a
# direction in which it curves most, and that curvature can be measured.
#
# The next cell measures it during four short runs, which take half a minute or so. Linear scaling gives 64 workers a rate of
# 0.64 and 128 workers a rate of 1.28. We try each of these rates twice, from the first step on and after a warm-up of 40 steps.
# To save time, the batches are those of 16 workers.

# %%
of_ranks = team.run(
    lesson.curvature.follow, 15 if sizes.name == "quick" else 60, timeout=300
)
lesson.figures.limits(
    {name: run for runs in of_ranks for name, run in runs.items()},
    momentum=lesson.curvature.MOMENTUM,
)

# %% [markdown]
# The right panel shows the two runs with warm-up. The thick lines are the limits, and the thin ones are the rates. When the network
# begins to learn, its curvature grows, and the limit falls far below both peak rates. Steps that are too long at that moment throw
# away what was learned. At 1.28 the run can end at the loss of random guessing, about 2.3, where the network gives nearly the same
# output for every image. There the loss is flat and the limit is high, but hardly any gradient is left to learn from. That's the
# collapse.
#
# At 0.64 with warm-up, the rate exceeds the limit by a factor of two or three at most. The long steps then push the weights to a
# place where the curvature is small enough for them, and from there on the limit stays near the rate. Cohen et al. (2021) found
# this in many networks that they trained with the full batch; with small batches, the curvature settles lower. Gilmer et al.
# (2021) use it to explain why warm-up helps. Does warm-up save 128 workers, too?
#
# Train with the schedule that you wrote. `lesson.own_training.train` is the loop of notebook [02](02_synchronous_sgd.ipynb), except that
# before each step it asks your function for the learning rate.

# %%
team.push(learning_rate=learning_rate, epochs=epochs, samples=samples)


# %%
# %%ranks --timeout 600
from lessons import large_batch as lesson

warmup_steps = (epochs - 1) * lesson.own_training.steps_per_epoch(samples, workers=128)
optimizer = lesson.own_training.train(
    lambda step: learning_rate(step, 0.01, 128, warmup_steps), 128, epochs, samples
)

# %% [markdown]
# When we ran this, it got to 41 % in the first epoch, and then fell back to guessing. A longer warm-up to a rate that's too high
# only puts off the trouble, as the runs of 32 epochs below show. What else can you change?
#
# - The *peak rate*. 1.28 is far above the limit.
# - *Momentum*. With a momentum of $m$, a step is in effect $\eta/(1-m)$ long: twice $\eta$ with 0.5, and ten times $\eta$ with
#   0.9. So if you raise the momentum, lower the rate. It's worth it, because the limit on that length rises too, from $6/\lambda$
#   with a momentum of 0.5 to $38/\lambda$ with 0.9. *Nesterov momentum* takes the gradient at the point to which the momentum is
#   about to lead. Its limit on the rate is lower, $2 (1 + m)/((1 + 2m)\lambda)$, but well below it, swings in steep directions
#   die out sooner.
# - The *decay*. Once the network has learned something, shorter steps keep it from losing it again. The figure shows the usual
#   ways to let the rate fall after a warm-up, by the names that you can give as `decay`. `"polynomial"` is $(1 - t)^2$, where $t$
#   goes from 0 to 1 after the warm-up.

# %%
picture("decays")

# %% [markdown]
# ### Exercise 2 (normal): a recipe for 128 workers
#
# Find a recipe with which 128 workers get 93 % of the test images right in four epochs, which are 32 steps. You may set the peak
# rate `lr`, now without a scaling rule, and `momentum`, `nesterov`, `decay` and `warmup_epochs`. The square-root rule's 0.113 with
# nothing else changed gets 88 %, and the best rate alone gets 90 to 93 %, depending on the seed. Each try takes about
# ten seconds on two cores. Expect to need half a dozen.
#
# <details><summary>Hint 1: one thing at a time</summary>
#
# Leave the other lines as they are, and halve the rate of 1.28 until the network learns. Then see what one more change does. (An
# option that you delete isn't off. It takes its default, such as a linear decay.)
#
# </details><details><summary>Hint 2: which of the others?</summary>
#
# With a Nesterov momentum of 0.9, longer steps still work. But it makes each step ten times as long as its rate, so lower the
# rate. In only 32 steps, a decay or a long warm-up mostly makes steps shorter.
#
# </details><details><summary>Solution</summary>
#
# `{"lr": 0.15, "momentum": 0.9, "nesterov": True, "warmup_epochs": 0.5, "decay": "none"}` gets 94 %, with each of three seeds.
# Other recipes get there, too.
#
# </details>

# %%
recipe = {
    # <solution>
    "lr": 0.15,
    "momentum": 0.9,
    "nesterov": True,
    "warmup_epochs": 0.5,
    "decay": "none",
    # <stub>
    # "lr": ...,  # your code here
    # "momentum": 0.5,
    # "nesterov": False,
    # "warmup_epochs": 0,
    # "decay": "none",
    # </stub>
    # </solution>
}
run_recipe = lesson.check.train_recipe(team, recipe, sizes)
lesson.check.recipe(recipe, run_recipe, sizes)

# %% [markdown]
# In a script of your own, give the optimizer the rate of one worker, and let PyTorch's
# `schedule = LambdaLR(optimizer, lambda step: learning_rate(step, 1, workers, warmup_steps))` multiply it. Call
# `schedule.step()` after every optimizer step, not after every epoch.
#
# ## What 32 epochs show
#
# Four epochs of 8 steps each aren't much. So here are recorded runs of 32 epochs. The crosses come from a published figure
# of runs without warm-up on 128 nodes of a supercomputer.

# %%
full = lesson.recipes.recorded("large_batch")
lesson.worker_curve(full)

# %% [markdown]
# With linear scaling all is well up to 32 workers, but with 256 every run has collapsed. With the square-root rule no run
# collapses, but the accuracy falls steadily as you add workers. LARS, an optimizer for large batches, does well everywhere. But
# its runs also have more momentum, a decay and a tuned rate, so [07d](07d_large_batch_optimizers.ipynb) compares it with SGD on
# equal terms.
#
# At 128 workers the bars are long, because runs that differ only in their seed end far apart. Here they are, epoch by epoch. The
# light blue lines are three runs with a rate of 0.2, a Nesterov momentum of 0.9, five epochs of warm-up and a polynomial decay:

# %%
lesson.figures.by_epoch(
    [*full, *lesson.recipes.recorded("large_batch_solution")], workers=128
)

# %% [markdown]
# The crosses suggest that at 128 workers this network is lost, and the usual remedy is a warm-up. Our runs don't quite confirm
# either. Without warm-up, two runs guess for a dozen epochs or more, and then begin to learn. And five epochs of warm-up did *no
# better*: all three runs learn at first, but fall back to guessing as the rate nears its peak, and only one of them recovers. At
# 64 workers warm-up does help. So it moves the edge, but doesn't remove it.
#
# What removes it is a rate further below its limit. With 0.113 and nothing else changed, every seed ends above 97 %. That's what
# the square-root rule makes of 0.01, but don't take it as proof of the rule. The 0.01 comes from the published script, and nobody
# tuned it for one worker. Shallue et al. (2019) did tune the rate at every batch size, for many networks and data sets, and found
# that it follows neither rule in general. So a rule is a first guess, and you search around it, again whenever the batch changes.
# The light blue recipe took such a search, and gains another percent. Its steps are in effect almost as long as those that
# collapsed, 2.0 against 2.56, but with a Nesterov momentum of 0.9 the limit on that length is about $14/\lambda$ instead of
# $6/\lambda$.
#
# ## Deeper: a clinic for recipes
#
# Five people come to you with a run that doesn't learn well, and each of them did one thing wrong. Here are the losses of their
# runs, next to those of a healthy run with 8 workers and 5,000 images.

# %%
patients = lesson.check.patients()
lesson.figures.clinic(patients)

# %% [markdown]
# ### Exercise 3 (normal): the diagnosis
#
# Each run has one of these problems, and no two runs have the same: `"rate too high"`, `"rate too low"`, `"too few steps"`,
# `"too little data"`, `"too much weight decay"`. Weight decay pulls every weight towards zero in each step. Replace the dots with
# your diagnoses.
#
# <details><summary>Hint 1: where to look</summary>
#
# Compare each panel with the healthy one. Where does the loss end up, how far apart are the two losses at the end, and how long
# is the curve? (The training loss begins above the test loss, because it's the mean over an epoch.)
#
# </details><details><summary>Hint 2: three of the runs</summary>
#
# One run is stuck at the loss of random guessing, so one of its steps must have thrown everything away. Two others take as many
# steps as the healthy one, but end far above it. One of the two hardly gets away from the loss of guessing. The other falls most
# of the way, but something keeps pulling it back.
#
# </details><details><summary>Solution</summary>
#
# A's weights decay too much. B takes too few steps, 12 where the healthy run takes 60. C's rate is too high. D has so little
# data that it knows its images by heart. E's rate is too low.
#
# </details>

# %%
diagnoses = {
    # <solution>
    "A": "too much weight decay",
    "B": "too few steps",
    "C": "rate too high",
    "D": "too little data",
    "E": "rate too low",
    # <stub>
    # "A": ...,  # your code here
    # "B": ...,
    # "C": ...,
    # "D": ...,
    # "E": ...,
    # </stub>
    # </solution>
}
lesson.check.diagnoses(diagnoses)

# %% [markdown]
# *Break it:* make the healthy run ill yourself, with `team.train(TrainOptions(**lesson.recipes.PATIENTS["healthy"] | {…}))`, and
# ask your neighbor for a diagnosis.
#
# ## Deeper: how much data?
#
# More workers only pay off if there's enough data to learn from. A *learning curve* tells you how much that is: train for the
# same number of steps on larger and larger parts of your data, and see whether the accuracy still climbs.

# %%
steps = 20 if sizes.name == "quick" else 200
same = {
    "max_steps": steps,
    "batch_size": 128 // team.n,
    "lr": 0.03,
    "warmup_epochs": 0,
    "decay": "none",
}
for count in (1000, 4000, 16_000) if samples == 60_000 else (500, 2000):
    options = TrainOptions(train_samples=count, epochs=-(-steps * 128 // count), **same)
    last = team.train(options, timeout=sizes.timeout_s, show=False)["epochs"][-1]
    print(
        f"{count:6,} images: {last['train_accuracy']:.1%} right in training, "
        f"{last['test_accuracy']:.1%} in the test"
    )

# %% [markdown]
# More data closes the gap between the two accuracies. If you can't collect more, simulate some, or *augment* your data with
# changes that leave the answer as it is, such as small shifts.
#
# ## Remember
#
# - More workers mean fewer steps in an epoch. Longer steps make up for that, up to a limit that the curvature sets.
# - Warm-up helps early on, when the curvature jumps up as the network begins to learn. It doesn't remove the limit.
# - What works is a rate below its limit, tuned at *this* batch. No rule finds it for you, because none knows your network.
# - Look at the accuracy, not only at samples per second. A collapsed run is as fast as a healthy one.
#
# Does a large batch need an optimizer of its own? [07d](07d_large_batch_optimizers.ipynb) finds out.
# [07b](07b_gradient_noise.ipynb) shows where larger batches stop helping at all.
#
# **Sources.** P. Goyal et al. 2017, arXiv:1706.02677 (linear scaling, warm-up, batch normalization). A. Krizhevsky 2014,
# arXiv:1404.5997 (square root). C. Shallue et al. 2019, arXiv:1811.03600 (neither rule holds). J. Cohen et al. 2021,
# arXiv:2103.00065, and J. Gilmer et al. 2021, arXiv:2110.04369 (curvature and the longest stable step). The published figure: Theta hands-on of Argonne's distributed deep learning tutorial.

# %%
ranks.stop()
