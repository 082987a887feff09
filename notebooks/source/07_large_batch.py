# %% [markdown] track="core path"
# # Large batches: what breaks, and what repairs it
#
# A training run goes well on 16 workers. So somebody starts it on 128, and scales the learning rate the way everybody
# recommends. It's as fast as promised, but it doesn't learn, or learns for a while and then forgets everything. Nobody changed a
# line of the network. What happened?
#
# **You will** see this collapse on two cores, find out why long steps break, write the learning-rate schedule that's meant to
# prevent it, and find a recipe with which 128 workers do learn. Then you'll diagnose five failing runs from their curves, which
# is what tuning a large run comes down to in practice.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first. [07b_gradient_noise](07b_gradient_noise.ipynb) shows where larger batches stop helping
# at all.

# %%
import numpy as np
import pandas as pd
import torch
from torch.nn.functional import cross_entropy

from workshop_lib import TrainOptions, predict, profile, ranks
from workshop_lib.data import mnist
from workshop_lib.lessons.large_batch import curvature, emulation, figures, recipes
from workshop_lib.lessons.large_batch import judge as check
from workshop_lib.models import torch_cnn
from workshop_lib.notebook.figures import accuracy
from workshop_lib.paths import ROOT
from workshop_lib.results import curves, records
from workshop_lib.training import optimizers, schedules

torch.set_num_threads(1)
sizes = profile.current()
team = ranks.start(sizes.ranks)
team

# %% [markdown]
# ## More workers, fewer steps
#
# In data-parallel training a *worker* is a rank that computes on its own batch, here of $B = 64$ images. Together, $N$ workers
# take one step on the *global batch* of $N B$ images. An *epoch*, one pass over the 60,000 images, then has this many steps:

# %%
workers = np.array([1, 4, 8, 16, 32, 64, 128, 256])
pd.DataFrame({"global batch": 64 * workers, "steps in an epoch": np.ceil(60_000 / (64 * workers)).astype(int)}, workers)

# %% [markdown]
# One worker updates the weights 938 times per epoch, but 128 workers update them only 8 times. If each step is no longer than
# before, the network gets nowhere. So the steps must be longer, and that's where the trouble begins.
#
# ## 128 workers on two cores
#
# For this network's arithmetic it doesn't matter which worker holds which samples, because the mean gradient of 128 shards of
# 64 images is the gradient of one batch of 8,192 images
# ([02](02_synchronous_sgd.ipynb)). So a few ranks can *emulate* many workers, with
# the same global batch, the same learning rate, the same number of steps, and the random numbers that each worker would draw for
# its dropout. What they can't emulate is the time it takes.
#
# This isn't true of every network: with *batch normalization* it does matter which worker gets which images
# ([02](02_synchronous_sgd.ipynb) measures it). `classic`, the network from the MNIST examples of 2017, doesn't use it.
#
# Check the claim: train as 4 workers twice, first on all of your ranks, and then in a single process.

# %%
difference = team.run(emulation.difference_from_one_process, show=False)[0]
print(f"after {emulation.STEPS} steps, the weights differ by at most {difference:.1e} of the largest")

# %% [markdown]
# That's rounding.
#
# ## How long should a step be?
#
# Suppose the learning rate $\eta$ suits one worker. There are three rules for scaling it to $N$ workers:
#
# - *Not scaled*, $\eta$: safe, but slow.
# - *Linear*, $N\eta$: one step on $N$ batches goes as far as $N$ steps on one batch each. That's right as long as the gradient
#   hardly changes on the way (Goyal et al. 2017).
# - *Square root*, $\sqrt N\,\eta$: averaging $N$ batches makes the noise $\sqrt N$ times smaller, so with a $\sqrt N$ times
#   larger rate each step is as noisy as before (Krizhevsky 2014). For Adam, which divides by the size of recent
#   gradients, theory leads to the same rule (Malladi et al. 2022).
#
# The rate doesn't have to stay the same. At the start it can grow (*warm-up*), and later it should fall (*decay*), because small
# steps settle where large ones would jump about.

# %%
figures.decays()

# %% [markdown]
# ### Exercise 1 (warm-up): linear scaling with warm-up
#
# Your function will set the learning rate while you train as 128 workers. The training loop calls it before every step, and
# counts the steps from 0. The rate should climb to its peak, `base_lr` times `workers`, in `warmup_steps` equal parts, and
# stay there.
#
# <details><summary>Hint 1: what happens when?</summary>
#
# With 4 warm-up steps, the rate of steps 0, 1, 2, 3, 4, 5 is 1/4, 2/4, 3/4, 4/4, 4/4, 4/4 of the peak. What fraction of the
# peak is it in step number `step`?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# The fraction is `(step + 1) / warmup_steps`, but never more than 1, so use `min(1, …)`. And watch out: `warmup_steps` may be
# 0, and you can't divide by that.
#
# </details><details><summary>Solution</summary>
#
# {solution of learning_rate}
#
# </details>


