# %% [markdown]
# # Large batches: what breaks, and what repairs it
#
# A training runs well on 16 workers. Somebody starts it on 128, with the learning rate scaled as everybody says. It's as fast as
# promised, but after 32 epochs it still gets nine images out of ten wrong. Nobody changed a line of the network. What happened?
#
# **You will** see this collapse on two cores, write the learning-rate schedule that's meant to prevent it, and train with it.
# Then you'll diagnose and cure five trainings from their curves, which is what tuning a large run is in practice. The *Deeper*
# sections explain the collapse, let you write LARS, and compare recipes from recorded runs.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first. Where larger batches stop helping at all is in
# [07b_gradient_noise](07b_gradient_noise.ipynb).

# %%
import numpy as np
import pandas as pd
import torch
from torch.nn.functional import cross_entropy

from workshop_lib import ranks
from workshop_lib.data import mnist
from workshop_lib.exercises import large_batch as check
from workshop_lib.models import torch_cnn
from workshop_lib.notebook import profile
from workshop_lib.notebook.figures import accuracy, large_batch
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import ROOT
from workshop_lib.scaling import curves, recipes, records
from workshop_lib.training import optimizers, schedules
from workshop_lib.training.options import TrainOptions

torch.set_num_threads(1)
sizes = profile.current()
team = ranks.start(sizes.ranks)
team

# %% [markdown]
# ## More workers, fewer steps
#
# In data-parallel training a *worker* is a rank with a batch of its own, here $B = 64$ images. $N$ workers take one step on
# the *global batch* of $N B$ images. An *epoch*, one pass over the 60,000 images, then has this many steps:

# %%
workers = np.array([1, 4, 8, 16, 32, 64, 128, 256])
pd.DataFrame({"global batch": 64 * workers, "steps in an epoch": np.ceil(60_000 / (64 * workers)).astype(int)}, workers)

# %% [markdown]
# One worker changes the weights 938 times in an epoch, 128 workers 8 times. If each step is as long as before, the network gets
# nowhere. So the steps must be longer, and that's where the trouble begins.
#
# ## 128 workers on two cores
#
# For this network's arithmetic it doesn't matter where the samples of a batch are: the mean gradient of 128 shards of 64 images
# is the gradient of one batch of 8,192 images ([02](02_synchronous_sgd.ipynb)). So a few ranks can *emulate* many workers, with
# the same global batch, the same learning rate, the same number of steps, and the random numbers that each worker would draw for
# its dropout. They can't emulate the time.
#
# This isn't true of every network. With *batch normalization* each worker normalizes with the mean of its own 64 images, so it does
# matter who has which ([02](02_synchronous_sgd.ipynb) measures it). `classic`, the network of the MNIST examples of 2017, has none.
#
# Check the claim: 4 workers on your ranks, and 4 workers on a single process.

# %%
# %%ranks
import numpy as np
import torch
from mpi4py import MPI

from workshop_lib.training.backends.mpi import Mpi
from workshop_lib.training.backends.pytorch import TorchBackend
from workshop_lib.training.callbacks import methods_of
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.trainer import Trainer
from workshop_lib.training.world import World, detect

comm, cpu = MPI.COMM_WORLD, torch.device("cpu")
network = {"network": "classic", "momentum": 0.5, "nesterov": False}


def weights_after_10_steps(backend):
    options = TrainOptions(emulate_workers=4, epochs=1, train_samples=10 * 4 * 64, **network)
    trainer = Trainer(options, backend, methods_of([]))
    trainer.run()
    return np.concatenate([w.ravel() for w in trainer.learner.weights()])


# %%
# %%ranks
together = weights_after_10_steps(Mpi(detect(), cpu))
if comm.rank == 0:
    alone = weights_after_10_steps(TorchBackend(World(0, 1, 0, "single"), cpu))
    print(f"the weights differ by {np.abs(together - alone).max() / np.abs(alone).max():.1e}, relatively")

