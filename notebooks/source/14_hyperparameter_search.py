# %% [markdown] track="your own script"
# # Hyperparameter search
#
# You have two ranks, or two thousand, and a training script that works. But is its learning rate any good? You could use all
# ranks for one large job and hope that you guessed well. Or you could let every rank try something different. Which gets you
# the better model from the same number of images?
#
# **You will** commit to a guess and give it to one large job. Then you'll draw settings at random, and write a scheduler that
# stops the bad ones early and never lets a rank wait. Your search gets as many images as the large job, so you can compare the
# two, and report which one won without fooling yourself.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first.

# %%
from functools import partial

import numpy as np
import pandas as pd

from workshop_lib import predict, profile, ranks, take_home

from lessons import hyperparameter_search as lesson

sizes = profile.current()
quick = sizes.name == "quick"
# How many images a trial sees at the end of each rung
rungs = [512, 1536, 4608] if quick else [4096, 12_288, 36_864]
budget = 12_000 if quick else 300_000  # images, for the large job and for your search
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## One guess, all ranks
#
# What you choose before a run starts is called a *hyperparameter*: the learning rate, the momentum, the batch. One value
# for each of them makes a *setting*. What's your guess? The next cell has a setting that you'll find in many examples. Change it
# now if you know a better one, because once you've seen a result, it isn't a guess any longer.
#
# To keep runs short, all of them train on the same 4,096 images, so an epoch is 4,096 images here. Which of two networks is
# better? You can't ask the images that they trained on. You can't ask the test images either, as you'll see. So 5,000 more of
# the training images are *held out*: no run trains on them, and they're only used to choose.

# %%
my_guess = {"lr": 0.01, "momentum": 0.9, "batch": 64}

# %% [markdown]
# One large job trains one network on all ranks, as in [02](02_synchronous_sgd.ipynb). Each rank trains with the batch of your
# guess, and the learning rate grows with the global batch ([07](07_large_batch.ipynb)). A search will get as many images. Who
# wins?

# %%
search_wins = predict(
    "By how many points will a search beat this job? Below 0, the job wins.",
    low=-5,
    high=5,
    unit="points",
)
search_wins

# %%
scaled = my_guess | {
    "lr": team.n * my_guess["lr"],
    "batch": team.n * my_guess["batch"],
}
one_job = lesson.schedulers.OneJob(scaled, every=rungs[0])
large = lesson.live.run(team, one_job, budget, together=True)

# %% [markdown]
# ## A trial on every rank
#
# In a search, a run with one setting is a *trial*. Trials don't need each other, so every rank trains its own without sending a
# single message. That scales almost perfectly, as long as there are many more trials than ranks.
#
# The oldest way to choose settings is a *grid*: you list a few values for each hyperparameter, and try every combination. The
# next cell trains each combination on 12,288 images, which is 3 epochs. Whenever a rank is free, it gets the next trial.

# %%
grid = lesson.schedulers.grid(
    lr=[0.001, 0.01, 0.1, 1.0], momentum=[0.0, 0.9], batch=[64]
)
print(len(grid), "settings, such as", grid[0])
of_grid = lesson.live.run(team, lesson.schedulers.Listed(grid, images=rungs[1]))

# %% [markdown]
# What's wrong with a grid? It tried only four learning rates in eight trials. The other half of the work went into a second
# value of momentum. If the learning rate matters most, then *random search* should be better, because eight random settings try
# eight learning rates (Bergstra and Bengio 2012).
#
# ### Exercise 1 (warm-up): draw a setting
#
# The searches that follow draw their settings with your function. Return a dictionary with three entries:
#
# - `"lr"` lies between 0.001 and 1, and each power of ten gets a third of the draws. 0.001 and 0.002 are as different as 0.1
#   and 0.2, so draw the learning rate *log-uniformly*;
# - `"momentum"` is 0, 0.5 or 0.9;
# - `"batch"` is 16, 32, 64 or 128.
#
# `random` is a NumPy generator, such as `np.random.default_rng(1)`. Draw everything from it, so that you can repeat your search.
#
# <details><summary>Hint 1: log-uniform</summary>
#
# 0.001 is 10 to the power of -3, and 1 is 10 to the power of 0. Which number should be drawn evenly?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `random.uniform(low, high)` draws any number in between, and `random.choice([...])` one of a list. `10 ** x` is a power.
#
# </details><details><summary>Solution</summary>
#
# {solution of draw}
#
# </details>


