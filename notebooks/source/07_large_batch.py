# %% [markdown] track="core path"
# # Large batches: how long may a step be?
#
# A training run goes well on 16 workers. So somebody starts it on 128, and multiplies the learning rate by eight, as the usual
# rule says. Each epoch now takes only about an eighth of the time. But is the network as good?
#
# **You will** emulate 128 workers on two cores, write a learning-rate schedule for them, compute the highest safe rate from a
# curvature that you measure, and use it to build a recipe with which 128 workers learn.
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
# In data-parallel training a *worker* is a rank that computes on its own batch, here of 64 images. Together, $N$ workers take
# one step on the *global batch* of $64 N$ images. One worker updates the weights 938 times in an *epoch*, which is one pass
# over the 60,000 images, but 128 workers update them only 8 times. If these 8 steps are no longer than the steps of one worker,
# the network hardly learns.
#
# You don't need 128 GPUs to see what happens. The mean gradient of 128 shards of 64 images is the gradient of one batch of
# 8,192 images ([02](02_synchronous_sgd.ipynb)), so a few ranks can *emulate* many workers. The weights come out the same, up to
# rounding. (This only works because our network, called `classic`, has no *batch normalization*: with it, the result would
# depend on the number of images per worker.)
#
# ## How long should a step be?
#
# Suppose the learning rate $\eta$ suits one worker. Three rules scale it to $N$ workers:
#
# - *Unchanged*, $\eta$: safe, but slow.
# - *Linear*, $N\eta$: one step on $N$ batches goes as far as $N$ steps on one batch each. This holds as long as the gradient
#   hardly changes on the way (Goyal et al. 2017).
# - *Square root*, $\sqrt N\,\eta$: averaging $N$ batches makes the noise $\sqrt N$ times smaller, so with a $\sqrt N$ times
#   larger rate each step is as noisy as before (Krizhevsky 2014, although the linear rule worked better in his own
#   experiments).
#
# Early in training the gradient changes fast, so the linear rule doesn't hold there. That's why Goyal et al. let the rate grow
# over the first few epochs, which is called *warm-up*. The rate begins at the rate of one worker, and climbs to the scaled
# rate.
#
# ### Exercise 1 (warm-up): climb to the peak rate
#
# Your function will set the learning rate while you train as 128 workers. The training loop calls your function before every
# step, and counts the steps from 0. Step 0 has the rate of one worker, `base_lr`. From there the rate climbs by the same amount
# in each step, reaches `base_lr * workers` in step `warmup_steps`, and stays there.
#
# <details><summary>Hint 1: how far has it climbed?</summary>
#
# Draw the rate for 3 workers and 4 warm-up steps. Where does the line begin, where does it end, and what share of the climb is
# done in step 1?
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
# adds half of the previous step to each step. Two options that you'll meet later are switched off: *Nesterov momentum*, and the
# *decay*, which lets the rate fall towards the end. Each run takes about ten seconds on two cores. Start with 16 workers:

# %%
epochs, samples = sizes.epochs, sizes.train_samples or 60_000
network = {
    "network": "classic",
    "momentum": 0.5,
    "nesterov": False,
    "lr_scaling": "none",
    "decay": "none",
    "warmup_epochs": 0,
}


def train(workers, rate):
    """The record of `classic`, trained as this many workers at this rate."""
    options = {
        "emulate_workers": workers,
        "lr": rate,
        "epochs": epochs,
        "train_samples": samples,
    }
    return team.train(TrainOptions(**network | options), timeout=10 * sizes.timeout_s)


def accuracy(run):
    """The test accuracy in %, NaN if you pressed Stop before the first test."""
    tested = [100 * epoch["test_accuracy"] for epoch in run["epochs"]]
    return tested[-1] if tested else float("nan")


run_16 = train(16, rate=0.16)

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
run_128 = train(128, rate=1.28)

# %%
guess.compare(accuracy(run_128))

# %% [markdown]
# An accuracy of about 10 % is what you'd get by guessing among ten digits. At 11.35 % the network says "1" to every image. If
# that's where your run ended, the network isn't just learning slowly: the run has *collapsed*. Not every run collapses: after
# three epochs, two of our three recorded runs were at 11 %, and the third was at 27 %. In the published figure further down,
# 128 workers collapse, too.
#
# ## Why long steps break
#
# *Gradient descent* takes a step against the slope, and relies on the slope not changing much on the way. How fast the slope
# changes is the *curvature*, $\lambda$. In a bowl, whose curvature is the same everywhere, all that counts is the product
# $\eta\lambda$:

# %%
picture("bowl")

