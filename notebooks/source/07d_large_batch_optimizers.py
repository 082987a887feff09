# %% [markdown] track="large batches"
# # Optimizers for large batches: do you need LARS?
#
# *LARS* was invented to train ImageNet with batches of up to 32,768 images, and many large runs have used it since. But in
# notebook [07](07_large_batch.ipynb) 128 workers learned with SGD, once the learning rate was right. So does a large batch need
# an optimizer of its own, or is it enough to tune the optimizer you have?
#
# **You will** write the heart of LARS and train 128 workers with it. Then you'll search for the rates of SGD, LARS and Adam with
# the same care, four tries each, and compare the three at their best.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [07](07_large_batch.ipynb) first.

# %%
import pandas as pd

from workshop_lib import predict, profile, ranks

from lessons import large_batch_optimizers as lesson

sizes = profile.current()
team = ranks.start(sizes.ranks)
team

# %% [markdown]
# ## One learning rate for all layers?
#
# A step of plain SGD moves a layer's weights $w$ by $\eta \|\nabla w\|$. Whether that's a lot depends on how large the weights
# themselves are. Here are both norms for each layer of the network of [07](07_large_batch.ipynb), before its first step:

# %%
lesson.figures.layer_norms()

# %% [markdown]
# A small ratio means that a step changes the layer a lot. In this small network the ratios don't differ much. In AlexNet, where
# the authors of LARS looked first, they range from 5.8 to 1,345, so a learning rate that suits one layer is far too high for
# another. LARS, *layer-wise adaptive rate scaling* (You et al. 2017), multiplies the learning rate $\eta$ by a rate $\lambda$
# for each layer, so that every layer moves by about the same fraction of its norm:
#
# $$\lambda = \tau \, \frac{\|w\|}{\|\nabla w\| + \beta \|w\|}, \qquad
# v \leftarrow m v + \eta \, \lambda \, (\nabla w + \beta w), \qquad w \leftarrow w - v$$
#
# Here $\tau$ is a small *trust coefficient*, $\beta$ the weight decay, $m$ the momentum and $v$ the velocity. This $\lambda$
# isn't the curvature that you measured in [07](07_large_batch.ipynb). The paper just uses the same letter.
#
# ### Exercise 1 (warm-up): the rate of a layer
#
# Your function is the heart of LARS, and you'll train 128 workers with it. It gets the weights and the gradient of one layer,
# and returns the layer's $\lambda$. It's never called for biases, which take the ordinary step of SGD with momentum.
#
# <details><summary>Hint 1: the norm</summary>
#
# $\|w\|$ is the square root of the sum of all squares, over the whole tensor, whatever its shape. PyTorch has a method for it.
#
# </details><details><summary>Hint 2: the special case</summary>
#
# Use `weights.norm()` and `gradient.norm()`. If either norm is zero, return 1, so that the layer moves as it would without
# LARS.
#
# </details><details><summary>Solution</summary>
#
# {solution of layer_rate}
#
# </details>


# %%
def layer_rate(weights, gradient, trust, weight_decay):
    """The rate λ of one layer, a number; 1 where a norm is zero.

    Leaves both tensors as they are.
    """
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
lesson.check.layer_rate(layer_rate)

# %% [markdown]
# The rest of LARS takes about a dozen lines. Together with your function, they make an ordinary PyTorch optimizer.

# %%
team.push(
    layer_rate=lesson.check.written(layer_rate),
    epochs=sizes.epochs,
    samples=sizes.train_samples or 60_000,
)


# %%
# %%ranks
import torch


class MyLars(torch.optim.Optimizer):
    """Algorithm 1 of the LARS paper, with your layer_rate. Biases take SGD's step."""

    def __init__(self, parameters, momentum=0.9, trust=0.001, weight_decay=0.0005):
        super().__init__(parameters, {"lr": 0.0, "momentum": momentum})
        self.trust = trust
        self.weight_decay = weight_decay
        self.rates = []

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        rates = []
        for w in group["params"]:
            update = w.grad
            if w.dim() > 1:
                rate = float(layer_rate(w, w.grad, self.trust, self.weight_decay))
                rates.append(rate)
                update = rate * (w.grad + self.weight_decay * w)
            v = self.state[w].setdefault("v", torch.zeros_like(w))
            v.mul_(group["momentum"]).add_(update, alpha=group["lr"])
            w -= v
        self.rates.append(rates)