# %%
def draw(random):
    """A random setting: {"lr": …, "momentum": …, "batch": …}."""
    # <solution>
    lr = 10 ** random.uniform(-3, 0)
    momentum = random.choice([0.0, 0.5, 0.9])
    batch = random.choice([16, 32, 64, 128])
    return {"lr": float(lr), "momentum": float(momentum), "batch": int(batch)}
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.draw(draw)

# %%
my_draw = partial(lesson.check.written(draw), np.random.default_rng(1))
drawn = [my_draw() for _ in grid]
at_random = lesson.live.run(team, lesson.schedulers.Listed(drawn, images=rungs[1]))

# %% [markdown]
# Did random search beat the grid? Train the same setting again with another *seed*, which means different initial weights and a
# different order of the images, and the accuracy changes. Three good settings were recorded with ten seeds each, over 12,288
# images. Your yardstick is the median of their standard deviations, the *spread over seeds*. The difference between two
# runs varies $\sqrt 2$ times as much, so this notebook counts a difference only if it's more than $2 \sqrt 2$ spreads:

# %%
of_best = {"random search": at_random.best, "the grid": of_grid.best}
print("on held-out images:", lesson.seeds.verdict(of_best))

# %% [markdown]
# If another seed could reverse the result, these two runs don't tell you which search is better. The argument for random search
# is about the average of many searches. How many trials were hopeless, and how early could you have known?
#
# ## Stop the bad ones early
#
# A trial that has learned nothing after one epoch is unlikely to win after nine. *Successive halving* uses this. Start many
# trials, and stop each of them after one epoch: that's the first *rung*. Let the best $1/\eta$ of the trials train $\eta$ times
# as long, and so on up the ladder. With $\eta = 3$, the rungs are at 4,096, 12,288 and 36,864 images, or 1, 3 and 9 epochs. If
# nine trials begin, three go on, and one reaches the top. They cost $9 \cdot 1 + 3 \cdot 2 + 1 \cdot 6 = 21$ epochs instead of
# 81. It's a bet, though: a small learning rate starts slowly, and may be stopped although it would have won in the end.
#
# There's another catch. To keep the best third of a rung, you have to wait until all of its trials have finished, so ranks wait
# for the slowest one. Here is the ladder of nine trials:

# %%
guess = predict(
    "What share of their time will the ranks spend idle?", low=0, high=100, unit="%"
)
guess

# %%
waiting = lesson.live.run(
    team, lesson.schedulers.Halving(my_draw, first=3 if quick else 9, rungs=rungs)
)
guess.compare(100 * lesson.figures.idle_share(waiting))

# %%
lesson.figures.ranks_over_time({"halving that waits": waiting})