# %% [markdown]
# At a rate below $2/\lambda$ the steps lead down into the bowl. Above that rate, each step lands higher up on the opposite
# side. Momentum changes this limit. With a momentum of $m$ the limit is $2 (1 + m)/\lambda$. *Nesterov momentum* takes the
# gradient at the point where the momentum alone would lead, and its limit is lower, $2 (1 + m)/((1 + 2m)\lambda)$.
#
# ### Exercise 2 (warm-up): the highest safe rate
#
# A network's loss isn't a bowl, but at every point there's a direction in which it curves most, and you'll measure how much. Your
# function turns that curvature into the highest learning rate that's still safe there. You'll use it to predict which rates
# survive, and then to choose one for 128 workers.
#
# <details><summary>Hint 1: the pieces</summary>
#
# Both formulas have the same numerator. Compute the limit of ordinary momentum first, and change it only if `nesterov` is true.
#
# </details><details><summary>Solution</summary>
#
# {solution of highest_rate}
#
# </details>


# %%
def highest_rate(curvature, momentum, nesterov=False):
    """The highest stable learning rate in a bowl of this curvature, a number above 0.

    momentum: m, from 0 to below 1. nesterov: whether it's Nesterov momentum.
    """
    # <solution>
    limit = 2 * (1 + momentum) / curvature
    return limit / (1 + 2 * momentum) if nesterov else limit
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.highest_rate(highest_rate)

# %% [markdown]
# The next cell measures the curvature during four short runs, which take about half a minute. (To do so, it multiplies a random
# vector by the matrix of the loss's second derivatives again and again, until the vector points in the direction of the highest
# curvature.) One run has a rate of 0.1, and another has 1.28, the rate that linear scaling gives 128 workers. The other two
# begin with a warm-up of 40 steps: one to 1.28, and one to 0.64, which is the linear rule's rate for 64 workers. To save time,
# the batches are only as large as those of 16 workers, so the limit is only a first guess for 128 workers.

# %%
of_ranks = team.run(
    lesson.curvature.follow, 25 if sizes.name == "quick" else 60, timeout=300
)
followed = {name: run for runs in of_ranks for name, run in runs.items()}
highest = lesson.check.written(highest_rate)
lesson.figures.limits(followed, lambda curvature: highest(curvature, 0.5))

# %% [markdown]
# In the right panel, the thick lines are the limits that your function computes, and the thin lines are the rates. (The run at
# 1.28 without warm-up is left out there.) When the network begins to learn, the curvature grows, and the limit falls far below
# the peak rates of the two runs with warm-up. Steps that are too long at that moment throw away what was learned. At 1.28 the
# run can end at the loss of random guessing, about 2.3, where the network gives nearly the same output for every image. There
# the loss is flat and the limit is high, but hardly any gradient is left to learn from. That's the collapse. At 0.1 the rate
# stays below its limit.
#
# In the run at 0.64 with warm-up, the rate exceeds the limit by a small factor: two or three when we measured it. The long
# steps then push the weights to a place where the curvature is small enough for such steps, and from there on the limit stays
# near the rate. Cohen et al. (2021) found this in many networks that they trained with the full batch. (With small batches, the
# curvature settles lower.) Gilmer et al. (2021) use the same effect to explain why warm-up helps.
#
# ## Which rates survive?
#
# So take the highest curvature of the run at 0.1, and let your function tell you how high the rate may be there.

# %%
peak = max(curvature for _, _, _, curvature in followed["0.1 at once"])
limit = highest(peak, momentum=0.5)
print(f"highest curvature {peak:.1f}: the highest safe rate is {limit:.3f}")
rates = (0.01, 0.1, 0.3, 1.28)
for rate in rates:
    print(f"a rate of {rate} is {rate / limit:.2f} times this limit")

# %% [markdown]
# The first of these rates is that of one worker. The second is close to 0.113, which the square-root rule gives 128 workers.
# The last is the rate of the linear rule, which you've already tried. With which of the four will 128 workers learn?

# %%
guess = predict(
    "The highest of the four rates with which 128 workers get more than half right",
    low=0.01,
    high=1.28,
)
guess

# %%
ended = {rate: accuracy(train(128, rate)) for rate in rates[:3]}
ended[1.28] = accuracy(run_128)
for rate, percent in ended.items():
    print(f"rate {rate}: {percent:.1f} % of the test images are right")

# %%
guess.compare(max((rate for rate in rates if ended[rate] > 50), default=None))