# %%
def learning_rate(step, base_lr, workers, warmup_steps):
    """The rate in step `step`, counted from 0. It climbs in equal parts, and reaches its peak in step warmup_steps - 1."""
    # <solution>
    share = min(1, (step + 1) / warmup_steps) if warmup_steps else 1
    return base_lr * workers * share
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.learning_rate(learning_rate)

# %% [markdown]
# (Your warm-up starts near zero. Goyal et al. start at the rate of *one worker*. With 128 workers that's 1/128 of the peak, so it
# hardly matters; with 4 workers it's a quarter.)
#
# ## The collapse
#
# Now train `classic` for a few epochs, at a rate of 0.01 times the number of workers and without warm-up. Each run takes ten
# to twenty seconds on two cores. You can watch its curve, and stop it with the button. Start with 16 workers:

# %%
epochs, samples = sizes.epochs, sizes.train_samples or 60_000
network = {"network": "classic", "momentum": 0.5, "nesterov": False, "lr": 0.01, "decay": "none", "warmup_epochs": 0}


def train(workers, **more):
    """Train `classic` live as this many workers; returns the record."""
    options = network | {"emulate_workers": workers, "epochs": epochs, "train_samples": samples} | more
    return team.train(TrainOptions(**options), timeout=10 * sizes.timeout_s)


run_16 = train(16, lr_scaling="linear")

# %% [markdown]
# That goes well. What about 128 workers?

# %%
guess = predict(f"Test accuracy with 128 workers after {epochs} epochs, without warm-up", low=0, high=100, unit="%")
guess

# %%
run_128 = train(128, lr_scaling="linear")

# %%
tested = [100 * epoch["test_accuracy"] for epoch in run_128["epochs"]]
guess.compare(tested[-1] if tested else None)  # none if you pressed Stop before the first test

# %% [markdown]
# An accuracy of about 10 % is what you'd get by guessing among ten digits, and 11.35 % means that the network says "1" to every
# image: 1,135 of the 10,000 test images are ones. If that's where your run ended, it isn't just slow
# to learn. It has *collapsed*, because its steps were too long. (The training accuracy is measured while dropout is at work,
# so it can be lower than the test accuracy.)
#
# ## Why long steps break
#
# *Gradient descent* takes a step against the slope, and hopes that the slope doesn't change much on the way. How fast the slope
# changes is the *curvature*, $\lambda$. In a bowl, whose curvature is the same everywhere, all that counts is the product
# $\eta\lambda$:

# %%
figures.bowl()

# %% [markdown]
# At a rate below $2/\lambda$ the steps lead down into the bowl. Above it, each step lands higher up on the opposite side. With
# momentum $m$ the limit is $2 (1 + m)/\lambda$. (With Nesterov's it's lower, $2 (1 + m)/((1 + 2m)\lambda)$.) A network's loss isn't a bowl, but at every point there's a direction in which
# it curves most, and that curvature can be measured. The next cell does so during four short runs: at the rates that linear
# scaling gives 64 and 128 workers, 0.64 and 1.28, from the start or after a warm-up of 40 steps. (It takes half a minute or so.
# The ranks share the runs, and the batches are those of 16 workers, to save time. What breaks here is the length of the steps.)

# %%
of_ranks = team.run(curvature.follow, 15 if sizes.name == "quick" else 60, timeout=300)
figures.limits({name: run for runs in of_ranks for name, run in runs.items()}, momentum=curvature.MOMENTUM)

# %% [markdown]
# The right panel shows the two runs with warm-up. The thick lines are the limits, and the thin ones are the rates. At first the
# limit is near 1. When the network begins to learn, its curvature grows, and the limit falls far below both peak rates. Steps that
# are too long at that moment throw away what was learned. At 1.28 that can end at the loss of guessing. There the loss is flat, so
# the limit is high, but hardly any gradient is left. That's the collapse.
#
# With warm-up, the rate passes the limit later and by less. At 0.64 the long steps then push the weights to a place where the
# curvature is small enough for them, and from there on the limit stays near the rate (Cohen et al. 2021; Gilmer et al. 2021 describe
# this for warm-up). Does that save 128 workers, too? Train with the schedule that you wrote. This loop does what the
# library does, except that it asks your function for the rate.

# %%
team.push(learning_rate=learning_rate, network=network, epochs=epochs, samples=samples)

# %%
# %%ranks
import numpy as np
import torch
from mpi4py import MPI

from workshop_lib.data import mnist, shard
from workshop_lib.training.backends.mpi import Mpi
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.world import detect

comm, cpu = MPI.COMM_WORLD, torch.device("cpu")
train, test = mnist.load("train"), mnist.load("test", None, comm.rank, comm.size)