# %% [markdown]
# What's left is rounding. Max-pooling enlarges it: of two nearly equal values it passes on the larger one, and rounding may
# decide which. (In double precision, the difference is below $10^{-11}$. A test makes sure of that for 2, 4 and 8 workers.)
#
# ## How long should a step be?
#
# Let $\eta$ be the learning rate that suits one worker. There are three rules for $N$:
#
# - *Not scaled*, $\eta$: safe, and slow.
# - *Linear*, $N\eta$: one step on $N$ batches goes as far as $N$ steps on one batch each. That's right as long as the gradient
#   hardly changes on the way (Goyal et al. 2017).
# - *Square root*, $\sqrt N\,\eta$: the mean of $N$ batches has a $\sqrt N$ times smaller noise, so a $\sqrt N$ times larger
#   rate makes the noise of a step as large as it was (Krizhevsky 2014). For Adam, which divides by the size of recent
#   gradients, theory gives this rule too (Malladi et al. 2022).
#
# Which $\eta$ to start with depends on the optimizer. These are common values:

# %%
pd.Series(schedules.STARTING_LR, name="learning rate of one worker").to_frame()

# %% [markdown]
# The rate doesn't have to stay the same. At the start it can grow (*warm-up*), and later it should fall (*decay*), because small
# steps settle where large ones would jump about.

# %%
large_batch.decays()

# %% [markdown]
# ### Exercise 1: linear scaling with warm-up
#
# Your function will drive a training of 128 workers. It's called before every step, and the first step is number 0. The rate
# climbs in `warmup_steps` equal parts to its peak, `base_lr` times `workers`, and stays there.
#
# <details><summary>Hint 1: what happens when?</summary>
#
# With 4 warm-up steps, the rate of steps 0, 1, 2, 3, 4, 5 is 1/4, 2/4, 3/4, 4/4, 4/4, 4/4 of the peak. Which share is that in
# step number `step`?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `(step + 1) / warmup_steps`, but no more than 1: `min(1, …)`. And `warmup_steps` may be 0, which you can't divide by.
#
# </details><details><summary>Solution</summary>
#
# {solution of learning_rate}
#
# </details>


# %%
def learning_rate(step, base_lr, workers, warmup_steps):
    """The rate of step `step`, from 0. The first has one part of the peak, step warmup_steps - 1 and later all of it."""
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
# A difference to know about: your warm-up starts near zero. Goyal et al., and the guidelines that this section follows, start at the
# rate of *one worker* and climb from there. With 128 workers that's the difference between 0 and 1/128 of the peak, so it
# hardly matters. With 4 workers it would.
#
# ## The collapse
#
# Now train `classic` for a few epochs, with 0.01 times the number of workers and no warm-up. Each of these trainings
# takes ten to twenty seconds on two cores. You can watch the curve, and the button stops it. First 16 workers:

# %%
epochs, samples = sizes.epochs, sizes.train_samples or 60_000
network = {"network": "classic", "momentum": 0.5, "nesterov": False, "lr": 0.01, "decay": "none", "warmup_epochs": 0}


def train(workers, **more):
    """Train `classic` live as this many workers; returns the record."""
    options = network | {"emulate_workers": workers, "epochs": epochs, "train_samples": samples} | more
    return team.train(TrainOptions(**options), timeout=10 * sizes.timeout_s)


run_16 = train(16, lr_scaling="linear")

# %% [markdown]
# That goes well. And 128 workers?

# %%
guess = predict(f"Test accuracy with 128 workers after {epochs} epochs, without warm-up", low=0, high=100, unit="%")
guess

# %%
run_128 = train(128, lr_scaling="linear")

# %%
guess.compare(100 * run_128["epochs"][-1]["test_accuracy"])

# %% [markdown]
# If it's about 10 %, that's what you get by guessing one of ten digits. The training isn't slow. It has *collapsed*: its
# steps were too long. (The training accuracy is measured while dropout is at work, so it can be lower than that of the test.)
#
# Now with your warm-up. This loop does what the library does, with your function in the place where the rate comes from.

# %%
team.push(learning_rate=learning_rate, epochs=epochs, samples=samples)

# %%
# %%ranks
from contextlib import suppress

from workshop_lib.data import mnist, shard

train, test = mnist.load("train"), mnist.load("test", None, comm.rank, comm.size)


def train_with(rate, workers=128, make_optimizer=None):
    """`classic` as this many workers, with rate(step), and with your own optimizer if you give one."""
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
with suppress(NotImplementedError):  # while the exercise is open
    train_with(lambda step: learning_rate(step, 0.01, 128, warmup_steps))

# %% [markdown]
# *Beat it:* change the last line so that 128 workers get as far as you can in these few epochs. A peak of half the height? The
# square root? A decay after the warm-up?
#
# ## What 32 epochs say
#
# A few epochs are little for 128 workers, with 8 steps each. This figure is drawn from records of full trainings, in
# `assets/results`. The crosses are read off a figure that was measured on 128 nodes of a supercomputer, without warm-up.