# %% [markdown]
# The last rung has a single trial, so all ranks but one are idle.
#
# *ASHA*, the asynchronous successive halving algorithm (Li et al. 2020), never waits. A free rank asks: is there a trial that
# is among the best $1/\eta$ of those that have finished its rung *so far*, and hasn't gone on yet? If so, it goes on now. If
# not, a new trial begins. Some trials go on that wouldn't have if you had waited, but no rank is ever idle.
#
# ### Exercise 2 (hard): halving that never waits
#
# Write the two methods of this scheduler, and it'll run your ranks. `ask()` is called whenever a rank is free. It
# returns three things: the number of a trial, its setting, and how many images the trial should have seen by the end,
# counted from its very first one. `tell(...)` is called when a trial has reached that number, with its accuracy on the held-out
# images.
#
# - New trials get the numbers 0, 1, 2, …, and a setting from `self.draw()`. They end at `self.rungs[0]` images.
# - "The best $1/\eta$" is rounded down: of 5 trials with $\eta = 3$ that's one.
# - If trials on several rungs could go on, take the highest rung first, as in the paper.
#
# <details><summary>Hint 1: what do you have to remember?</summary>
#
# For each rung, the accuracy of every trial that has finished it; the setting of every trial; and which ones you've already
# sent on. `__init__` has a place for each of these. What goes where, and when?
#
# </details><details><summary>Hint 2: who goes on</summary>
#
# `sorted(scores, key=scores.get, reverse=True)` lists the keys of a dictionary, from the highest value to the lowest. The first
# `len(scores) // self.eta` of them are the best. Trials that have gone on still count among them, but don't send them twice.
#
# </details><details><summary>Hint 3: the order</summary>
#
# Look at the rungs from the last but one down to 0. Return the first trial that you find. Only when there's none, begin a new
# trial. In `tell`, `self.rungs.index(images)` is the number of the rung.
#
# </details><details><summary>Solution</summary>
#
# {solution of Asha.ask}
# {solution of Asha.tell}
#
# </details>