# %% [markdown]
# Use it to train as 16 workers, and then as 128. The learning rate climbs to its peak during the first epoch, and then falls to
# zero. `lesson.own_training.train` is the training loop of [07](07_large_batch.ipynb), but here it uses your optimizer, too.

# %%
# %%ranks --timeout 600
from mpi4py import MPI

from lessons import large_batch_optimizers as lesson

comm = MPI.COMM_WORLD


def train(make_optimizer, workers, peak, show=True):
    """The optimizer and the test accuracy after training with this peak rate."""
    per_epoch = lesson.own_training.steps_per_epoch(samples, workers)
    schedule = [
        lesson.lr_at(step, epochs * per_epoch, peak, per_epoch, "polynomial")
        for step in range(epochs * per_epoch)
    ]
    return lesson.own_training.train(
        schedule.__getitem__, workers, epochs, samples, make_optimizer, show
    )


rates = {}
for workers, peak in ((16, 7.0), (128, 20.0)):
    optimizer, _ = train(MyLars, workers, peak)
    rates[f"{workers} workers"] = optimizer.rates

# %% [markdown]
# Your optimizer kept the rates that your function returned. Do these rates depend on the layer, on the batch, on the step?

# %%
lesson.figures.layer_rates(team.pull("rates")[0])

# %% [markdown]
# They depend on all three, as the paper found for AlexNet. Because these rates are small, $\eta$ can be as large as 20. The
# biases take SGD's step at this rate and survive it, because the loss hardly curves along them: in a run like this one we
# measured a curvature of 0.12 to 0.22. With a momentum of 0.9, the highest safe rate ([07](07_large_batch.ipynb)) is then
# between 17 and 32.
#
# With 128 workers LARS learned, where SGD with the linear rule usually collapsed. Is LARS that good? Or did it help that we had
# already searched for its rate? Before you decide, search for the rates of other optimizers, too.
#
# ## Four rates each
#
# You'll try SGD with Nesterov momentum at four rates, each twice the one before, and then LARS at four rates as well. All runs
# have 128 workers, the same schedule and the same number of steps. How much better is LARS than SGD?

# %%
guess = predict(
    "LARS's test accuracy minus SGD's, each at the best of four rates",
    low=-20,
    high=20,
    unit="points",
)
guess

# %% [markdown]
# The next cell takes about a minute on two cores.

# %%
# %%ranks --timeout 600
def search(name, make_optimizer, peaks):
    """The test accuracy in % after training as 128 workers, by peak rate."""
    found = {}
    for peak in peaks:
        _, accuracy = train(make_optimizer, 128, peak, show=False)
        found[peak] = 100 * accuracy
        if comm.rank == 0:
            print(f"{name}, peak rate {peak:g}: {found[peak]:.1f} % right", flush=True)
    return found


def sgd(parameters):
    return torch.optim.SGD(parameters, momentum=0.9, nesterov=True)


found_sgd = search("SGD", sgd, [0.05, 0.1, 0.2, 0.4])
found_lars = search("LARS", MyLars, [5, 10, 20, 40])

# %%
found = {"SGD": team.pull("found_sgd")[0], "LARS": team.pull("found_lars")[0]}
guess.compare(max(found["LARS"].values()) - max(found["SGD"].values()))

# %% [markdown]
# *Adam* (Kingma and Ba 2015) keeps running means of the gradient and of its square, and divides the first mean by the square
# root of the second. Each weight then moves by about $\eta$, however large its gradient is. How far does Adam get when you
# search for its rate with the same care?
#
# ### Exercise 2 (normal): four rates for Adam
#
# Choose four peak rates for Adam, the best of which gets 128 workers to 92 % or more. Adam's usual rate for one worker is
# 0.001. How would you scale it? The best of your rates must be neither the lowest nor the highest, because otherwise an even
# better rate may lie beyond it. Trying all four takes about half a minute on two cores.
#
# <details><summary>Hint 1: two rules</summary>
#
# Linear scaling gives 0.128, and the square-root rule gives 0.011. Where would you look if you trusted neither rule?
#
# </details><details><summary>Hint 2: how far apart?</summary>
#
# Begin at the square-root rule's rate, and double it from one try to the next. If the best rate is at one end, go on in that
# direction.
#
# </details><details><summary>Solution</summary>
#
# `[0.01, 0.02, 0.04, 0.08]`. Other rates get there, too.
#
# </details>