# %%
full = records.read(ROOT / "assets" / "results" / "large_batch.jsonl")
ends = curves.accuracies(full)
accuracy.worker_curve(full)

# %% [markdown]
# With linear scaling all is well up to 32 workers, and with 256 every run has collapsed. With the square root no run collapses, but
# the steps get too short, and its accuracy falls steadily. LARS trains at every number of workers. But its runs also have
# more momentum, a decay, and a rate that was searched for, so the figure doesn't tell you what LARS itself contributes. A
# *Deeper* section does.
#
# At 128 the bars are long. Here are these runs one by one, after 32 epochs and then epoch by epoch:

# %%
at_128 = ends[ends["workers"] == 128]
at_128.pivot(index="recipe", columns="seed", values=["train_accuracy", "test_accuracy"]).round(1)

# %%
large_batch.by_epoch(full, workers=128)

# %% [markdown]
# The page that the crosses come from says three things, and none of them is quite what we measured:
#
# - *At 128 processes the accuracy is about 10 %.* Without warm-up, the crosses lie below each of our three runs. Most of
#   ours guess for a dozen epochs, and then begin to learn, with many falls. What you'd report depends on the seed and on when you
#   stop.
# - *The remedy is to warm up the learning rate.* At 128 workers, five epochs of warm-up did **no better**. All runs learn at first,
#   fall back to guessing in epoch 4 or 5, as the rate nears its peak, and few get up again. At 64 workers it does help. So warm-up
#   moves the edge a little, and it doesn't remove it.
# - *The communication overhead is not significant.* Emulated workers can't tell. But a trace of 32 ranks on the same type of
#   processor found 250 of 318 seconds in Allreduce ([03](03_horovod_pytorch.ipynb)). On your
#   machine, [08b](08b_where_the_time_goes.ipynb) measures it.
#
# Near the edge, one run proves little. `make -j2 large-batch` trains all of these again, which takes hours.
#
# ## A clinic for recipes
#
# A recipe for large runs from 2018 ends like this: train, observe the loss, adjust, repeat. That's the step that takes the
# time, and you can practise it. Five people bring you their training. Each did one thing wrong. You see the losses, from records of
# runs with 5,000 images or fewer; the healthy run has 8 workers.

# %%
patients = check.patients()
large_batch.clinic(patients)

# %% [markdown]
# ### Exercise 2: the diagnosis
#
# Each run has one of these, and none comes twice: `"rate too high"`, `"rate too low"`, `"too few steps"`,
# `"too little data"`, `"too much weight decay"` (the weights are pulled to zero in every step). Write it in place of the dots.
#
# <details><summary>Hint 1: where to look</summary>
#
# Compare each panel with the healthy one. Where does the loss end, how far apart are the two losses, and how long is
# the curve?
#
# </details><details><summary>Hint 2: the two that get stuck</summary>
#
# One run is stuck at the loss of guessing, which takes a step that threw everything away. Another is stuck well below it, in a balance
# between learning and something else.
#
# </details><details><summary>Solution</summary>
#
# A's weights decay too much. B takes too few steps: its curve has 12 where the healthy one has 60. C's rate is too high. D has
# too little data: it knows its images by heart. E's rate is too low.
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
# ### Exercise 3: change one thing
#
# Now you may look at what they typed. Change **one** option of each run, so that 90 % of the test images are right. Any
# option of `TrainOptions` will do. The five trainings then run for real, for a few seconds each.

# %%
check.options()

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# The healthy run is one line of the table. In which value does each run differ from it?
#
# </details><details><summary>Hint 2</summary>
#
# `{"lr": 0.2}` changes the learning rate, `{"emulate_workers": 2}` the batch, and so on. There's more than one way: a run with too
# few steps can also get more epochs.
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
large_batch.clinic(patients, treated)

# %% [markdown]
# *Break it:* give the healthy run a disease of your own, `team.train(TrainOptions(**recipes.PATIENTS["healthy"] | {…}))`, and
# ask your neighbour what it is.
#
# ## Deeper: where long steps break
#
# *Gradient descent* takes a step against the slope, and hopes that the slope doesn't change much on the way. How fast the slope
# changes is the *curvature*, $\lambda$. In a bowl, everything depends on $\eta\lambda$:

# %%
large_batch.bowl()

