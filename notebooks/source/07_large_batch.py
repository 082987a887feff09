# %% [markdown]
# # Large batches: what breaks, and what repairs it
#
# **You will** see a training that works on 16 workers fail on 128, find out why, try what repairs it, write the learning-rate
# rule and the layer-wise rate of LARS yourself, and see what a larger batch costs even where nothing breaks.
#
# **Time** about 50 minutes. **Needs** two cores; no GPU, no network. Notebook [02](02_synchronous_sgd.ipynb) first. What the
# noise of gradients has to do with it, and where larger batches stop helping, is in
# [07b_gradient_noise](07b_gradient_noise.ipynb).

# %%
import numpy as np
import pandas as pd
import torch
from IPython.display import display
from matplotlib.lines import Line2D
from torch.nn.functional import cross_entropy

from workshop_lib import ranks
from workshop_lib.data import mnist
from workshop_lib.exercises import large_batch as check
from workshop_lib.models import torch_cnn
from workshop_lib.notebook import figures, profile
from workshop_lib.notebook.figures.accuracy import worker_curve
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import ROOT
from workshop_lib.scaling import records
from workshop_lib.scaling.curves import accuracies, recipe
from workshop_lib.training import optimizers, schedules
from workshop_lib.training.equivalence import largest_relative_difference, weights
from workshop_lib.training.options import TrainOptions

torch.set_num_threads(1)
sizes = profile.current()
team = ranks.start(sizes.ranks)
team

# %% [markdown]
# ## More workers, fewer steps
#
# In data-parallel training a worker is a rank with a batch of its own, here $B = 64$ images. $N$ workers take one step on the
# *global batch* of $N B$ images. An *epoch*, one pass over the 60,000 images, is then:

# %%
workers = np.array([1, 4, 8, 16, 32, 64, 128, 256])
pd.DataFrame({"global batch": 64 * workers, "steps in an epoch": np.ceil(60_000 / (64 * workers)).astype(int)}, workers)

# %% [markdown]
# With 128 workers the weights are changed 8 times in an epoch, where one worker changes them 938 times. If each step is as long
# as before, the network gets nowhere. So the steps must be longer, and that is where the trouble begins.
#
# ## 128 workers on two cores
#
# For the arithmetic it does not matter where the samples of a batch are. The mean gradient of 128 shards of 64 images is the
# gradient of one batch of 8,192 images (notebook 02). So a few ranks can *emulate* many workers: same global batch, same
# learning rate, same number of steps, and, where the network draws random numbers, each worker's own. What cannot be
# emulated is the time.
#
# Check it: 4 workers on your ranks, and 4 workers on a single process.

# %%
network = {"network": "classic", "momentum": 0.5, "nesterov": False, "decay": "none"}
same = {"emulate_workers": 4, "epochs": 1, "train_samples": 64 * 4 * 10, **network}


def both_ways(folder):
    """Train 4 workers on all ranks, then on rank 0 alone."""
    from workshop_lib.training import trainer
    from workshop_lib.training.backends.pytorch import TorchBackend
    from workshop_lib.training.world import World, detect

    together = trainer.train(TrainOptions(checkpoint=f"{folder}/together.pt", **same))
    if detect().rank == 0:
        alone = TorchBackend(World(0, 1, 0, "single"), torch.device("cpu"))
        trainer.train(TrainOptions(checkpoint=f"{folder}/alone.pt", **same), backend=alone)
    return together["what"]["global_batch"]


folder = ROOT / "build" / "07_large_batch"
folder.mkdir(parents=True, exist_ok=True)
batch = team.run(both_ways, str(folder), timeout=sizes.timeout_s, show=False)[0]
apart = largest_relative_difference(weights(folder / "together.pt"), weights(folder / "alone.pt"))
print(f"global batch {batch}, 10 steps: the weights differ by {apart:.1e} of their size")