# %%
class Asha:
    """Sends the best 1/eta of each rung on to the next one, without ever waiting."""

    def __init__(self, draw, rungs, eta=3):
        self.draw, self.rungs, self.eta = draw, rungs, eta
        self.settings = []  # of each trial
        self.scores = [{} for _ in rungs]  # of each rung: {trial: accuracy}
        # For each rung, the trials that have left it for the next
        self.sent_on = [set() for _ in rungs]

    def ask(self):
        """(trial, setting, images) for a free rank: an old trial, or a new one."""
        # <solution>
        for rung in reversed(range(len(self.rungs) - 1)):
            scores = self.scores[rung]
            best = sorted(scores, key=scores.get, reverse=True)
            best = best[: len(scores) // self.eta]
            for trial in best:
                if trial not in self.sent_on[rung]:
                    self.sent_on[rung].add(trial)
                    return trial, self.settings[trial], self.rungs[rung + 1]
        self.settings.append(self.draw())
        return len(self.settings) - 1, self.settings[-1], self.rungs[0]
        # <stub>
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>

    def tell(self, trial, images, accuracy):
        """The trial has this accuracy after `images` images, the end of a rung."""
        # <solution>
        self.scores[self.rungs.index(images)][trial] = accuracy
        # <stub>
        # raise NotImplementedError("and here")
        # </stub>
        # </solution>


# %%
lesson.check.Asha(Asha)

# %% [markdown]
# *Break it:* sort the wrong way round, so that the worst go on. The live table below would still show accuracies that rise.
# What would you have to look at to notice?
#
# Now your scheduler runs the ranks until all trials together have seen as many images as your large job. Each trial leaves its
# weights in a file when it reaches a rung, so it may go on anywhere. Watch the table: which trials go on, and on which rank?

# %%
solved = all(lesson.own_or_library(method, None) for method in (Asha.ask, Asha.tell))
scheduler = (Asha if solved else lesson.schedulers.Asha)(my_draw, rungs)
never_waits = lesson.live.run(team, scheduler, budget)

# %%
lesson.figures.ranks_over_time(
    {"halving that waits": waiting, "your ASHA": never_waits}
)

# %% [markdown]
# Now both ranks are busy until the budget is spent. How many trials reached each rung? With nine epochs for every trial, the same
# budget would have paid for only eight trials.

# %%
for images in rungs:
    print(f"{len(never_waits.held_out(images))} trials saw {images:,} images")

# %% [markdown]
# ## What may you report?
#
# Each trial that reached the top has two accuracies: one on the held-out images, one on the test images. Which trial do you take,
# and what do you write in the paper?
#
# ### Exercise 3 (warm-up): choose and report
#
# `rows` is a list of dictionaries with the keys `trial`, `train_loss`, `held_out` and `test`. Return two things: the number of
# the trial that you'd take, and the accuracy that you'd report for it.
#
# <details><summary>Hint 1: what has each set been used for?</summary>
#
# As soon as you choose by a number, that number is too good: among many trials, the luckiest one wins. So which of the numbers
# may you choose by, and which one is still honest after that?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `max(rows, key=lambda row: row["a"])` is the row with the largest `a`.
#
# </details><details><summary>Solution</summary>
#
# {solution of winner}
#
# </details>


# %%
def winner(rows):
    """(trial, accuracy): which trial to take, and the accuracy to report for it."""
    # <solution>
    best = max(rows, key=lambda row: row["held_out"])
    return best["trial"], best["test"]
    # <stub>
    # raise NotImplementedError("your code here")
    # </stub>
    # </solution>


# %%
lesson.check.winner(winner)

# %% [markdown]
# Only now do the test images come out of the drawer:

# %%
rows = lesson.live.finalists(team, never_waits)
winning_trial, searched = lesson.check.written(winner)(rows)
print(f"take trial {winning_trial}, and report {searched:.2%}")
pd.DataFrame(rows).style.format(
    {"train_loss": "{:.3f}", "held_out": "{:.2%}", "test": "{:.2%}"}
).hide()

# %% [markdown]
# ## One large job, or many small ones?
#
# Back to the question from the start. You have one network that has seen all the images, and the best of many that shared them:

# %%
lesson.figures.best_so_far({"one large job": large, "your ASHA": never_waits})

# %% [markdown]
# The curves are about the held-out images, so they may choose between the two. What you report is about the test images. Your
# large job is a single trial, so its last weights count:

# %%
_, guessed = lesson.check.written(winner)(lesson.live.finalists(team, large))
print("on test images:", lesson.seeds.verdict({"the job": guessed, "ASHA": searched}))
search_wins.compare(100 * (searched - guessed))

# %% [markdown]
# If another seed could reverse the result, you can't tell the two apart, so your guess was good. If the search is clearly
# ahead, your guess was bad. If the job is clearly ahead, the search has drawn nothing as good as your guess, or has stopped it
# too early. Here the yardstick is rough, because long runs may vary less, and another search would also draw other settings.
#
# Would chance have guessed as well? Random search has trained eight drawn settings on 12,288 images each. Here they are beside
# your guess and your search's winner, each after as many images:

# %%
chance = at_random.held_out(rungs[1]).values()
best = never_waits.held_out(rungs[1])[winning_trial]
behind = sum(each < best - lesson.seeds.least_difference() for each in chance)
print(f"after {rungs[1]:,} images:")
print(f"- your guess: {large.held_out(rungs[1])[0]:.2%}")
print(f"- the winner of your search: {best:.2%}")
print(f"- clearly behind the winner: {behind} of {len(chance)} drawn settings")

# %% [markdown]
# The more of the drawn settings are clearly behind, the more likely a large job is to lose if chance picks its setting. A
# learning rate that is too small may catch up with more images, but a network that has diverged never does. And while a bad
# draw costs a search one rung, it costs the large job everything. So if you know a good setting, for example from a paper about
# a similar network, give it all ranks. If you don't, search first, with small jobs side by side. Then give the best setting all
# ranks and all the data you have.
#
# *Beat it:* let chance guess. Set `my_guess = my_draw()`, run the large job again, and then the cells of this section. In how
# many of four tries does the job get as far as your search?
#
# ## Deeper: how many seeds before you believe it?
#
# When setting A beats setting B by a little, was it the setting or the seed? Here are the three good settings that your yardstick
# comes from, each recorded with ten seeds over 12,288 images:

# %%
repeated = lesson.seeds.recorded()
summary = pd.DataFrame(repeated).agg(["mean", "median", "std", "min", "max"])
summary.T.style.format("{:.2%}")

# %%
guess = predict(
    "How often does the worse of the two best settings win, with one seed each?",
    0,
    50,
    unit="%",
)
guess

# %%
first, second, third = repeated.values()
guess.compare(100 * lesson.seeds.wrong_winner(first, second, seeds=1))

# %%
lesson.figures.wrong_winner(repeated, numbers=[1, 2, 3, 5, 10, 20, 50])

# %% [markdown]
# The third setting wins half of the time with one seed, although its mean is the lowest, because its median is as high as that of
# the first. Two of its ten seeds end badly, and with one seed you don't notice in eight of ten cases. How many does it take? A
# mean of $n$ seeds has a standard error of $\sigma / \sqrt n$, and the difference of two means $\sqrt 2$ times that. To make the
# difference $\Delta$ twice its standard error, you need $n = 8 \sigma^2 / \Delta^2$ seeds per setting:

# %%
for place, other in {"second": second, "third": third}.items():
    print(
        f"the best against the {place}: "
        f"{lesson.seeds.seeds_needed(first, other)} seeds per setting"
    )

# %% [markdown]
# Take these as lower limits. With exactly this many seeds, the difference that you measure is more than twice its error only
# half the time. And both numbers are larger than the ten seeds that we have, so we can't even rank our own three settings:
# *worse* only means worse in these ten runs.
#
# So a search with one seed finds a *good* setting, but probably not the best one. If the means are close, that's all right,
# because a difference that you can hardly see doesn't matter much. If one setting varies a lot, it does matter, because you'll
# train with one seed in the end. So report the spread as well. And don't tell anyone that A beats B unless you've paid for the
# seeds (Bouthillier et al. 2021).
#
# ## Deeper: Optuna on the same ranks
#
# *Optuna* is a widely used library for this. It draws its first ten settings at random, and then proposes those that look
# promising after the trials so far. Its *pruners* stop bad trials early. A *study* is its record of a search. Optuna usually
# calls a training function of yours, but with its `ask` and `tell` a few lines turn it into a scheduler for the workshop's ranks:

# %%
import os
import signal
import tempfile
import threading
from pathlib import Path

import optuna
from optuna.trial import TrialState

optuna.logging.set_verbosity(optuna.logging.WARNING)


# %%
class Study:
    """Optuna chooses the settings; at each rung, its pruner can end a trial."""

    def __init__(self, study, rungs):
        self.study, self.rungs, self.going_on, self.trials = study, list(rungs), [], {}

    def ask(self):
        if self.going_on:
            trial, images = self.going_on.pop(0)
        else:
            trial, images = self.study.ask(), self.rungs[0]
            trial.suggest_float("lr", 0.001, 1, log=True)
            trial.suggest_categorical("momentum", [0.0, 0.5, 0.9])
            trial.suggest_categorical("batch", [16, 32, 64, 128])
        self.trials[trial.number] = trial
        return trial.number, trial.params, images

    def tell(self, number, images, accuracy):
        trial = self.trials[number]
        trial.report(accuracy, images)
        if images == self.rungs[-1]:
            self.study.tell(trial, accuracy)
        elif trial.should_prune():
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.going_on.append((trial, self.rungs[self.rungs.index(images) + 1]))


# %% [markdown]
# `SuccessiveHalvingPruner` is ASHA for trials that can't be paused, so it has to decide at once. A trial that it has pruned is
# gone, while yours may still go on when the trials after it turn out to be worse.
#
# The study lives in a *journal*, a file to which every change is appended, so it outlives your notebook and your ranks.


# %%
def open_study(path):
    """The study in this file, ready to go on, or a new one."""
    journal = optuna.storages.journal.JournalFileBackend(str(path))
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(journal),
        study_name="mnist",
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.SuccessiveHalvingPruner(
            min_resource=rungs[0], reduction_factor=3
        ),
    )