# %% [markdown]
# Below $2/\lambda$ the steps come down, and above it each one lands higher on the other side. With momentum $m$ the limit is
# $2 (1 + m)/\lambda$. A network's loss isn't a bowl, but at every point it has a direction in which it's curved most.
# You can measure that largest curvature: multiply a random vector again and again by the matrix of second derivatives (*power
# iteration*). PyTorch does that without ever building the matrix.

# %%
# %%ranks
from torch.nn.functional import cross_entropy

from workshop_lib.models import torch_cnn
from workshop_lib.models.dropout import WorkerDraws
from workshop_lib.training import schedules


def batch(rows):
    return torch_cnn.normalise(torch.tensor(train.images[rows])), torch.tensor(train.labels[rows]).long()


def loss_and_curvature(model, rounds=10):
    """Of 256 images, without dropout: their mean loss, and its largest curvature."""
    images, labels = batch(slice(256))
    parameters = list(model.eval().parameters())
    loss = cross_entropy(model(images), labels)
    slopes = torch.autograd.grad(loss, parameters, create_graph=True)
    vector = [torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) for p in parameters]
    for _ in range(rounds):
        length = torch.sqrt(sum((v**2).sum() for v in vector))
        vector = [v / length for v in vector]
        along = sum((s * v).sum() for s, v in zip(slopes, vector, strict=True))
        times = torch.autograd.grad(along, parameters, retain_graph=True)
        curvature = sum((t * v).sum() for t, v in zip(times, vector, strict=True))
        vector = times
    return loss.item(), curvature.item()


# %% [markdown]
# Linear scaling gives 64 workers a rate of 0.64 and 128 workers 1.28. The next cell follows four short trainings at these rates,
# at once or after a warm-up of 40 steps, which is what 128 workers have in five epochs. (To save time the batches are 1,024
# images, and each rank takes its share of the four. It takes half a minute or so.)

# %%
team.push(steps=15 if sizes.name == "quick" else 60)

# %%
# %%ranks --timeout 300
def followed(peak, warmup_steps, size=1024):
    """(step, rate, loss, curvature) after every fifth step."""
    model = torch_cnn.build(1, "classic")
    draws = WorkerDraws(model, 1, 1, 0, 1, cpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.5)
    order = np.random.default_rng(1).permutation(len(train.labels))
    seen = []
    for step in range(steps + 1):
        rate = optimizer.param_groups[0]["lr"] = schedules.lr_at(step, steps, peak, warmup_steps)
        if step % 5 == 0:
            seen.append((step, rate, *loss_and_curvature(model)))
        images, labels = batch(np.take(order, range(size * step, size * (step + 1)), mode="wrap"))
        model.train()
        draws.prepare(size)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    return seen


rates = {"0.64 at once": (0.64, 0), "1.28 at once": (1.28, 0), "0.64 after warm-up": (0.64, 40)}
rates |= {"1.28 after warm-up": (1.28, 40)}
seen = {name: followed(*rates[name]) for name in list(rates)[comm.rank :: comm.size]}

# %%
seen = {name: run for of_rank in team.pull("seen") for name, run in of_rank.items()}
large_batch.limits(seen, momentum=0.5)

# %% [markdown]
# On the right are the two runs with warm-up: thick is the limit, thin the rate. At first the limit is near 1. When the network
# begins to learn, its curvature grows, and the limit falls far below both peak rates. Without a warm-up, the steps are too long right
# there, and a good start is lost. After a warm-up the rate passes the limit later and by less. The loss jumps, the steps
# themselves push the weights to a place where the curvature is small enough for them, and from then on the limit stays near the
# rate or above it (Cohen et al. 2021; Gilmer et al. 2021 say this of warm-up). With 1.28 at once, the first jump ends at the loss
# of guessing, where hardly any gradient is left. That's the collapse.
#
# (The limit holds for a fixed bowl, and we measured it without dropout. It's a guide, not a law.)
#
# ## Deeper: one rate for all layers?
#
# Before LARS was invented, its authors looked at a table like this one: the norm of each layer's weights, the norm of their
# gradient, and the ratio of the two.

# %%
model, some = torch_cnn.build(1, "classic").eval(), mnist.load("train")
images = torch_cnn.normalise(torch.tensor(some.images[:256]))
cross_entropy(model(images), torch.tensor(some.labels[:256]).long()).backward()
norms = pd.DataFrame(
    [(name, p.norm().item(), p.grad.norm().item()) for name, p in model.named_parameters()],
    columns=["parameter", "‖w‖", "‖∇w‖"],
)
ratio = norms["‖w‖ / ‖∇w‖"] = norms["‖w‖"] / norms["‖∇w‖"]
print(f"largest ratio / smallest: {ratio.max() / ratio.min():.1f}")
norms.round(3)