# %%
adam_rates = [
    # <solution>
    0.01, 0.02, 0.04, 0.08
    # <stub>
    # ..., ..., ..., ...  # your code here
    # </stub>
    # </solution>
]
team.push(adam_rates=adam_rates)

# %%
# %%ranks --timeout 600
found_adam = {} if ... in adam_rates else search("Adam", torch.optim.Adam, adam_rates)

# %%
found["Adam"] = team.pull("found_adam")[0]
lesson.check.adam_rates(adam_rates, found["Adam"], sizes)

# %% [markdown]
# Now all three optimizers have had the same number of tries. Here is the share of test images that each try got wrong:

# %%
runs = pd.DataFrame(
    [
        (optimizer, rate, right)
        for optimizer, by_rate in found.items()
        for rate, right in by_rate.items()
    ],
    columns=["optimizer", "peak rate", "% right"],
)
lesson.figures.search(runs, f"128 workers, {sizes.epochs} epochs, one seed")

# %% [markdown]
# When we ran this, SGD and LARS ended close together, and Adam was well ahead of both. Twice the best rate ruined SGD and LARS,
# but not Adam.
#
# ## Ten times as long
#
# A few epochs aren't much, and one seed proves little. So here's a recorded search in which each run takes 32 epochs, with up
# to three seeds. It also has *LAMB* (You et al. 2020), which does to Adam's step what LARS does to the step of SGD. All runs
# have five epochs of warm-up. For each peak rate, the table shows the percentage of test images that the network gets right,
# averaged over the seeds.

# %%
recorded = lesson.figures.tried(lesson.recipes.recorded("large_batch_search"))
recorded.groupby(["optimizer", "peak rate"]).mean().round(1)

# %%
lesson.figures.search(recorded, "128 workers, 32 epochs; a bar where several seeds ran")

# %% [markdown]
# With that many steps, Adam's lead is gone. LARS gets seven more images in a thousand right than SGD, and no more than Adam.
# Once more, the larger difference is how exactly you have to hit the rate. SGD is still close to its best at 0.4, but at 0.8 it
# gets a fifth of the images wrong. LARS is at its best at 40, and collapses at 80. Adam ends within seven images in a thousand
# of its best at all five rates.
#
# Nado et al. (2021) made this comparison with full-size networks. They tuned SGD with Nesterov momentum for ResNet-50, and Adam
# for BERT, as carefully as LARS and LAMB had been tuned, and got the same results at batches of 32,768 and more. So you don't
# *need* LARS. Tune the optimizer you have, and tune it again whenever the batch changes. That search is part of the price of a
# large batch.
#
# ## Deeper: momentum, decay, Adam and Muon at 32 workers
#
# The table shows test accuracies in percent after four epochs on a fifth of MNIST, with 4 and with 32 workers. Each entry is
# the mean of three seeds, with the worst and the best seed in parentheses. All runs have one epoch of warm-up and a linear
# decay, unless the name says otherwise.

# %%
kept = lesson.recipes.recorded("large_batch_recipes")
lesson.recipes.table(run for run in kept if run["what"]["emulate_workers"] in (4, 32))