def train_with(rate, workers=128, make_optimizer=None):
    """Train `classic` as this many workers, with rate(step), and with the optimizer of make_optimizer if you pass it."""
    learner = Mpi(detect(), cpu).learner(TrainOptions(emulate_workers=workers, **network), train, test)
    if make_optimizer:
        learner.optimizer = make_optimizer(learner.model.parameters())
    step, batch = 0, 64 * workers // comm.size
    for epoch in range(1, epochs + 1):
        for rows, total in shard.epoch_batches(samples, batch, comm.rank, comm.size, seed=1, epoch=epoch):
            learner.step(rows, total, rate(step))  # forward, backward, average, update
            step += 1
        right, tested = comm.allreduce(learner.evaluate()[1:])
        if comm.rank == 0:
            print(f"epoch {epoch}: rate {rate(step - 1):.3g}, {right / tested:.1%} of the test images are right")
    return learner


# %%
# %%ranks --timeout 600
warmup_steps = (epochs - 1) * shard.steps_per_epoch(samples, 64 * 128, 1)
learner = train_with(lambda step: learning_rate(step, 0.01, 128, warmup_steps))

# %% [markdown]
# It learns at first, while the rate is low. But a warm-up to a rate that's too high only puts off the trouble, as the runs of 32
# epochs below show. What else can you change?
#
# - The *peak*: 1.28 is far above the limit.
# - *Momentum* adds up past gradients, so a step is in effect $\eta/(1-m)$ long: twice $\eta$ with 0.5, ten times with 0.9. If you
#   raise it, lower the rate. Why bother? Because the limit on that length rises, from $6/\lambda$ with 0.5 to $14/\lambda$ with
#   Nesterov's 0.9.
# - The *decay*: once the network has learned something, shorter steps keep it.
#
# (Large models also *clip* the norm of the gradient, as in [05](05_ddp.ipynb), which shortens the rare step that's far too long. It
# doesn't replace the right rate.)
#
# ### Exercise 2 (normal): a recipe for 128 workers
#
# Find a recipe with which 128 workers get 80 % of the test images right in four epochs. That's 32 steps. You may set the peak
# rate `lr` (now without any scaling rule), `momentum`, `nesterov`, `decay` (`"none"`, `"linear"`, `"cosine"`, `"polynomial"` …),
# `warmup_epochs`, `optimizer` and `weight_decay`. Each try takes ten to thirty seconds. Expect to need several, and keep a
# note of what each change did.
#
# <details><summary>Hint 1: one thing at a time</summary>
#
# Begin with `{"lr": 0.25, "momentum": 0.9}`, whose steps are in effect as long as with 1.28 and a momentum of 0.5. See how the
# accuracy moves from epoch to epoch, and halve or double the rate.
#
# </details><details><summary>Hint 2: which of the others?</summary>
#
# One epoch of warm-up gets the network past the moment at which its curvature grows. A decay to zero over the whole run lets you
# choose a higher peak.
#
# </details><details><summary>Solution</summary>
#
# `{"lr": 0.2, "momentum": 0.9, "nesterov": True, "warmup_epochs": 1, "decay": "polynomial"}`. Other recipes
# get there, too.
#
# </details>

# %%
recipe = {
    # <solution>
    "lr": 0.2,
    "momentum": 0.9,
    "nesterov": True,
    "warmup_epochs": 1,
    "decay": "polynomial",
    # <stub>
    # "lr": ...,  # your code here
    # "momentum": 0.5,
    # "nesterov": False,
    # "warmup_epochs": 0,
    # "decay": "none",
    # </stub>
    # </solution>
}
run_recipe = check.train_recipe(team, recipe, sizes)
check.recipe(recipe, run_recipe, sizes)

# %% [markdown]
# In a script of your own, it's `LambdaLR(optimizer, lambda step: learning_rate(step, 1, workers, warmup_steps))`, with
# `schedule.step()` after every optimizer step, not after every epoch.
#
# *Beat it:* how far do you get with `"optimizer": "lars"` (rates from 5 to 40; leave out `nesterov`), or with `"lamb"` (0.01 to 0.08;
# leave out `momentum`, too)? *Deeper* below says what they do.
#
# ## What 32 epochs show
#
# A few epochs of 8 steps each aren't much for 128 workers. So here are full runs of 32 epochs, from the records in
# `assets/results`. We read the crosses off a published figure of runs on 128 nodes of a supercomputer, without warm-up.

# %%
full = records.read(ROOT / "assets" / "results" / "large_batch.jsonl")
ends = curves.accuracies(full)
accuracy.worker_curve(full)

# %% [markdown]
# With linear scaling all is well up to 32 workers, but with 256 every run has collapsed. With the square-root rule no run
# collapses, but the steps get too short, and the accuracy falls steadily as you add workers. LARS does well at every number of
# workers. But its runs also have more momentum, a decay, and a tuned rate, so the figure doesn't tell you what LARS itself
# contributes. The *Deeper* section about LARS does, because it gives SGD the same advantages.
#
# At 128 workers the bars are long, because the seeds end far apart. Here are those runs epoch by epoch, above three runs of the
# recipe from the solution of exercise 2, with five epochs of warm-up to the same peak:

# %%
figures.by_epoch(full, workers=128)