# %% [markdown]
# A step of plain SGD moves a layer by $\eta \|\nabla w\|$. Where the ratio is small, that's a large part of its weights. In the
# paper's Table 2, of AlexNet, the ratios go from 5.8 to 1,345, so this small network is a mild case. LARS, *layer-wise adaptive rate
# scaling* (You et al. 2017), gives each layer a rate of its own, with which it moves by the same part of its norm:
#
# $$\lambda = \tau \, \frac{\|w\|}{\|\nabla w\| + \beta \|w\|}, \qquad
# v \leftarrow m v + \eta \, \lambda \, (\nabla w + \beta w), \qquad w \leftarrow w - v$$
#
# $\tau$ is a small *trust coefficient*, and $\beta$ the *weight decay*, which pulls every weight towards zero. In the paper's
# Algorithm 1, $\tau$ is listed among the parameters but is missing in the line that computes $\lambda$. (This $\lambda$ is the
# paper's letter. It isn't the curvature from above.)
#
# ### Exercise 4: the rate of a layer
#
# Your function will train 128 workers. It gets the weights and the gradient of one layer, and returns $\lambda$. Biases don't
# get one: they take SGD's step.
#
# <details><summary>Hint 1: the norm</summary>
#
# $\|w\|$ is the square root of the sum of all squares, over the whole tensor, whatever its shape. PyTorch has a method for it.
#
# </details><details><summary>Hint 2: the special case</summary>
#
# `weights.norm()` and `gradient.norm()`. If one of them is zero there is no ratio, so the layer moves as in SGD: return 1.
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
# Around it, LARS is a dozen lines. It's a normal PyTorch optimizer, and you can take it home. It trains 16 workers and then 128, in
# half a minute or so on two cores.

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
from workshop_lib.training.record import weights_sha256


def polynomial(workers, peak):
    """The paper's decay over this training, after an epoch of warm-up."""
    per_epoch = shard.steps_per_epoch(samples, 64 * workers, 1)
    return lambda step: schedules.lr_at(step, epochs * per_epoch, peak, per_epoch, "polynomial")


layer_rates, digest = {}, "open"
with suppress(NotImplementedError):
    for workers, peak in ((16, 7.0), (128, 20.0)):
        learner = train_with(polynomial(workers, peak), workers, MyLars)
        layer_rates[f"{workers} workers"] = learner.optimizer.rates
    digest = weights_sha256(learner.weights())

# %% [markdown]
# The library's LARS should do the same. Compare the last accuracy, and the digest of the weights. It's equal if your function
# rounds like the library's.

# %%
lars = {"optimizer": "lars", "lr": 20.0, "momentum": 0.9, "nesterov": True, "decay": "polynomial", "warmup_epochs": 1}
record = train(128, weight_decay=0.0005, **lars)
print("yours:", team.pull("digest")[0][:12], " the library's:", record["weights_sha256"][0][:12])

# %% [markdown]
# Your optimizer kept the rates that it used. The paper's Figure 2 shows that they depend on the layer, on the batch and on the time.
# Do yours? (While the exercise is open, there is nothing to draw.)

# %%
found = team.pull("layer_rates")[0]
large_batch.layer_rates(found, ["convolution 1", "convolution 2", "linear 1", "linear 2"]) if found else None

# %% [markdown]
# In *LARC* a layer's rate is $\min(\lambda, \eta)$ instead of $\eta\lambda$: no layer takes a longer step than plain SGD would.
# *LAMB* (You et al. 2020) does to Adam's step what LARS does to SGD's. And the recipe that trained ImageNet in 15 minutes begins
# with RMSProp, which survives the start, and blends into SGD, which ends better (Akiba et al. 2017). All are options, like
# `--optimizer lamb`, and about twenty lines each in `workshop_lib.training.optimizers`. The share of SGD in that blend, over the
# warm-up:

# %%
print(" ".join(f"{optimizers.sgd_share(step, 100):.2f}" for step in range(0, 101, 10)))

# %% [markdown]
# How far can each come with 128 workers in 32 epochs? This was a search with four peak rates each, five epochs of warm-up,
# polynomial decay, and momentum 0.9 (`make -j2 large-batch-search`).