# %% [markdown]
# What is left is rounding, which max-pooling enlarges: of two nearly equal values it passes on the larger, and rounding may decide
# which. (In double precision, the difference is below $10^{-11}$; a test sees to that, for 2, 4 and 8 workers.) `classic` is the
# network of the MNIST examples of 2017, with which the figure below was once measured on 128 nodes; it has dropout, and each
# emulated worker draws its own.
#
# ## How long should a step be?
#
# Three rules for $N$ workers, when $\eta$ is the learning rate that suits one:
#
# - *not scaled*, $\eta$: safe, and slow;
# - *linear*, $N\eta$: one step on $N$ batches goes as far as $N$ steps on one batch each, if the gradient hardly changes
#   on the way (Goyal et al. 2017);
# - *square root*, $\sqrt N\,\eta$: gradients differ from batch to batch, and that is their *noise*. In the mean of $N$ batches its
#   standard deviation is $\sqrt N$ times smaller; a rate $\sqrt N$ times larger makes the noise of a step as large as it was
#   (Krizhevsky 2014).
#
# Where to start with one worker depends on the optimizer. These are common starting points:

# %%
display(pd.Series(schedules.STARTING_LR, name="learning rate").to_frame())
print("SGD, for N workers:")
rules = {rule: [schedules.scale_lr(0.01, rule, n) for n in workers] for rule in schedules.SCALINGS}
pd.DataFrame(rules, workers).round(3)

# %% [markdown]
# The rate need not be the same all the time. At the start it can grow (*warm-up*), and later it should fall (*decay*): small
# steps at the end settle where large ones would jump about.

# %%
figure = figures.new_figure("The learning rate over 10 epochs, as a share of its peak", "the first 2 epochs are warm-up")
left, right = figure.subplots(1, 2)
at = np.linspace(0, 10, 201)[:-1]
handles = []
for index, decay in enumerate(schedules.DECAYS):
    style = figures.Style.number(index)
    rates = [schedules.lr_at(step, 200, 1.0, 40, decay) for step in range(200)]
    for axes in (left, right):
        axes.plot(at, rates, color=style.colour, linestyle=style.line, linewidth=2)
    handles.append(figures.handle_of(decay, style))
    handles[-1].set_marker("")
constant = {"color": figures.GREY, "linewidth": 3, "alpha": 0.6}
rates = [schedules.lr_at(step, 200, 1.0, 40, warmup_lr=1 / 8) for step in range(41)]
for axes in (left, right):
    axes.plot(at[:41], rates, **constant)
handles.append(Line2D([], [], **constant, label="constant warm-up at 1/8 of the peak"))
right.set_yscale("log")
for axes in (left, right):
    axes.set_xlabel("epoch")
    axes.set_ylabel("learning rate / peak")
figures.draw_legend(figure, *figures.in_columns(handles))
figure

# %% [markdown]
# Where $t$ goes from 0 to 1 after the warm-up: *linear* is $1 - t$; *step* falls to a tenth at a third, two thirds and eight ninths
# of the way, which is after 30, 60 and 80 of 90 epochs (Goyal et al. 2017); *polynomial* is $(1 - t)^2$ (You et al. 2017);
# *exponential* falls by the same factor in every step, to a hundredth; *inverse* falls as one over the number of steps,
# $1 / (1 + 99\,t)$ (Robbins and Monro 1951); *cosine* is half a wave (Loshchilov and Hutter 2016).
#
# ## Exercise 1: linear scaling with warm-up
#
# `learning_rate` is called before every step (the first is step 0). The peak is `base_lr` times `workers`. With warm-up over
# `warmup_steps` steps, the rate climbs to it in `warmup_steps` equal parts: in step 0 it is one such part, in step
# `warmup_steps - 1` the whole peak. From there on it stays. `warmup_steps` may be 0.


# %%
def learning_rate(step, base_lr, workers, warmup_steps):
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
# ## The collapse
#
# Now train `classic`, with a learning rate of 0.01 times the workers and no warm-up, for a few epochs. With 16 workers all is well.
# What will the test accuracy be with 128?

# %%
epochs, warmup_epochs = sizes.epochs, sizes.epochs - 1
guess = predict(f"Test accuracy with 128 workers after {epochs} epochs, without warm-up", low=0, high=100, unit="%")
guess


# %%
def train(workers, warmup_epochs=0, lr=0.01, lr_scaling="linear", **more):
    """Train `classic` as so many workers; returns the record."""
    options = network | {"lr": lr, "lr_scaling": lr_scaling, "epochs": epochs, "warmup_epochs": warmup_epochs}
    options |= {"emulate_workers": workers, "train_samples": sizes.train_samples, **more}
    return team.train(TrainOptions(**options), timeout=10 * sizes.timeout_s, show=False)