# %%
solution = records.read(ROOT / "assets" / "results" / "large_batch_solution.jsonl")
figures.by_epoch(solution, workers=128)

# %% [markdown]
# People say that at 128 workers this network is lost, and that the remedy is to warm up the learning rate. Neither is quite what
# we measured. Without warm-up, two runs guess for a dozen epochs or more, and then begin to learn, with many setbacks. What you'd
# report depends on the seed and on when you stop. And five epochs of warm-up did *no better*: all three runs learn at first, but
# fall back to guessing as the rate nears its peak, and only one of them recovers. At 64 workers warm-up does help. So it moves
# the edge a little, but doesn't remove it. What removes it is a lower peak rate: with the square-root rule's 0.113 and nothing else
# changed, every seed ends above 97 %. Momentum, warm-up and decay add another percent: all three seeds of the lower figure end
# within a few tenths of a percent of each other. The price is the search for that rate, and you pay it again whenever the batch
# changes.
#
# Near the edge, one run proves little. `make -j2 large-batch` trains all of these again, which takes hours.
#
# ## A clinic for recipes
#
# You've just tuned one run by looking at how it went. Here are five more to practice on. Five people come to you with a run that
# doesn't learn well. Each of them did one thing wrong. You
# see the recorded losses of these runs, which had 5,000 images or fewer, next to those of a healthy run with 8 workers.

# %%
patients = check.patients()
figures.clinic(patients)

# %% [markdown]
# ### Exercise 3 (normal): the diagnosis
#
# Each run has one of these problems, and no two runs have the same: `"rate too high"`, `"rate too low"`, `"too few steps"`,
# `"too little data"`, `"too much weight decay"` (every step pulls the weights towards zero). Replace the dots with your
# diagnoses.
#
# <details><summary>Hint 1: where to look</summary>
#
# Compare each panel with the healthy one. Where does the loss end up, how far apart are the two losses, and how long is
# the curve?
#
# </details><details><summary>Hint 2: the two that get stuck</summary>
#
# One run is stuck at the loss of guessing, so one of its steps must have thrown everything away. A second run is stuck well
# below that loss, where learning and something else balance each other.
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
check.diagnoses(diagnoses)

# %% [markdown]
# *Break it:* make the healthy run ill yourself, with `team.train(TrainOptions(**recipes.PATIENTS["healthy"] | {…}))`, and
# ask your neighbor for a diagnosis.
#
# ## Deeper: cure them
#
# ### Exercise 4 (normal): change one thing
#
# Now you may look at the options of each run. Change **one** option per run, so that the network gets at least 90 % of the
# test images right. Any option of `TrainOptions` will do. The five runs then train for real, for a few seconds each.

# %%
check.options()

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# The first line of the table is the healthy run. Where does each of the five differ from it? (D differs in three values, but
# changing one of them is enough.)
#
# </details><details><summary>Hint 2</summary>
#
# `{"lr": 0.2}` changes the learning rate, `{"emulate_workers": 2}` the batch, and so on. There's more than one cure. For
# example, you can also give a run with too few steps more epochs.
#
# </details><details><summary>Solution</summary>
#
# A: `{"weight_decay": 0.0}`, B: `{"emulate_workers": 8}`, C: `{"lr": 0.03}`, D: `{"train_samples": 5000}`, E: `{"lr": 0.03}`.
#
# </details>

# %%
changes = {
    # <solution>
    "A": {"weight_decay": 0.0},
    "B": {"emulate_workers": 8},
    "C": {"lr": 0.03},
    "D": {"train_samples": 5000},
    "E": {"lr": 0.03},
    # <stub>
    # "A": ...,  # your code here
    # "B": ...,
    # "C": ...,
    # "D": ...,
    # "E": ...,
    # </stub>
    # </solution>
}
treated = check.treat(team, changes)
check.changes(changes, treated)

# %%
figures.clinic(patients, treated)

# %% [markdown]
# ## Deeper: one rate for all layers?
#
# Before LARS was invented, its authors looked at a table like this one: the norm of each layer's weights, the norm of their
# gradient, and the ratio of the two.

# %%
model, some = torch_cnn.build(1, "classic").eval(), mnist.load("train")
images = torch_cnn.normalize(torch.tensor(some.images[:256]))
cross_entropy(model(images), torch.tensor(some.labels[:256]).long()).backward()
norms = pd.DataFrame(
    [(name, p.norm().item(), p.grad.norm().item()) for name, p in model.named_parameters()],
    columns=["parameter", "‖w‖", "‖∇w‖"],
)
ratio = norms["‖w‖ / ‖∇w‖"] = norms["‖w‖"] / norms["‖∇w‖"]
print(f"largest ratio / smallest: {ratio.max() / ratio.min():.1f}")
norms.round(3)