# %%
search = records.read(ROOT / "assets" / "results" / "large_batch_search.jsonl")
rows = [(run["what"]["optimizer"], run["what"]["lr"], 100 * run["epochs"][-1]["test_accuracy"]) for run in search]
table = pd.DataFrame(rows, columns=["optimizer", "peak rate", "test accuracy (%)"])
table.set_index(["optimizer", "peak rate"]).round(2)

# %% [markdown]
# SGD trains 128 workers too, with more momentum, a decay and a tuned rate. But its window is narrow: at twice its best rate it
# loses, and RMSProp before SGD ends at guessing. LARS and LAMB come further, and their two highest rates are nearly as good as
# each other. So a large batch can be trained. But each change of the batch asks for a new learning rate, and the search
# for it is part of the price. (Each row is one seed, and picking the best by test accuracy flatters it a little.)
#
# The paper's own figures for LARS, with AlexNet: 60.2 % at a batch of 512, 60.1 % at 8K, 59.3 % at 16K and 57.8 % at 32K.
#
# ## Deeper: what Goyal et al. are careful about
#
# "Scale linearly and warm up" is what everybody remembers of their paper. They warn of three more things.
#
# **Weight decay.** SGD with weight decay $\beta$ multiplies every weight by $1 - \eta\beta$ in each step. What does that alone leave of a
# weight after 90 epochs, with $\beta = 0.0001$ and $\eta = 0.1$ for one worker?

# %%
steps_in_all = 90 * np.ceil(60_000 / (64 * workers))
scaled = {rule: np.array([schedules.scale_lr(0.1, rule, n) for n in workers]) for rule in schedules.SCALINGS}
pd.DataFrame({rule: (1 - rates * 0.0001) ** steps_in_all for rule, rates in scaled.items()}, workers).round(2)

# %% [markdown]
# With the linear rule the decay stays the same, because the steps are as much longer as there are fewer of them. So keep $\beta$.
# With any other rule you've changed it without touching it. That's also why scaling the *loss* isn't the same as
# scaling the rate: that leaves the decay's part of the step as it was.
#
# **Batch normalization.** Every worker normalizes with its own images. So the batch *per worker* is part of the recipe, like a
# layer's width: keep it at what was tuned (32 in their paper), and let only the number of workers grow. If you emulate many workers by one
# large batch, you train another network.
#
# **Momentum.** There are two ways to write it, and they're the same until the rate changes. In one the rate is outside, $u \leftarrow
# m u + g$ and a step of $\eta u$. In the other it's inside, $v \leftarrow m v + \eta g$ and a step of $v$. Here the gradient is
# always 1, and the rate falls from 1 to 0.1 at step 30:

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
# Inside, the old velocity was made with the old rate, and it takes some twenty steps to forget it. While warming up it's the other way
# round. Their *momentum correction* multiplies $v$ by $\eta_\text{new}/\eta_\text{old}$. PyTorch's SGD has the rate outside and doesn't need
# it. Keras's SGD and the LARS paper have it inside.
#
# ## Deeper: which optimizer, as the batch grows?
#
# The guidelines that this workshop grew out of say: keep the optimizer that you'd use on one node, as long as the batch is moderate.
# Give Adam a try, because it works without much tuning. SGD with momentum may end best, but it's harder to tune. At extreme
# batches, combine either with LARS or LARC. And Shallue et al. (2019) found that momentum doesn't help at small
# batches, but lets perfect scaling go on to larger ones.
#
# Here are four epochs on a fifth of MNIST, with 4 and 32 workers and three seeds: the mean, and the worst and best. All have an
# epoch of warm-up and a linear decay, if the name doesn't say otherwise. With 32 workers, SGD and Adam have two rates each, and
# nobody searched for more. (`make large-batch-recipes` makes the records, in some five minutes of one core.)

# %%
kept = records.read(ROOT / "assets" / "results" / "large_batch_recipes.jsonl")
names = ["SGD", "SGD, twice that rate", "SGD without momentum", "SGD without decay"]
recipes.table(recipes.of(kept, *names, "Adam", "Adam, square-root rule", "Adam, linear rule"))