def last_epochs(runs):
    """What the runs have come to, in %."""
    ends = {name: run["epochs"][-1] for name, run in runs.items()}
    columns = {"training accuracy (%)": "train_accuracy", "test accuracy (%)": "test_accuracy"}
    return pd.DataFrame({title: {k: 100 * end[name] for k, end in ends.items()} for title, name in columns.items()}).round(1)


runs = {
    "16 workers, linear": train(16),
    "128 workers, linear": train(128),
    f"128 workers, linear, warm-up (epochs: {warmup_epochs})": train(128, warmup_epochs),
    "128 workers, square root": train(128, lr_scaling="sqrt"),
}
last_epochs(runs)

# %%
guess.compare(100 * runs["128 workers, linear"]["epochs"][-1]["test_accuracy"])

# %% [markdown]
# About 10 % is what guessing one of ten digits gives. The training has not become slower; it has *collapsed*: the steps were too
# long. Shorter ones, as the square root gives them, avoid that, but are they long enough?
#
# (Training accuracy is measured on the way, with dropout at work, so it can lie below that of the test.) A few epochs are little
# for 128 workers, 8 steps each. Here is the figure from runs over 32 epochs, drawn from the records in `assets/results`. The
# crosses are read off the figure that was published for 8 to 256 ranks, without warm-up.

# %%
full = records.read(ROOT / "assets" / "results" / "large_batch.jsonl")
ends = accuracies(full)
worker_curve(full)

# %% [markdown]
# With linear scaling all is well up to 32 workers, and with 256 every run collapsed. Five epochs of warm-up help at 64 workers
# and do not move the edge far. With the square root no run collapses, but the steps become too short: its accuracy falls
# steadily. LARS trains at every number of workers; but its runs also have a momentum of 0.9, a decay, and a rate that was
# searched for, so what is its own doing is asked below. At 128 the bars are long. These are the same runs, epoch by epoch:

# %%
figure = figures.new_figure("128 workers, epoch by epoch", "each seed a line")
axes = figure.subplots()
names, handles = list(ends["recipe"].unique()), {}
for run in (run for run in full if run["what"]["emulate_workers"] == 128):
    name = recipe(run["what"])
    style = figures.Style.number(names.index(name))
    by_epoch = [100 * epoch["test_accuracy"] for epoch in run["epochs"]]
    axes.plot(range(1, len(by_epoch) + 1), by_epoch, color=style.colour, linestyle=style.line, linewidth=2)
    handles[name] = figures.handle_of(name, style)
    handles[name].set_marker("")
axes.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(0, 103))
figures.draw_legend(figure, *figures.in_columns(list(handles.values())))
figure

# %% [markdown]
# A collapse need not be the end, nor come at once. Without warm-up the first steps are the dangerous ones: most runs guess for a
# dozen epochs before they learn anything, and then rise with many falls. With it all learn first, fall back to guessing in epoch
# 4 or 5, as the rate nears its peak, and few get up again. Where one is after 32 epochs is a matter of luck: one run proves
# little near the edge.
#
# `make -j2 large-batch` trains all these runs again, which takes hours on two cores; the two linear curves of one seed take less
# than 25 minutes (`make -j2 large-batch-linear large-batch-warmup SEEDS=1`). *Try it:* leave LARS out of the figure. Which recipe
# is best at 32 workers, and is the same best at 256?
#
# ## Where long steps break
#
# A step of *gradient descent* with learning rate $\eta$ goes downhill as long as the slope does not change much on the way.
# How fast the slope changes is the *curvature*. Along a direction with curvature $\lambda$, plain gradient descent
# overshoots to the other side and climbs higher each time if $\eta > 2/\lambda$, and with momentum $m$ if
# $\eta > 2 (1 + m)/\lambda$. The largest curvature can be measured: multiply a random vector again and again by the matrix of
# second derivatives, which PyTorch does without ever building the matrix (*power iteration*). Call the bound for the largest
# $\lambda$ the *limit*.
#
# Linear scaling gives 64 workers a rate of 0.64 and 128 workers 1.28. Four short trainings, at once at these rates or after a
# warm-up of 40 steps, which 128 workers have in five epochs. (With batches of 1,024, to save time; each rank takes its share of the
# four.)

# %%
team.push(steps=15 if sizes.name == "quick" else 60)

# %%
# %%ranks --timeout 300
import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from workshop_lib.data import mnist
from workshop_lib.models import torch_cnn
from workshop_lib.models.dropout import WorkerDraws
from workshop_lib.training import schedules