# %% [markdown]
# Below the limit, every rate is safe, but 0.01 is too low to learn much in so few steps. Far above the limit, the run
# collapses. A rate of about twice the limit survives as well, because steps that are a little too long push the weights to a
# place where the curvature is smaller. So start your search at the limit, and go on to about twice that rate.
#
# Does warm-up rescue 1.28, the linear rule's rate? Train with the schedule that you wrote. `lesson.own_training.train` is the
# loop of notebook [02](02_synchronous_sgd.ipynb), except that it asks your function for the learning rate before each step.

# %%
team.push(learning_rate=learning_rate, epochs=epochs, samples=samples)


# %%
# %%ranks --timeout 600
from lessons import large_batch as lesson

warmup_steps = (epochs - 1) * lesson.own_training.steps_per_epoch(samples, workers=128)
trained = lesson.own_training.train(
    lambda step: learning_rate(step, 0.01, 128, warmup_steps), 128, epochs, samples
)

# %% [markdown]
# When we ran this, the network got to 41 % in the first epoch, and then fell back to guessing. A warm-up to a rate that's too
# high only puts off the trouble, as the runs of 32 epochs below show. What else can you change?
#
# - The *peak rate*. A rate of 1.28 is far above the limit.
# - *Momentum*. With a momentum of $m$, a step is in effect $\eta/(1-m)$ long: twice $\eta$ with 0.5, and ten times $\eta$ with
#   0.9. The limit on that length rises too, from $6/\lambda$ with a momentum of 0.5 to $38/\lambda$ with 0.9. With a Nesterov
#   momentum of 0.9 the limit is only $14/\lambda$. But at rates well below this limit, swings in steep directions die out
#   sooner than with ordinary momentum.
# - The *decay*. Once the network has learned something, shorter steps protect what it has learned. The figure shows the usual
#   ways to let the rate fall after a warm-up, with the names that you can give as `decay`. `"polynomial"` is $(1 - t)^2$, where
#   $t$ goes from 0 to 1 after the warm-up.

# %%
picture("decays")

# %% [markdown]
# ### Exercise 3 (normal): a recipe for 128 workers
#
# Build a recipe with which 128 workers get 93 % of the test images right in four epochs, which are 32 steps. Decide on a
# momentum, and let your function compute its limit from the `peak` that you measured. Choose `lr`, the peak rate, from that
# limit. You may also set `nesterov`, `decay` and `warmup_epochs`. With a momentum of 0.5, even the best rate that we found gets
# 90 to 93 %, depending on the seed, so it usually falls a little short. Each try takes about ten seconds on two cores.
#
# <details><summary>Hint 1: which momentum?</summary>
#
# Take the momentum whose highest safe rate gives the longest step in effect: compare `highest(peak, m) / (1 - m)` for 0.5 and
# 0.9.
#
# </details><details><summary>Hint 2: which rate?</summary>
#
# Begin at the limit that your function computes for this momentum. With only 32 steps you need long ones. Nesterov momentum has
# a lower limit, and a decay or a long warm-up mostly makes the steps shorter, so try without these three first.
#
# </details><details><summary>Solution</summary>
#
# Take the highest safe rate for a momentum of 0.9, and keep it from the first step to the last. When we measured, this rate was
# about 0.19, and 128 workers got 94 to 95 % of the test images right with each of three seeds. Other recipes reach 93 %, too.
#
# </details>