# %% [markdown]
# Some of the claims hold here, and some don't:
#
# - *Momentum* makes no difference with 4 workers, and SGD falls behind without it with 32. That's Shallue's finding.
# - *Adam* is a little behind SGD with 4 workers and ahead with 32, at both rates. SGD at twice its rate nearly collapses. So "Adam
#   first" is good advice when you can't afford a search. That SGD ends best takes one.
# - *The square root* isn't the better rule for Adam here; the linear rule is slightly ahead. The theory is about trainings with many
#   steps, whose noise should stay alike. This one has 24 steps in all, and whatever goes further wins.
# - *Decay* is very important when the rate was scaled up, says the recipe from 2018. Here it costs accuracy, for the same
#   reason: with so few steps it only makes them shorter.
#
# ## Deeper: let the rate fall, or the batch grow?
#
# At the end of a training the rate falls, so that the noise of the steps gets smaller. But a larger batch makes the noise smaller
# too. Smith et al. (2018) drew the conclusion: wherever your schedule divides the rate by some factor, *multiply the batch* by it
# instead. You get the same curve against epochs, and take far fewer steps, so many workers have something to do. That's how they
# trained ResNet-50 on ImageNet to 76.1 % in under 30 minutes, on a TPU pod.
#
# Here the rate is divided by 4 after two of four epochs, and again after three; or the batch grows from 2 workers to 8 and 32
# instead; or nothing happens.

# %%
phases = recipes.of(kept, recipes.CONSTANT, recipes.DECAYED, recipes.GROWN)
large_batch.phases(phases)

# %%
recipes.table(phases)

# %% [markdown]
# The growing batch ends where the falling rate does, up to a tenth of a percent or two, and took little more than half as
# many steps. So the claim holds here. But the constant rate ends there as well. Noise wasn't what limited these trainings, so
# they're a weak test of it. *Try it:* other phases, with `recipes.train(recipes.Recipe("mine", [{…}, {…}]), seed=1)`.
#
# ## Deeper: Muon, beyond the critical batch
#
# A gradient of a matrix has a few strong directions, and a step follows these. *Muon* (Jordan et al. 2024) takes the momentum of a
# layer and makes it orthogonal, so that a step has the same length in all directions. It's part of PyTorch, as
# `torch.optim.Muon`, for matrices only. Shah et al. (2025) report that it keeps its data efficiency at large batches, far
# beyond the *critical batch*, where doubling the workers saves hardly any steps ([07b](07b_gradient_noise.ipynb) measures
# that). Here is what makes a matrix orthogonal:

# %%
matrix = torch.randn(50, 320, generator=torch.Generator().manual_seed(1)) @ torch.diag(torch.linspace(1, 0.01, 320))
for name, each in (("before", matrix / matrix.norm()), ("after", optimizers.orthogonal(matrix))):
    values = torch.linalg.svdvals(each)
    print(f"{name}: the strongest direction {values.max():.2f}, the weakest {values.min():.2f}")

# %%
names = ["SGD", "SGD, twice that rate", "Adam", "Adam, square-root rule", "Adam, linear rule"]
recipes.table(recipes.of(kept, *names, "Muon", "Muon, twice that rate"))

# %% [markdown]
# With 4 workers Muon is slightly ahead. With 32, a batch of 2,048 and far above the critical one, it depends on the rate: at the first,
# it's about as good as SGD, and at twice that rate it loses the least of all. So the paper's claim can be seen even in this
# small network, in 24 steps. The price is that Muon needs whole matrices, so sharded training (`fsdp`) can't use this
# version, and that each step costs some more products of matrices.
#
# ## Deeper: what a large batch costs even when nothing breaks
#
# Keskar et al. (2017) found that networks trained with large batches often *generalize* worse: on the training images they're as good
# as others, on new ones they aren't. From the records of the first figure, here are both accuracies with LARS, which trained at every
# batch:

# %%
columns = {"train_accuracy": "training accuracy (%)", "test_accuracy": "test accuracy (%)"}
lars_ends = ends[ends["recipe"].str.startswith("LARS")].rename(columns=columns)
lars_ends.groupby("workers")[[*columns.values()]].mean().round(2)

# %% [markdown]
# The training accuracy is lower throughout, because it's measured with dropout. What counts is how the two move. Where both fall, the
# network has simply learned less, since a large batch takes fewer steps in as many epochs. That's what happens here: from
# 8 to 256 workers the training accuracy falls more than the test accuracy. A gap in generalization would look the other way
# round. How much of it exists beyond the lack of steps is disputed. With as many *steps*, and a rate chosen for each batch, much
# of it goes away (Hoffer et al. 2017; Shallue et al. 2019).
#
# One of the documents behind this workshop says that a larger batch "smooths the loss landscape". The landscape doesn't depend on
# the batch. A larger batch shows it to you with less noise, and Keskar et al. found that training then ends in *sharper* places.
#
# ## Deeper: how much data?
#
# More workers only pay if there's enough to learn from. How much is that? The guidelines list projects that converged:

# %%
ours = sum(p.numel() for p in torch_cnn.build(1, "classic").parameters())
projects = [("Etalumis, 3D CNN and LSTM", 171e6, 15e6), ("Etalumis, smaller", 157e6, 3e6)]
projects += [("CosmoFlow, 3D CNN", 7e6, 99_456), ("ImageNet, ResNet-50", 25e6, 1.28e6), ("MNIST, classic", ours, 60_000)]
data = pd.DataFrame(projects, columns=["project", "parameters", "training samples"]).set_index("project")
data["parameters per sample"] = data["parameters"] / data["training samples"]
data.style.format("{:,.0f}").format("{:.2g}", subset="parameters per sample")

# %% [markdown]
# The last column differs by a factor of two hundred, so there is no rule of thumb in it. What works is a *learning curve*: train the
# same number of steps on parts of your data, and see whether the accuracy still climbs. That's also the cheapest
# advice in those guidelines: find your model on a random part of the data, on one node, and scale out when it doesn't
# change anymore. (Four short trainings, half a minute or so in all.)

# %%
steps = 20 if sizes.name == "quick" else 200
for count in (1000, 4000, 16_000, 60_000) if samples == 60_000 else (500, 2000):
    options = TrainOptions(train_samples=count, epochs=-(-steps * 128 // count), max_steps=steps, batch_size=128 // team.n)
    record = team.train(options, timeout=sizes.timeout_s, show=False)
    last = record["epochs"][-1]
    print(f"{count:6,} images: {last['train_accuracy']:.1%} right in training, {last['test_accuracy']:.1%} in the test")

# %% [markdown]
# The gap between the two is what more data would close. If you can't get more, make it: run more simulations, or *augment*, with
# changes that don't change the answer (flips, crops, rotations, noise).
#
# (The guidelines also say that harder tasks have noisier gradients, and can use larger batches.
# [07b](07b_gradient_noise.ipynb) tries that.)
#
# ## Remember
#
# - More workers mean fewer steps in an epoch. Longer steps make up for it, up to a limit, and that limit is the curvature.
# - Warm-up helps over the first steps, where the curvature is largest. It doesn't remove the limit: at 128 workers it did no
#   better here.
# - Read the curves: stuck at guessing, too slow, too short, or a gap between training and test. Change one thing at a time.
# - Look at the accuracy, not only at samples per second. The collapsed runs were as fast as the others.
#
# **Sources.** P. Goyal et al. 2017, arXiv:1706.02677 (linear scaling, warm-up, and what to be careful about). A. Krizhevsky 2014,
# arXiv:1404.5997 (square root). S. Malladi et al. 2022, arXiv:2205.10287 (square-root rule for Adam). D. Kingma and J. Ba 2015,
# arXiv:1412.6980 (Adam). Y. You et al. 2017, arXiv:1708.03888 (LARS, with code at github.com/borisgin/nvcaffe-0.16), and 2020,
# arXiv:1904.00962 (LAMB). T. Akiba et al. 2017, arXiv:1711.04325 (RMSProp to SGD). J. Cohen et al. 2021, arXiv:2103.00065, and
# J. Gilmer et al. 2021, arXiv:2110.04369 (curvature and the longest stable step). S. Smith et al. 2018, arXiv:1711.00489 (growing
# the batch). C. Shallue et al. 2019, arXiv:1811.03600 (momentum, and generalization). K. Jordan et al. 2024,
# kellerjordan.github.io/posts/muon, and I. Shah et al. 2025, arXiv:2505.02222 (Muon). N. Keskar et al. 2017, arXiv:1609.04836, and
# E. Hoffer et al. 2017, arXiv:1705.08741 (generalization). H. Robbins and S. Monro 1951 and I. Loshchilov and F. Hutter 2016,
# arXiv:1608.03983 (decays). L. Shao et al., *Distributed Training* (guidelines of NERSC and Intel: optimizers, data sets).
# The published figure: Theta hands-on of Argonne's distributed deep
# learning tutorial.

# %%
ranks.stop()