comm = MPI.COMM_WORLD
train = mnist.load("train")


def samples(rows):
    return torch_cnn.normalise(torch.tensor(train.images[rows])), torch.tensor(train.labels[rows]).long()


few = samples(slice(256))


def loss_and_sharpness(model, rounds=10):
    """The mean loss of these few images, its largest curvature and its gradient's norm, without dropout."""
    images, labels = few
    model.eval()
    parameters = list(model.parameters())
    loss = cross_entropy(model(images), labels)
    slopes = torch.autograd.grad(loss, parameters, create_graph=True)
    generator = torch.Generator().manual_seed(1)
    vector = [torch.randn(p.shape, generator=generator) for p in parameters]
    for _ in range(rounds):
        length = torch.sqrt(sum((v**2).sum() for v in vector))
        vector = [v / length for v in vector]
        along = sum((s * v).sum() for s, v in zip(slopes, vector, strict=True))
        times = torch.autograd.grad(along, parameters, retain_graph=True)
        curvature = sum((t * v).sum() for t, v in zip(times, vector, strict=True))
        vector = times
    return loss.item(), curvature.item(), torch.sqrt(sum((s**2).sum() for s in slopes)).item()


def followed(peak, warmup_steps, batch=1024):
    """Loss, curvature and gradient norm after every fifth step, and the rate of that step."""
    model = torch_cnn.build(1, "classic")
    draws = WorkerDraws(model, 1, 1, 0, 1, torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.5)
    rows = torch.randperm(train.total, generator=torch.Generator().manual_seed(1)).numpy()
    found = []
    for step in range(steps + 1):
        rate = optimizer.param_groups[0]["lr"] = schedules.lr_at(step, steps, peak, warmup_steps)
        if step % 5 == 0:
            found.append((step, rate, *loss_and_sharpness(model)))
        images, labels = samples(rows[batch * step % train.total :][:batch])
        model.train()
        draws.prepare(len(images))
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    return found


recipes = {
    "0.64 at once": (0.64, 0),
    "1.28 at once": (1.28, 0),
    "0.64 after warm-up": (0.64, 40),
    "1.28 after warm-up": (1.28, 40),
}
mine = list(recipes)[comm.rank :: comm.size]
found = {name: followed(*recipes[name]) for name in mine}

# %%
found = {name: run for of_rank in team.pull("found") for name, run in of_rank.items()}
figure = figures.new_figure("Loss and limit", "momentum 0.5; right, thick: the longest stable rate, the limit; thin: the rate")
left, right = figure.subplots(1, 2)
handles = []
for index, name in enumerate(sorted(found)):
    step, rate, loss, curvature, gradient = np.array(found[name]).T
    style = figures.Style.number(index)
    look = {"color": style.colour, "linestyle": style.line}
    left.plot(step, loss, marker=style.marker, linewidth=2, **look)
    if "after" in name:
        limit = np.where(curvature > 0.1, 2 * 1.5 / np.maximum(curvature, 0.1), np.nan)
        right.plot(step, limit, marker=style.marker, linewidth=2, **look)
        right.plot(step, rate, linewidth=1, **look)
    handles.append(figures.handle_of(name, style))
    print(f"{name}: after {step[-1]:.0f} steps, loss {loss[-1]:.2f}, norm of the gradient {gradient[-1]:.3f}")
left.axhline(np.log(10), **figures.LEVEL)
left.set(xlabel="step", ylabel="loss (dotted: guessing)")
right.set(xlabel="step", ylabel="learning rate", yscale="log")
figures.draw_legend(figure, *figures.in_columns(handles))
figure

# %% [markdown]
# On the right, for the two runs with warm-up, the thick lines are the limit and the thin ones the rate. The limit is near 1 at
# first, and rises while little is learned; when the network begins to learn, its curvature grows, and the limit falls far below
# both peak rates. At once at 0.64, the steps are too long there, and a good start is lost. After a warm-up the rate passes the
# limit later and by less: the loss jumps, the steps themselves drive the weights to where the curvature is small enough for them,
# and from then on the limit stays near the rate or above it (Cohen et al. 2021; Gilmer et al. 2021 say so of warm-up). With 1.28
# at once the first overshoot ends where the loss is that of guessing and hardly any gradient is left, as its norm above shows:
# that is the collapse. With warm-up, 1.28 loses its start too, only later; here it recovers, but over the 32 epochs above not
# every run did.
#
# (The limit is that of a fixed bowl, and measured without dropout: a guide and no law.)
#
# ## One rate for all layers?
#
# The layers of a network need not be alike. LARS, *layer-wise adaptive rate scaling* (You et al. 2017), was made after a look at
# a table like this one: for each layer the norm of the weights, the norm of their gradient, and the ratio.