# %% [markdown]
# A step of plain SGD moves a layer by $\eta \|\nabla w\|$. Where the ratio is small, that's a large step compared with the
# weights themselves. In the paper's Table 2, for AlexNet, the ratios range from 5.8 to 1,345,
# so this small network is a mild case. LARS, *layer-wise adaptive rate
# scaling* (You et al. 2017), gives each layer its own rate, so that every layer moves by the same fraction of its norm:
#
# $$\lambda = \tau \, \frac{\|w\|}{\|\nabla w\| + \beta \|w\|}, \qquad
# v \leftarrow m v + \eta \, \lambda \, (\nabla w + \beta w), \qquad w \leftarrow w - v$$
#
# $\tau$ is a small *trust coefficient*, and $\beta$ the *weight decay*, which pulls every weight towards zero. In the paper's
# Algorithm 1, $\tau$ is listed among the parameters, but is missing from the line that computes $\lambda$. (We keep the
# paper's letter here. This $\lambda$ has nothing to do with the curvature above.)
#
# ### Exercise 5 (normal): the rate of a layer
#
# Your function is the heart of LARS, and you'll use it to train as 128 workers. It gets the weights and the gradient of one
# layer, and returns the layer's $\lambda$. It's never called for biases, which take plain SGD's step.
#
# <details><summary>Hint 1: the norm</summary>
#
# $\|w\|$ is the square root of the sum of all squares, over the whole tensor, whatever its shape. PyTorch has a method for it.
#
# </details><details><summary>Hint 2: the special case</summary>
#
# Use `weights.norm()` and `gradient.norm()`. If one of them is zero there's no ratio. Then return 1, so that the layer moves
# as in plain SGD.
#
# </details><details><summary>Solution</summary>
#
# {solution of layer_rate}
#
# </details>


# %%
def layer_rate(weights, gradient, trust, weight_decay):
    """The rate λ of one layer, a number; 1 where a norm is zero. Leaves both tensors as they are."""
    # <solution>
    weights_norm, gradient_norm = weights.norm(), gradient.norm()
    if weights_norm == 0 or gradient_norm == 0:
        return 1.0
    return trust * weights_norm / (gradient_norm + weight_decay * weights_norm)
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.layer_rate(layer_rate)

# %% [markdown]
# The rest of LARS is a dozen lines around your function. Together they're a normal PyTorch optimizer, which you can take home.
# The cells below train with it as 16 workers and then as 128. That takes half a minute or so on two cores.

# %%
team.push(layer_rate=layer_rate)


# %%
# %%ranks
class MyLars(torch.optim.Optimizer):
    """Algorithm 1 of the LARS paper, with your layer_rate. Biases take SGD's step."""

    def __init__(self, parameters, momentum=0.9, trust=0.001, weight_decay=0.0005):
        super().__init__(parameters, {"lr": 0.0, "momentum": momentum})
        self.trust, self.weight_decay, self.rates = trust, weight_decay, []

    @torch.no_grad()
    def step(self):
        (group,), rates = self.param_groups, []
        for w in group["params"]:
            update = w.grad
            if w.dim() > 1:
                rates.append(float(layer_rate(w, w.grad, self.trust, self.weight_decay)))
                update = rates[-1] * w.grad.add(w, alpha=self.weight_decay)
            v = self.state[w].setdefault("v", torch.zeros_like(w))
            v.mul_(group["momentum"]).add_(update, alpha=group["lr"])
            w -= v
        self.rates.append(rates)


# %%
# %%ranks --timeout 600
from workshop_lib.training import schedules
from workshop_lib.training.record import weights_sha256


def polynomial(workers, peak):
    """The paper's decay over the whole run, after an epoch of warm-up."""
    per_epoch = shard.steps_per_epoch(samples, 64 * workers, 1)
    return lambda step: schedules.lr_at(step, epochs * per_epoch, peak, per_epoch, "polynomial")


layer_rates, digest = {}, "open"
for workers, peak in ((16, 7.0), (128, 20.0)):
    learner = train_with(polynomial(workers, peak), workers, MyLars)
    layer_rates[f"{workers} workers"] = learner.optimizer.rates
digest = weights_sha256(learner.weights())

# %% [markdown]
# The library's LARS should give the same result. Compare the final accuracy and the digest of the weights. The digests are
# equal if your function rounds the way the library's does.

# %%
lars = {"optimizer": "lars", "lr": 20.0, "momentum": 0.9, "nesterov": True, "decay": "polynomial", "warmup_epochs": 1}
record = train(128, weight_decay=0.0005, **lars)
print("yours:", team.pull("digest")[0][:12], " the library's:", record["weights_sha256"][0][:12])

# %% [markdown]
# Your optimizer recorded the rates that it used. The paper's Figure 2 shows that they depend on the layer, on the batch size,
# and on how far training has come. Do yours? (Until you've solved the exercise, there's nothing to draw.)

# %%
found = team.pull("layer_rates")[0]
figures.layer_rates(found, ["convolution 1", "convolution 2", "linear 1", "linear 2"]) if found else None