# %% [markdown]
# Does the study survive if a rank is killed with `kill -9`, as happens when a node runs out of memory?

# %%
journal = Path(tempfile.mkdtemp()) / "study.log"
victim = team.about()[-1]["pid"]
threading.Timer(10, os.kill, (victim, signal.SIGKILL)).start()
try:
    lesson.live.run(team, Study(open_study(journal), rungs))
except ranks.RankError as error:
    print(error)

# %%
team.restart()
study = open_study(journal)
known = [len(trial.intermediate_values) for trial in study.trials]
print("rungs that each trial had finished before the kill:", known)
lesson.live.run(team, Study(study, rungs), budget // 6)
print(len(study.trials), "trials by now")

# %% [markdown]
# Fresh ranks took over, and the study still has everything it was told before the kill. But the trials that the kill has cut off
# stay in the state `RUNNING` forever, because nobody tells the study that they ended. The script below marks them as failed, and
# tries their settings again first. [13b](13b_runs_that_survive.ipynb) is about such failures.
#
# ## Deeper: settings that change, and settings that transfer
#
# *Population-based training* (Jaderberg et al. 2017) searches *while* it trains. As many trials as you have ranks train side by
# side. Now and then, each of the worst copies the weights and the setting of one of the best, and then changes that setting a
# little. What comes out is a schedule: the learning rate changes during training, and no search over constant settings could find
# that. But the method is greedy. It copies whoever leads now, even if that trial would lose in the end (Dalibard and Jaderberg
# 2021).
#
# For large models, even one trial per setting is too expensive. If you only make a network wider, its best learning rate changes,
# so you can't search on a narrow one. *μP*, the maximal update parametrization (Yang et al. 2021), scales the initial weights and
# the learning rate of each layer with its width, so that the best learning rate stays nearly the same. Then you search on a
# narrow network, and train the wide one once. The authors tuned a network with 40 million parameters and used its settings for
# one with 6.7 billion. It beat the published GPT-3 of that size, and the search cost 7 % of the training.
#
# ## Deeper: take it home
#
# In [scripts/search.py](scripts/search.py), each rank runs Optuna's own loop, and the journal is all that they share. So you can
# start it with `mpiexec` or `srun`, and start it again after a crash. But don't run two jobs at a time, because the second one
# would mark the trials of the first as failed. The marked lines turn a training script into a search:

# %%

take_home.marked("search.py", r"optuna|trial\.|study|cut_off|State|Journal")

# %% [markdown]
# ## Remember
#
# - Trials don't talk to each other, so one small trial per rank is the most efficient way to search.
# - Draw learning rates log-uniformly. Random search tries a new learning rate with each trial, and a grid doesn't.
# - Stop bad trials early. Halving that waits leaves ranks idle; ASHA promotes whoever leads so far, and never waits.
# - Held-out images choose, test images report. The number you've chosen by is too good to report.
# - With a good guess, one large job can be as good as a search. Without one, search first: a drawn setting is often much worse.
# - Compare a difference with the spread over seeds before you call it one.
#
# **Sources.** J. Bergstra and Y. Bengio, *Random Search for Hyper-Parameter Optimization* (JMLR 13, 2012). K. Jamieson and A.
# Talwalkar, *Non-stochastic Best Arm Identification and Hyperparameter Optimization* (arXiv:1502.07943): successive halving. L.
# Li et al., *A System for Massively Parallel Hyperparameter Tuning* (arXiv:1810.05934): ASHA. T. Akiba et al., *Optuna*
# (arXiv:1907.10902). X. Bouthillier et al., *Accounting for Variance in Machine Learning Benchmarks* (arXiv:2103.03098). M.
# Jaderberg et al., *Population Based Training of Neural Networks* (arXiv:1711.09846), and V. Dalibard and M. Jaderberg, *Faster
# Improvement Rate Population Based Training* (arXiv:2109.13800). G. Yang et al., *Tensor Programs V* (arXiv:2203.03466): μP.

# %%
ranks.stop()