# %%
model, some = torch_cnn.build(1, "classic").eval(), mnist.load("train")
images = torch_cnn.normalise(torch.tensor(some.images[:256]))
cross_entropy(model(images), torch.tensor(some.labels[:256]).long()).backward()
norms = []
for name, p in model.named_parameters():
    layer, kind = name.split(".")
    norms.append((f"{layer} {type(model[int(layer)]).__name__} {kind}", p.norm().item(), p.grad.norm().item()))
norms = pd.DataFrame(norms, columns=["layer", "‖w‖", "‖∇w‖"])
ratio = norms["‖w‖ / ‖∇w‖"] = norms["‖w‖"] / norms["‖∇w‖"]
print(f"largest ratio / smallest: {ratio.max() / ratio.min():.1f}")
norms.round(3)

# %% [markdown]
# In a step of plain SGD, a layer moves by $\eta \|\nabla w\|$. Where the ratio is small, that is a large part of its weights. In
# the paper's Table 2, of AlexNet, the ratios go from 5.8 to 1,345; this small network is a mild case. LARS gives each layer a
# rate of its own, such that it moves by the same part of its norm:
#
# $$\lambda = \tau \, \frac{\|w\|}{\|\nabla w\|}, \qquad \Delta w = - \eta \, \lambda \, \nabla w$$
#
# with a small *trust coefficient* $\tau$: with $\tau = 0.001$, as here, $\eta = 20$ and no momentum, a step moves the weights of
# each layer by 2 % of their norm. Biases are left out in the library: they take plain SGD's step, with rate $\eta$. ($\lambda$ is
# the paper's letter; it is not the curvature above.)
#
# ## Exercise 2: the rate of a layer
#
# Return $\lambda$ for the weights and the gradient of one layer. The norm is that of all their numbers, as in
# `tensor.norm()`. Where one of the norms is zero there is no ratio: return 1.


# %%
def layer_rate(weights, gradient, trust):
    # <solution>
    weights_norm, gradient_norm = weights.norm(), gradient.norm()
    if weights_norm == 0 or gradient_norm == 0:
        return 1.0
    return trust * weights_norm / gradient_norm
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
check.layer_rate(layer_rate)

# %% [markdown]
# In *LARC* the rate of a layer is $\min(\lambda, \eta)$ instead of $\eta\lambda$: no layer takes a longer step than plain SGD
# would. *LAMB* (You et al. 2020) does to Adam's step what LARS does to that of SGD. All three are in
# `workshop_lib.training.optimizers`, about twenty lines each, and are options of every run: `TrainOptions(optimizer="lars")` or
# `--optimizer lars`.
#
# Two optimizers for two phases were the recipe that trained ImageNet in 15 minutes (Akiba et al. 2017): RMSProp, which
# scales each weight's step by the size of its recent gradients and so survives the start, and a smooth change to SGD, which
# ends better. `rmsprop-sgd` does that over the warm-up:

# %%
share = [optimizers.sgd_share(step, 100) for step in range(0, 101, 10)]
print("share of SGD over the warm-up:", " ".join(f"{a:.2f}" for a in share))

# %%
more = {"nesterov": True, "warmup_epochs": warmup_epochs, "lr_scaling": "none"}
others = {
    "128 workers, LARS": train(128, optimizer="lars", lr=20.0, momentum=0.9, decay="polynomial", **more),
    "128 workers, LAMB": train(128, optimizer="lamb", lr=0.03, momentum=None, decay="linear", **more),
    "128 workers, RMSProp, then SGD": train(128, optimizer="rmsprop-sgd", lr=0.2, momentum=0.9, **more),
}
last_epochs(runs | others)

# %% [markdown]
# This is no ranking: rate, decay and momentum differ from row to row, and 128 workers have only a few steps here. It shows that
# none of the three collapses. Given 32 epochs, how far can they come? Here is a search: four peak rates for each optimizer, five
# epochs of warm-up, polynomial decay; momentum 0.9, SGD's being Nesterov's, and LAMB with Adam's averages (`make -j2
# large-batch-search`).