# %% [markdown]
# *LAMB* (You et al. 2020) does to Adam's step what LARS does to SGD's. (The options also have LARC, which caps LARS's rate, and
# the blend of RMSProp and SGD with which Akiba et al. (2017) trained ImageNet in 15 minutes.)
#
# How far do SGD, LARS, LAMB and that blend get with 128 workers in 32 epochs? We tried four peak rates for each, with five
# epochs of warm-up, polynomial decay, and momentum 0.9 (`make -j2 large-batch-search`).

# %%
search = records.read(ROOT / "assets" / "results" / "large_batch_search.jsonl")
rows = [(run["what"]["optimizer"], run["what"]["lr"], 100 * run["epochs"][-1]["test_accuracy"]) for run in search]
table = pd.DataFrame(rows, columns=["optimizer", "peak rate", "test accuracy (%)"])
table.set_index(["optimizer", "peak rate"]).round(2)

# %% [markdown]
# With more momentum, a decay and a tuned rate, SGD copes with 128 workers too. But its window of good rates is narrow. At
# twice its best rate SGD gets a fifth of the images wrong, and the blend of RMSProp and SGD ends up guessing. LARS and LAMB
# get further, and for both of them the two highest rates are almost equally good. So you can train with a large batch. But
# whenever you change the batch size you need a new learning rate, and the search for it is part of the price. (Each row is a
# single seed, and picking the best row by its test accuracy flatters it a little.)
#
# Does it take LARS, then? Nado et al. (2021) tuned SGD with Nesterov momentum for ResNet-50, and Adam for BERT, as carefully as
# LARS and LAMB had been tuned, and got the same results at batches of 32,768 and more. So first tune what you have.
#
# For AlexNet with batch normalization, the LARS paper reports 60.2 % at a batch of 512, 60.1 % at 8K, 59.3 % at 16K and 57.8 %
# at 32K.
#
# ## Deeper: what Goyal et al. are careful about
#
# "Scale linearly and warm up" is what everybody remembers from their paper. But it also warns of three pitfalls.
#
# **Weight decay.** SGD with weight decay $\beta$ multiplies every weight by $1 - \eta\beta$ in each step. If nothing else
# changed a weight, how much of it would be left after 90 epochs, with $\beta = 0.0001$ and $\eta = 0.1$ for one worker?

# %%
steps_in_all = 90 * np.ceil(60_000 / (64 * workers))
scaled = {rule: np.array([schedules.scale_lr(0.1, rule, n) for n in workers]) for rule in schedules.SCALINGS}
pd.DataFrame({rule: (1 - rates * 0.0001) ** steps_in_all for rule, rates in scaled.items()}, workers).round(2)

# %% [markdown]
# With the linear rule the decay stays the same, because $N$ workers take $N$ times fewer steps, each at $N$ times the rate. So
# keep $\beta$. With any other rule you've changed the decay without touching $\beta$. That's also why scaling the *loss* isn't
# the same as scaling the rate. A scaled loss leaves the decay's part of the step as it was.
#
# **Batch normalization.** Every worker normalizes with its own images. So the batch *per worker* is part of the recipe, like
# the width of a layer. Keep it at the value that the recipe was tuned for (32 in their paper), and let only the number of
# workers grow. If you emulate many workers with one large batch, you train a different network.
#
# **Momentum.** There are two ways to write momentum, and they agree until the rate changes. In one the rate is outside, with
# $u \leftarrow m u + g$ and a step of $\eta u$. In the other it's inside, with $v \leftarrow m v + \eta g$ and a step of $v$.
# Here the gradient is always 1, and the rate falls from 1 to 0.1 at step 30:

# %%
rates, u, v, corrected = np.where(np.arange(36) < 30, 1.0, 0.1), 0.0, 0.0, 0.0
lengths = []
for step, rate in enumerate(rates):
    u = 0.9 * u + 1
    v = 0.9 * v + rate
    corrected = 0.9 * corrected * rate / rates[max(0, step - 1)] + rate
    lengths.append((rate * u, v, corrected))
pd.DataFrame(lengths, columns=["outside", "inside", "inside, corrected"])[28:].round(2)

# %% [markdown]
# With the rate inside, the velocity was built up at the old rate. Most of it takes some twenty steps to fade, and until then
# the steps are too long. During warm-up they're too short instead. The paper's *momentum correction* fixes both by multiplying
# $v$ by $\eta_\text{new}/\eta_\text{old}$. PyTorch's SGD has the rate outside and doesn't need
# it. Keras's SGD and the LARS paper have it inside.
#
# ## Deeper: which optimizer, as the batch grows?
#
# Common advice: as long as the batch is moderate, keep the optimizer that you'd use on one node. Adam works without much tuning;
# SGD with momentum may get the best result in the end, but it's harder to tune. And Shallue et al. (2019) found that momentum
# doesn't help at small batches, but extends perfect scaling to larger ones.
#
# Which rate to start with depends on the optimizer, too. These are common values for one worker:

# %%
pd.Series(schedules.STARTING_LR, name="learning rate of one worker").to_frame()