# %%
recipe = {
    # <solution>
    "lr": highest(peak, momentum=0.9),
    "momentum": 0.9,
    "nesterov": False,
    "warmup_epochs": 0,
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
# In a script of your own, give the optimizer the rate of one worker. PyTorch's
# `schedule = LambdaLR(optimizer, lambda step: learning_rate(step, 1, workers, warmup_steps))` multiplies that rate by what your
# function returns. Call `schedule.step()` after every optimizer step, not after every epoch.
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
# the runs with LARS also have more momentum, a decay and a tuned rate, so [07d](07d_large_batch_optimizers.ipynb) compares it
# with SGD on equal terms.
#
# At 128 workers the bars are long, because runs that differ only in their seed end far apart. Here are these runs, epoch by
# epoch. The light blue lines are three runs with a peak rate of 0.2, a Nesterov momentum of 0.9, five epochs of warm-up and a
# polynomial decay:

# %%
lesson.figures.by_epoch(
    [*full, *lesson.recipes.recorded("large_batch_solution")], workers=128
)

# %% [markdown]
# The crosses suggest that this network can't learn with 128 workers, and the usual remedy is a warm-up. Our runs don't fully
# support either claim. Without warm-up, two of the runs only guess for a dozen epochs or more, but then begin to learn. With
# five epochs of warm-up, the runs do *no better*: all three learn at first, but fall back to guessing as the rate nears its
# peak, and only one of them recovers. At 64 workers, warm-up does help. So warm-up raises the number of workers at which runs
# collapse, but doesn't remove the limit.
#
# What prevents the collapse is a rate below the limit that you measured. With 0.113 and nothing else changed, every seed ends
# above 97 %. You get 0.113 when you scale 0.01 by the square-root rule. But these runs don't prove the rule, because nobody had
# tuned 0.01, the rate of the published script, for one worker. Shallue et al. (2019) did tune the rate at every batch size, for
# many networks and data sets, and found that the best rate follows neither rule in general. So take a rule as a first guess,
# and search around it again whenever the batch changes. We found the light blue recipe by such a search, and it gains about
# another percentage point. In effect, its longest steps have a length of 2.0, almost as long as the steps of 2.56 that
# collapsed. But with a Nesterov momentum of 0.9, the limit on that length is about $14/\lambda$ instead of $6/\lambda$. So at a
# curvature of 20, these steps are three times as long as the limit allows, instead of more than eight times. Warm-up can
# bring a run through that, as in the run at 0.64.
#
# So is the network with 128 workers as good as with 16? With SGD, not quite: on average, 128 workers with the light blue recipe
# end at 98.2 %, and 16 workers end at 98.9 %. The LARS runs close that gap.
#
# ## Deeper: a clinic for recipes
#
# Five people come to you, each with a network that doesn't learn well, and each of them did one thing wrong. Here are the
# losses of their runs, next to those of a healthy run with 8 workers and 5,000 images.

# %%
patients = lesson.check.patients()
lesson.figures.clinic(patients)

# %% [markdown]
# ### Exercise 4 (normal): the diagnosis
#
# Each run has one of these problems, and no two runs have the same: `"rate too high"`, `"rate too low"`, `"too few steps"`,
# `"too little data"`, `"too much weight decay"`. Weight decay pulls every weight towards zero in each step. Replace the dots with
# your diagnoses.
#
# <details><summary>Hint 1: where to look</summary>
#
# Compare each panel with the healthy one. Where does the loss end up, how far apart are the two losses at the end, and how many
# steps does the curve have? (The training loss begins above the test loss, because it's a mean over the whole epoch.)
#
# </details><details><summary>Hint 2: three of the runs</summary>
#
# One run is stuck at the loss of random guessing, so one of its steps must have thrown everything away. Two others take as many
# steps as the healthy run, but their losses end far above the healthy ones. In one of the two, the loss stays close to the loss
# of random guessing. In the other, the loss falls most of the way, but something keeps pulling the weights back.
#
# </details><details><summary>Solution</summary>
#
# A's weights decay too much. B takes too few steps: 12, while the healthy run takes 60. C's rate is too high. D has so little
# data that the network learns its images by heart. E's rate is too low.
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
# *Break it:* make the healthy run sick yourself, with `team.train(TrainOptions(**lesson.recipes.PATIENTS["healthy"] | {…}))`,
# and ask your neighbor for a diagnosis.
#
# Four of the five runs recover with a better recipe, but D needs more data. How much data is enough? Train for the same number
# of steps on larger and larger parts of your data, and see whether the test accuracy still climbs. If it does and you can't
# collect more data, simulate some, or *augment* what you have by changes that don't alter the right answer
# ([09](09_feeding_the_ranks.ipynb)).
#
# ## Remember
#
# - More workers mean fewer steps per epoch. Longer steps make up for that, up to a limit that the curvature sets.
# - Warm-up helps early on, when the curvature jumps up as the network begins to learn. It doesn't remove the limit.
# - Measure the highest curvature and you know the highest safe rate, $2(1+m)/\lambda$. A good rate for your batch lies near
#   that limit. No scaling rule can tell you the limit, because no rule knows your network.
# - Look at the accuracy, not only at the samples per second. A collapsed run is as fast as a healthy one.
#
# Does a large batch need an optimizer of its own? [07d](07d_large_batch_optimizers.ipynb) finds out.
# [07b](07b_gradient_noise.ipynb) shows where larger batches stop helping at all.
#
# **Sources.** P. Goyal et al. 2017, arXiv:1706.02677 (linear scaling, warm-up, batch normalization). A. Krizhevsky 2014,
# arXiv:1404.5997 (square root). C. Shallue et al. 2019, arXiv:1811.03600 (neither rule holds). J. Cohen et al. 2021,
# arXiv:2103.00065, and J. Gilmer et al. 2021, arXiv:2110.04369 (curvature and the longest stable step). The published figure is
# from the Theta hands-on of Argonne's distributed deep learning tutorial.

# %%
ranks.stop()