# %%
search = records.read(ROOT / "assets" / "results" / "large_batch_search.jsonl")
rows = [(run["what"]["optimizer"], run["what"]["lr"], 100 * run["epochs"][-1]["test_accuracy"]) for run in search]
table = pd.DataFrame(rows, columns=["optimizer", "peak rate", "test accuracy (%)"])
table.set_index(["optimizer", "peak rate"]).round(2)

# %% [markdown]
# SGD trains 128 workers too, with momentum 0.9, a decay and a tuned rate. The table does not say which of them helps most, but
# momentum can: in the long run a gradient moves the weights by $\eta / (1 - m)$, which is 4 for a rate of 0.4 with momentum 0.9,
# and 2.56 for the 1.28 with 0.5 that collapsed; and yet 0.4 is further below its limit. (That of Nesterov's momentum is $2 (1 +
# m) / ((1 + 2 m) \lambda)$: $1.36 / \lambda$ here, against $3 / \lambda$ for the runs that collapsed.) SGD's window is narrow: at
# twice its best rate it loses, and RMSProp before SGD, whose best is a little higher, ends at guessing. LARS and LAMB come
# further still, and their two highest rates are nearly as good as each other; higher ones were not tried.
#
# So a large batch can be trained, but each change of the batch asks for another learning rate, and the search for it is part of
# the price.
#
# (Each is one seed, and the best is chosen by test accuracy, which flatters it a little. LARS at 20 is the recipe of the figure
# above, $1.75 \sqrt{128} \approx 20$, and has more seeds there.)
#
# ## What a large batch costs even when nothing breaks
#
# Keskar et al. (2017) found that networks trained with large batches often *generalise* worse: as good as others on the
# training images, they are worse on images they have not seen. From the records of the figure above, the two accuracies with
# LARS, which trained at every batch:

# %%
columns = {"train_accuracy": "training accuracy (%)", "test_accuracy": "test accuracy (%)"}
lars = ends[ends["recipe"].str.startswith("LARS")].rename(columns=columns)
lars.groupby("workers")[[*columns.values()]].mean().round(2)

# %% [markdown]
# Training accuracy lies lower throughout: it is measured with dropout. What counts is how the two move. Where both fall, the
# network has simply learned less: with the same number of epochs a large batch takes fewer steps. That is what happens here: from
# 8 to 256 workers the training accuracy falls more than the test accuracy. A gap in generalisation would be the other way round:
# training goes on well, and the test falls behind. How much of it there is beyond the lack of steps is disputed: with as many
# *steps*, and a rate chosen for each batch, much of it goes away (Hoffer et al. 2017; Shallue et al. 2019). How many steps that
# takes is the question of [07b](07b_gradient_noise.ipynb).
#
# ## Remember
#
# - More workers mean fewer steps an epoch; longer steps make up for it, up to a limit.
# - A rate is too high where the curvature is too large for it, and that is soon after the start. Warm-up helps over this place;
#   it does not remove the limit.
# - LARS and LAMB set each layer's step by the norm of its weights. They come further here, and need a search as well.
# - Look at the accuracy, not only at samples/s. The collapsed runs were as fast as the others.
#
# ## Sources
#
# Goyal et al. 2017, arXiv:1706.02677 (linear scaling, warm-up). Krizhevsky 2014, arXiv:1404.5997 (square root). You, Gitman and
# Ginsburg 2017, arXiv:1708.03888 (LARS, Algorithm 1 and Table 2). You et al. 2020, arXiv:1904.00962 (LAMB). Akiba, Suzuki and
# Fukuda 2017, arXiv:1711.04325 (RMSProp to SGD). Cohen et al. 2021, arXiv:2103.00065, and Gilmer et al. 2021, arXiv:2110.04369
# (curvature and the longest stable step). Robbins and Monro 1951 (Annals of Mathematical Statistics 22) and Loshchilov and Hutter
# 2016, arXiv:1608.03983 (decays). Keskar et al. 2017, arXiv:1609.04836; Hoffer et al. 2017, arXiv:1705.08741; Shallue et al.
# 2019, arXiv:1811.03600 (generalisation). Starting rates: the documentation of Keras and PyTorch. The published figure: the Theta
# hands-on of Argonne's distributed deep learning tutorial.

# %%
ranks.stop()