# %% [markdown]
# The next table shows the test accuracy after four epochs on a fifth of MNIST, with 4 and 32 workers. Each entry is the mean of
# three seeds, followed by the worst and the best. All runs have an epoch of warm-up and a linear decay, unless the name says
# otherwise. With 32 workers, we tried two rates each for SGD and Adam, and didn't search for better ones. (You can make the
# records again with `make large-batch-recipes`, in about five minutes on one core.)

# %%
kept = records.read(ROOT / "assets" / "results" / "large_batch_recipes.jsonl")
names = ["SGD", "SGD, twice that rate", "SGD without momentum", "SGD without decay"]
recipes.table(recipes.of(kept, *names, "Adam", "Adam, square-root rule", "Adam, linear rule"))

# %% [markdown]
# Some of the claims hold here, and some don't:
#
# - *Momentum* makes hardly any difference with 4 workers, but with 32, SGD without it falls behind. That agrees with Shallue
#   et al., although it's a weak test. Without momentum we tried only one rate, 0.5, for 4 workers and for 32.
# - *Adam* is a little behind SGD with 4 workers and ahead with 32, at both rates. At twice its rate, SGD collapses with one
#   seed and does badly with the other two. So "Adam first" is good advice when you can't afford a search. To get the best out
#   of SGD, you need one.
# - *The square root* isn't the better rule for Adam here; the linear rule is slightly ahead. The theory is about runs with
#   many steps, whose noise should stay the same. These runs have only 24 steps, and whichever rule goes further wins. (We scaled
#   the rate alone. The rule of Malladi et al. (2022) also moves $\beta_1$ and $\beta_2$ away from 1 and scales $\epsilon$.)
# - *Decay* costs accuracy here, for the same reason. When there are this few steps, decay only makes them shorter.
#
# Three more things to know before you change the batch of a large model. AdamW's decay multiplies the weights by $1 - \eta\beta$,
# so with a rate that grows like $\sqrt N$ and $N$ times fewer steps, all steps together decay the weights less. Language models
# often begin with a small batch and let it grow (*batch warm-up*), because early gradients agree with each other. And *μP* (Yang
# et al. 2021) scales rates by the *width* of the network, so that a rate found on a small network holds for a large one; it says
# nothing about the batch.
#
# ## Deeper: let the rate fall, or the batch grow?
#
# Towards the end of training you lower the rate, so that the steps get less noisy. But a larger batch makes them less noisy,
# too. So Smith et al. (2018) suggest that wherever your schedule divides the rate by some factor, you *multiply the batch* by
# that factor instead. Plotted against epochs, the curve stays the same. But you take far fewer steps, and the larger batches
# keep more workers busy. That's how they
# trained ResNet-50 on ImageNet to 76.1 % in under 30 minutes, on a TPU pod.
#
# Here are three ways to spend four epochs. The first keeps the rate constant. The second divides the rate by 4 after two
# epochs, and again after three. The third leaves the rate alone, and grows the batch at those points instead, from 2 workers
# to 8 and then to 32.

# %%
phases = recipes.of(kept, recipes.CONSTANT, recipes.DECAYED, recipes.GROWN)
figures.phases(phases)

# %%
recipes.table(phases)

# %% [markdown]
# The growing batch ends within a tenth of a percent or two of the falling rate, after little more than half as many steps. So
# the claim holds here. But the constant rate ends up there as well. Noise wasn't what limited these runs, so they're a weak
# test of the claim. *Try it:* train with phases of your choice, with
# `recipes.train(recipes.Recipe("mine", [{…}, {…}]), seed=1)`.
#
# ## Deeper: Muon, beyond the critical batch
#
# The gradient of a weight matrix has a few strong directions, and a step mostly follows those.
# *Muon* (Jordan et al. 2024) takes the momentum of a
# layer and makes it orthogonal, so that a step has the same length in all directions. PyTorch has it as `torch.optim.Muon`,
# which takes only matrices. Shah et al. (2025) report that it keeps its data efficiency at large batches, far
# beyond the *critical batch*, where doubling the workers saves hardly any steps ([07b](07b_gradient_noise.ipynb) measures
# that). Here's what making a matrix orthogonal does to its directions:

# %%
matrix = torch.randn(50, 320, generator=torch.Generator().manual_seed(1)) @ torch.diag(torch.linspace(1, 0.01, 320))
for name, each in (("before", matrix / matrix.norm()), ("after", optimizers.orthogonal(matrix))):
    values = torch.linalg.svdvals(each)
    print(f"{name}: the strongest direction {values.max():.2f}, the weakest {values.min():.2f}")

# %%
names = ["SGD", "SGD, twice that rate", "Adam", "Adam, square-root rule", "Adam, linear rule"]
recipes.table(recipes.of(kept, *names, "Muon", "Muon, twice that rate"))