# %% [markdown]
# - *Momentum* makes hardly any difference with 4 workers, but with 32 it's worth five points. We tried SGD without momentum at
#   three rates, and a rate of 0.5 is the best of the three, both with 4 workers and with 32. The 32 workers would need longer
#   steps, but at a rate of 1.0 the accuracy falls apart. Shallue et al. (2019) also found that momentum helps with large
#   batches, in many networks.
# - *Decay* costs accuracy with 32 workers, because a run has only 24 steps and decay mostly makes them shorter.
# - *Adam* is a little behind SGD with 4 workers and ahead with 32. When the rate of SGD is doubled, its accuracy falls apart,
#   while Adam does well at two rates that are nearly a factor of three apart. So Adam is a good choice when you can't afford a
#   search.
# - *Adam's rate* should in theory grow like the square root of the number of workers (Malladi et al. 2022). Here the linear
#   rule is slightly ahead, because with so few steps, longer ones win. But we only scaled the rate. The full square-root rule
#   also lets Adam average over fewer steps, and shrinks the small constant that Adam adds to the square root.
# - *Muon* (Jordan et al. 2024) makes the momentum of each weight matrix orthogonal, so a step has the same length in all
#   directions instead of following a few strong ones. With 32 workers, the higher of Muon's two rates beats everything else
#   here. Shah et al. (2025) report that Muon keeps its advantage far beyond the *critical batch*
#   ([07b](07b_gradient_noise.ipynb)). But each step needs extra products of whole matrices, so with FSDP the ranks first have
#   to put each matrix together ([06](06_zero_and_fsdp.ipynb)).

# %% [markdown]
# ## Deeper: weight decay when the batch changes
#
# With weight decay $\beta$, AdamW and plain SGD multiply every weight by $1 - \eta\beta$ in each step. The linear rule takes
# $N$ times fewer steps at $N$ times the rate, so over an epoch the weights decay as before, and you can keep $\beta$. With the
# square-root rule, which is common for AdamW, the weights decay $\sqrt N$ times less per epoch. If you don't want to change the
# regularization along with the batch, multiply $\beta$ by $\sqrt N$, too (Wang and Aitchison 2024).
#
# ## Deeper: let the rate fall, or the batch grow?
#
# Towards the end of training you lower the rate, so that the steps get less noisy. A larger batch makes the steps less noisy,
# too. So wherever your schedule divides the rate by some factor, you can *multiply the batch* by that factor instead, and take
# far fewer steps (Smith et al. 2018). Language models often begin with a small batch and let it grow, which is called *batch
# warm-up*. Early in training a small batch is enough, because the gradients of different samples still largely agree.
#
# ## Deeper: do large batches generalize worse?
#
# Keskar et al. (2017) found that networks trained with large batches often match small-batch training on the training images,
# but do worse on new ones, and end in *sharper* minima. In the recorded LARS runs of [07](07_large_batch.ipynb), both
# accuracies are lower with 256 workers than with 8: the training accuracy by 1.8 points, and the test accuracy by 0.5 points.
# So this network has simply learned less, because it took fewer steps. With the same number of *steps*, much of the gap that
# others found goes away (Hoffer et al. 2017; Shallue et al. 2019).
#
# ## Remember
#
# - LARS gives each layer a rate of its own, so that every layer moves by about the same fraction of its norm.
# - Compare optimizers only after you've searched for the rate of each.
# - After 32 epochs, a tuned Adam does as well as LARS and LAMB here, and a tuned SGD comes close.
# - When the batch changes, search for the rate again, and check how fast weight decay then shrinks the weights.
#
# **Sources.** Y. You et al. 2017, arXiv:1708.03888 (LARS; code at github.com/borisgin/nvcaffe-0.16), and 2020, arXiv:1904.00962
# (LAMB). D. Kingma and J. Ba 2015, arXiv:1412.6980 (Adam). Z. Nado et al. 2021, arXiv:2102.06356 (SGD and Adam against LARS and
# LAMB). S. Malladi et al. 2022, arXiv:2205.10287 (Adam's rate). X. Wang and L. Aitchison 2024, arXiv:2405.13698 (AdamW's
# decay). C. Shallue et al. 2019, arXiv:1811.03600 (momentum). K. Jordan et al. 2024, kellerjordan.github.io/posts/muon, and I.
# Shah et al. 2025, arXiv:2505.02222 (Muon). S. Smith et al. 2018, arXiv:1711.00489 (growing the batch). N. Keskar et al. 2017,
# arXiv:1609.04836, and E. Hoffer et al. 2017, arXiv:1705.08741 (generalization).

# %%
ranks.stop()