# %% [markdown]
# With 4 workers Muon is slightly ahead. With 32, the batch of 2,048 is far above the critical one, and the result depends on
# the rate. At the lower rate Muon is slightly better than SGD, and at twice that rate it loses less accuracy than any other
# recipe. So you can see what the paper claims even in this small network, in 24 steps. But Muon has its price. It needs whole
# matrices, so sharded training (`fsdp`) can't use this version, and each step costs a few extra matrix products.
#
# ## Deeper: what a large batch costs even when nothing breaks
#
# Keskar et al. (2017) found that networks trained with large batches often *generalize* worse: on the training images they do
# as well as networks trained with small batches, but on new images they do worse. Here are both accuracies of the LARS runs
# from the figure of 32 epochs, because LARS trained well at every batch size:

# %%
columns = {"train_accuracy": "training accuracy (%)", "test_accuracy": "test accuracy (%)"}
lars_ends = ends[ends["recipe"].str.startswith("LARS")].rename(columns=columns)
lars_ends.groupby("workers")[[*columns.values()]].mean().round(2)

# %% [markdown]
# The training accuracy is lower throughout, because it's measured with dropout. What counts is how the two move. Where both
# fall, the network has simply learned less, because with a larger batch it takes fewer steps in the same number of epochs.
# That's what happens here. From 8 to 256 workers the training accuracy falls more than the test accuracy. With a
# generalization gap, the test accuracy would fall more. Researchers disagree about how much of that gap remains once you allow
# for the missing steps. With the same number of *steps*, and a rate chosen for each batch, much of it goes away (Hoffer
# et al. 2017; Shallue et al. 2019).
#
# (A larger batch is sometimes said to smooth the loss landscape. The landscape doesn't depend on the batch. A larger batch shows it
# to you with less noise, and Keskar et al. found that training then ends in *sharper* minima.)
#
# ## Deeper: how much data?
#
# More workers only pay off if there's enough data to learn from. How much is enough? No rule of thumb tells you, but a *learning
# curve* does: train for the same number of steps on larger and larger parts of your data, and see whether the accuracy still
# climbs. Do it on one node, and scale out once the model no longer changes. (The next cell trains four times, in half a minute or
# so altogether.)

# %%
steps = 20 if sizes.name == "quick" else 200
for count in (1000, 4000, 16_000, 60_000) if samples == 60_000 else (500, 2000):
    options = TrainOptions(
        train_samples=count, epochs=-(-steps * 128 // count), max_steps=steps, batch_size=128 // team.n
    )
    record = team.train(options, timeout=sizes.timeout_s, show=False)
    last = record["epochs"][-1]
    print(f"{count:6,} images: {last['train_accuracy']:.1%} right in training, {last['test_accuracy']:.1%} in the test")

# %% [markdown]
# More data would close the gap between the two accuracies. If you can't get more, make some. Run more simulations, or
# *augment* your data, with changes that leave the answer as it is (flips, crops, rotations, noise).
#
# ## Remember
#
# - More workers mean fewer steps in an epoch. Longer steps make up for that, up to a limit that the curvature sets.
# - Warm-up helps early on, when the curvature jumps up as the network begins to learn. It doesn't remove the limit, and at 128
#   workers the runs here did no better with it.
# - What works is a peak rate that was searched for at *this* batch. Momentum, warm-up and decay then add a little.
# - Read the curves: stuck at guessing, too slow, too short, or a gap between training and test. Change one thing at a time.
# - Look at the accuracy, not only at samples per second. The collapsed runs were as fast as the healthy ones.
#
# **Sources.** P. Goyal et al. 2017, arXiv:1706.02677 (linear scaling, warm-up, and what to be careful about). A. Krizhevsky 2014,
# arXiv:1404.5997 (square root). S. Malladi et al. 2022, arXiv:2205.10287 (square-root rule for Adam). D. Kingma and J. Ba 2015,
# arXiv:1412.6980 (Adam). Y. You et al. 2017, arXiv:1708.03888 (LARS, with code at github.com/borisgin/nvcaffe-0.16), and 2020,
# arXiv:1904.00962 (LAMB). T. Akiba et al. 2017, arXiv:1711.04325 (RMSProp to SGD). J. Cohen et al. 2021, arXiv:2103.00065, and
# J. Gilmer et al. 2021, arXiv:2110.04369 (curvature and the longest stable step). S. Smith et al. 2018, arXiv:1711.00489 (growing
# the batch). C. Shallue et al. 2019, arXiv:1811.03600 (momentum, and generalization). K. Jordan et al. 2024,
# kellerjordan.github.io/posts/muon, and I. Shah et al. 2025, arXiv:2505.02222 (Muon). N. Keskar et al. 2017, arXiv:1609.04836, and
# E. Hoffer et al. 2017, arXiv:1705.08741 (generalization). Z. Nado et al. 2021, arXiv:2102.06356 (tuned SGD and Adam against LARS and
# LAMB). G. Yang et al. 2021, arXiv:2203.03466 (μP). H. Robbins and S. Monro 1951 and I. Loshchilov and F. Hutter 2016,
# arXiv:1608.03983 (decays). The published figure: Theta hands-on of Argonne's distributed deep learning tutorial.

# %%
ranks.stop()
