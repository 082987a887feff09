# %% [markdown] track="your own script"
# # Hyperparameter search
#
# You have two ranks, or two thousand, and a training that works. But is its learning rate any good? You could use all ranks for
# one large job, and hope that you guessed well. Or you could let every rank try something different. What gets you the better
# model in the same time?
#
# **You will** draw settings at random, write a scheduler that stops the bad ones early and never lets a rank wait, and report
# what you found without fooling yourself. Then you'll see what one large job would have got, and how many seeds it takes before
# you can believe that one setting beats another.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores; no GPU, no network. Do notebook
# [02](02_synchronous_sgd.ipynb) first.

# %%
from functools import partial

import numpy as np
import pandas as pd

from workshop_lib import judge, ranks
from workshop_lib.lessons.gradient_noise import steps_to_target
from workshop_lib.lessons.hyperparameter_search import figures
from workshop_lib.lessons.hyperparameter_search import judge as check
from workshop_lib.lessons.hyperparameter_search import live as search
from workshop_lib.lessons.hyperparameter_search import search as library
from workshop_lib.notebook import profile, take_home
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, ROOT
from workshop_lib.results import records

sizes = profile.current()
quick = sizes.name == "quick"
rungs = [512, 1536, 4608] if quick else [4096, 12_288, 36_864]  # images that a trial sees
team = ranks.start(sizes.ranks)

# %% [markdown]
# ## A trial on every rank
#
# What you choose before a training starts is called a *hyperparameter*: the learning rate, the momentum, the batch. One value
# for each of them makes a *setting*, and a training with it is a *trial*. Trials don't need each other, so every rank can
# train its own. The ranks don't even send a message: it's the easiest parallelism there is, and the scaling is nearly perfect
# as long as there are many more trials than ranks.
#
# To keep trials short, each trains on only 4,096 images. Which trial is best? You can't ask the images that it trained on. You
# can't ask the test images either, as we'll see. So 5,000 more of the training images are *held out*: no trial trains on them,
# and all they do is choose.
#
# The oldest way to choose settings is a *grid*: you list a few values for each hyperparameter, and try every combination.

# %%
grid = library.grid(lr=[0.001, 0.01, 0.1, 1.0], momentum=[0.0, 0.9], batch=[64])[:: 2 if quick else 1]
print(len(grid), "settings, such as", grid[0])
of_grid = search.run(team, library.Listed(grid, images=rungs[0 if quick else 1]))

# %% [markdown]
# `search.run` hands a trial to each rank that is free. (ipyparallel has a ready-made way, too:
# `team.client.load_balanced_view().map_async(train, settings)` does the same for any function.
# Ours watches the ranks as well, so that you see curves, and get one clear message if a rank dies.)
#
# What's wrong with a grid? It tried only four learning rates in eight trials. The other half of the work went
# into a second value of momentum. If the learning rate matters most, and it does, then
# *random search* is better: with eight random settings you try eight learning rates (Bergstra and Bengio 2012).
#
# ### Exercise 1 (warm-up): draw a setting
#
# The searches that follow will draw their settings with your function. Return a dictionary with three entries:
#
# - `"lr"` lies between 0.001 and 1, and each power of ten gets a third of the draws. 0.001 and 0.002 are as different as 0.1
#   and 0.2, so draw the learning rate *log-uniformly*;
# - `"momentum"` is 0, 0.5 or 0.9;
# - `"batch"` is 16, 32, 64 or 128.
#
# `random` is a NumPy generator, like the one that `np.random.default_rng(1)` returns. Draw everything from it, so that you can
# repeat your search.
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
check.draw(draw)

# %%
my_draw = partial(judge.own_or_library(draw, library.draw), np.random.default_rng(1))
drawn = [my_draw() for _ in grid]
at_random = search.run(team, library.Listed(drawn, images=rungs[0 if quick else 1]))

# %% [markdown]
# Same number of trials, same number of images. With so few trials either may win, so don't read much into it. But look at the
# table: how many trials were hopeless, and how early could you have known?
#
# ## Stop the bad ones early
#
# A trial that has learned nothing after one epoch is unlikely to win after nine. *Successive halving* uses this. Start many
# trials, and stop after a few images: that's the first *rung*. Keep the best $1/\eta$ of them, let these train $\eta$ times
# as long, and so on up the ladder. With $\eta = 3$ and rungs at 1, 3 and 9 epochs, nine trials begin, three go on, and one
# reaches the top. They cost $9 \cdot 1 + 3 \cdot 2 + 1 \cdot 6 = 21$ epochs instead of 81. It's a bet, though: a setting that
# starts slowly, such as a small learning rate, may be stopped although it would have won in the end.
#
# There's another catch. To keep the best third of a rung, you have to wait until all of its trials have finished. So the
# ranks that are done wait for the slowest one. Here's the ladder of nine trials, with ranks that wait:

# %%
guess = predict("What share of their time will the ranks spend idle?", low=0, high=100, unit="%")
guess

# %%
halving = library.Halving(my_draw, first=3 if quick else 9, rungs=rungs)
waiting = search.run(team, halving)

# %%
guess.compare(100 * figures.idle_share(waiting))
figures.ranks_over_time({"halving that waits": waiting})

# %% [markdown]
# The last rung has a single trial, so all ranks but one are idle. With a hundred ranks that would be 99 of them, and
# one slow node would hold up every rung.
#
# *ASHA*, the asynchronous successive halving algorithm (Li et al. 2020), never waits. A rank that's free asks: is there a
# trial that is among the best $1/\eta$ of those that have finished its rung *so far*, and hasn't gone on yet? If so, it goes
# on now. If not, a new trial begins. Some trials will go on that wouldn't have if we had waited. In return, no rank is ever
# idle.
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
        self.sent_on = [set() for _ in rungs]  # of each rung: trials that have left it for the next

    def ask(self):
        """(trial, setting, images) for a rank that's free: a trial that goes on, else a new one."""
        # <solution>
        for rung in reversed(range(len(self.rungs) - 1)):
            scores = self.scores[rung]
            best = sorted(scores, key=scores.get, reverse=True)[: len(scores) // self.eta]
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
        """The trial has seen `images` images, the end of a rung, and reached this accuracy."""
        # <solution>
        self.scores[self.rungs.index(images)][trial] = accuracy
        # <stub>
        # raise NotImplementedError("and here")
        # </stub>
        # </solution>


# %%
check.Asha(Asha)

# %% [markdown]
# *Break it:* sort the wrong way round, so that the worst go on. The live table below would still show accuracies that rise.
# What would you have to look at to notice?
#
# ### Search with it
#
# Each trial leaves its weights in a file when it reaches a rung, so it may go on anywhere. Watch the table: which trials
# go on, and on which rank?

# %%
solved = all(judge.own_or_library(method, None) for method in (Asha.ask, Asha.tell))
scheduler = (Asha if solved else library.Asha)(my_draw, rungs)
budget = 12_000 if quick else 300_000
never_waits = search.run(team, scheduler, budget)

# %%
figures.ranks_over_time({"halving that waits": waiting, "your ASHA": never_waits})

# %% [markdown]
# Now both ranks are busy until the budget is spent. How many trials are there on each rung? And compare
# their number with what nine epochs for every trial would have allowed:

# %%
jobs = pd.DataFrame([done.result for done in never_waits.done])
print("trials that finished each rung:", jobs.groupby("images")["trial"].count().to_dict())
print(f"trials with nine epochs each: {budget // rungs[-1]}")

# %% [markdown]
# ## What may you report?
#
# Suppose you have the accuracies of all trials that reached the top, on the held-out images and on the test images. Which trial
# do you take, and what do you write in the paper?
#
# ### Exercise 3 (warm-up): choose and report
#
# `rows` is a list of dictionaries with the keys `trial`, `train_loss`, `held_out` and `test`. Return two things: the number of the
# trial that you'd take, and the accuracy that you'd report for it.
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
check.winner(winner)

# %% [markdown]
# Only now do the test images come out of the drawer, for the trials of your search that reached the top:

# %%
test = search.test_accuracies(team, never_waits)
top = jobs[jobs["images"] == jobs["images"].max()].assign(test=lambda frame: frame["trial"].map(test))
top["train_loss"] = [losses[-1][1] if losses else float("nan") for losses in top["losses"]]
rows = top[["trial", "train_loss", "held_out", "test"]].to_dict("records")
print("take trial {}, and report {:.2%}".format(*judge.own_or_library(winner, library.report)(rows)))
pd.DataFrame(rows).style.format({"train_loss": "{:.3f}", "held_out": "{:.2%}", "test": "{:.2%}"}).hide()

# %% [markdown]
# ## One large job, or many small ones?
#
# Back to the question from the start. We gave two ranks the same budget of images in three ways:
#
# - **one large job**: both ranks train one network together, with twice the batch. Nobody searches: the learning rate is
#   0.01 with momentum 0.9, as in many examples, and then doubled, as the linear rule says;
# - **large jobs in turn**: ASHA, but each trial uses both ranks and twice the batch, so trials take turns;
# - **small jobs side by side**: ASHA, a trial per rank.
#
# The runs are recorded in `assets/results/search.jsonl`, with three seeds each.

# %%
guess = predict(
    "With the same images, how many times as long do large jobs in turn take as small ones?", 0.5, 4, unit="times"
)
guess

# %%
recorded = records.read(ROOT / "assets" / "results" / "search.jsonl")
searches = [run for run in recorded if "jobs" in run]
last = pd.DataFrame(
    [run["what"] | {"seconds": run["jobs"][-1]["end_s"], "trials": len({job["trial"] for job in run["jobs"]}),
                    "best held out": max(job["held_out"] for job in run["jobs"]),
                    "test": run["tests"][str(run["winner"])]} for run in searches])  # fmt: skip
by_way = last.groupby("way", sort=False)[["seconds", "trials", "best held out", "test"]].median()
guess.compare(by_way.loc["large jobs in turn", "seconds"] / by_way.loc["small jobs side by side", "seconds"])

# %%
figures.best_so_far(searches)

# %%
by_way.style.format({"seconds": "{:.0f}", "trials": "{:.0f}", "best held out": "{:.2%}", "test": "{:.2%}"})

# %% [markdown]
# The left panel counts seconds, the right one images, which don't depend on how busy a machine is. (Ours was busy
# with other programs, so don't trust the seconds to more than a rough ratio.) What to look for:
#
# - Small jobs side by side get through the same images in much less time than large jobs in turn. A trial on both ranks sends
#   its gradients in every step and waits for the slower rank. That hurts most with a small batch, since it takes more steps
#   for the same images. (The one large job always has a batch of 128, so it loses much less.)
# - The one large job doesn't search at all, and yet it leads for most of the time, because it gives *all* of the images to one
#   network, while a search spreads them over many. Whether a search passes it in the end depends on the luck
#   of the draw.
#
# So the guess was good. But nobody tells you that beforehand. How bad could it have been? The first rungs of the searches know:
# each of their trials is a guess.

# %%
guesses = [job["held_out"] for run in searches for job in run["jobs"] if job["images"] == library.RUNGS[0]]
for level in (0.5, 0.9, 0.95):
    print(
        f"{np.mean(np.array(guesses) < level):.0%} of {len(guesses)} random settings are below {level:.0%} after one epoch"
    )

# %% [markdown]
# (Somebody with experience guesses better than these random draws, and some of them would catch up with more epochs.)
#
# That's the answer to the question, too. When you know good settings, one large job makes the most of your ranks. When you
# don't, search first, with small jobs side by side and a part of the data, and give what's left of the budget to one large
# job with what you've found. Keep in mind that the batch grows with the ranks then, so the learning rate may have to grow as
# well ([07](07_large_batch.ipynb)).
#
# *Beat it:* search with a third of the budget of your ASHA above, and spend the rest on the best setting. `library.OneJob` trains one.
#
# ## How many seeds before you believe it?
#
# Train the same setting again with another seed, which means different initial weights and a different order of the images.
# The accuracy changes. So when setting A beats setting B by a little, was it the setting or the seed? Here are three good
# settings, each trained with ten seeds (from the same record):

# %%
repeated = {
    "lr {lr:g}, momentum {momentum:g}, batch {batch}".format(**run["what"]["setting"]): run["held_out"]
    for run in recorded if run["what"]["way"] == "seeds"
}  # fmt: skip
spread = pd.DataFrame(repeated).agg(["mean", "std", "min", "max"]).T
spread.style.format("{:.2%}")

# %%
guess = predict("How often does the worse of the two best settings win, with one seed each?", 0, 50, unit="%")
guess

# %%
order = spread["mean"].sort_values(ascending=False).index
first, second, third = (repeated[name] for name in order)
guess.compare(100 * library.wrong_winner(first, second, seeds=1))

# %%
figures.wrong_winner(repeated, seeds=[1, 2, 3, 5, 10, 20, 50])

# %% [markdown]
# A mean of $n$ seeds has a standard error of $\sigma / \sqrt n$, and the difference of two means $\sqrt 2$ times that. To make
# the difference $\Delta$ twice its standard error you need $n = 8 \sigma^2 / \Delta^2$ seeds per setting. For a difference half as large,
# that's four times as many:

# %%
for name, other in zip(order[1:], (second, third), strict=True):
    print(f"{order[0]} against {name}: {library.seeds_needed(first, other)} seeds per setting")

# %% [markdown]
# Take these as lower limits. With exactly this many seeds, the difference that you measure is more than twice its error only
# every second time; for four times out of five, you need about twice as many. And $\sigma$ and $\Delta$ come from only ten
# seeds here. Where the cell asks for more than ten, we don't even know for sure which setting is the better one.
#
# A setting may even win often and still have the lower mean, because a few of its seeds end badly. One seed never shows you
# that.
#
# So a search with one seed finds a *good* setting, but hardly ever the best one. That's all right: if it takes so many seeds
# to see a difference, the difference doesn't matter much. But don't tell anyone that A beats B unless you've paid for the seeds.
# Bouthillier et al. (2021) measured how
# large this spread is in several benchmarks, and say what a fair comparison takes.
#
# ## Deeper: Optuna on the same ranks
#
# *Optuna* is one of the most widely used libraries for this. It draws its first ten settings at random. Then it proposes
# those that look promising after the trials so far, and its *pruners* stop bad trials early. A *study* keeps everything in a
# file, so it outlives your notebook. Optuna usually calls your training itself. But it also has `ask` and `tell`, so a few
# lines turn it into a scheduler for our ranks:

# %%
import os
import signal
import threading

import optuna
from optuna.trial import TrialState

optuna.logging.set_verbosity(optuna.logging.WARNING)


# %%
class Study:
    """Optuna chooses the settings, and its pruner decides at each rung whether a trial goes on."""

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
# `SuccessiveHalvingPruner` is ASHA for trials that can't be paused, so it has to decide at once. A trial that it has pruned
# is gone, while yours may still go on when the trials after it turn out to be worse. And on each rung the very first trial
# always goes on, since there's nothing yet to compare it with.
#
# The study lives in a *journal*, a file to which every change is appended. `open_study` opens it, and takes care of trials that
# a crash has cut off: they're marked as failed, and their settings are tried again first.


# %%
def open_study(path):
    """The study in this file, ready to go on, or a new one."""
    journal = optuna.storages.journal.JournalFileBackend(str(path))
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(journal),
        study_name="mnist",
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=rungs[0], reduction_factor=3),
    )
    for trial in study.get_trials(states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)
    return study


# %%
def states(study):
    """How many trials of a study are in each state."""
    return pd.Series([trial.state.name for trial in study.trials]).value_counts().to_dict()


journal = BUILD / f"study-{os.getppid()}.log"  # the same after a restart of the kernel, whose parent is JupyterLab
journal.unlink(missing_ok=True)  # this notebook begins anew; leave this line out to go on with the last study
first_study = open_study(journal)
search.run(team, Study(first_study, rungs), budget // 3)
states(first_study)

# %% [markdown]
# Now the worst case. In the middle of a search a rank is killed with `kill -9`, as happens when a node dies or runs out of memory:

# %%
victim = team.about()[-1]["pid"]
threading.Timer(1.5, os.kill, (victim, signal.SIGKILL)).start()
try:
    search.run(team, Study(open_study(journal), rungs))
except ranks.RankError as error:
    print(error)

# %%
team.restart()
study = open_study(journal)
print("before:", states(study))
search.run(team, Study(study, rungs), budget // 3)
print("after: ", states(study))
study.best_params

# %% [markdown]
# One message said which rank was lost, fresh ranks took over, and the study has everything it was told before the kill. If you
# restart the notebook's kernel, it's the same: `open_study` reads the journal, and the search goes on. This journal is named
# after JupyterLab's process number, so give it a fixed name if the search should also outlive JupyterLab or a restart of the
# machine. (A trial that was cut off is a FAIL, and its setting WAITS for a rank. Those that stood on a rung when the budget
# was spent are still RUNNING.)
#
# *Try it:* restart the kernel while a search is under way. Then run the cells from the top, but leave out the line that removes
# the journal.
#
# ## Deeper: the rule for the learning rate, from your own search
#
# When the batch grows, should the learning rate grow with it, or with its square root ([07](07_large_batch.ipynb))? Your search has an
# opinion: the left panel shows each of your trials, and the large dark points are the good ones. Momentum makes steps longer in the end, by a factor
# of $1 / (1 - \text{momentum})$, so the figure uses the learning rate times that. On the right is a larger search, done for
# [07b](07b_gradient_noise.ipynb) and recorded in `assets/results/steps_to_target.jsonl`: plain SGD, six learning rates at each of seven
# batches. At each batch, the rate that gets to 97 % in the fewest steps wins.

# %%
of_batches = steps_to_target.best_rates(records.read(ROOT / "assets" / "results" / "steps_to_target.jsonl"))
figures.rates([*at_random.done, *never_waits.done], of_batches)

# %%
batches, best = np.array([(batch, rate.lr) for batch, rate in of_batches.items()]).T
slope = np.polyfit(np.log(batches), np.log(best), 1)[0]
print(f"the best learning rate grows like batch to the power of {slope:.2f}; linear is 1, square root 0.5")
print("at the edge of the rates tried:", [batch for batch, rate in of_batches.items() if rate.at_edge])

# %% [markdown]
# Neither rule! From the smallest batch to the largest, the best rate hardly changes. The rules are about something else: they
# say how to keep the *noise* of the steps the same when the batch grows
# ([07b](07b_gradient_noise.ipynb)), starting from a rate that the noise limits. Here something else sets the limit: with
# a larger rate, plain SGD without warm-up gets unstable, whatever the batch. So a large batch can't take longer steps, which is
# where its trouble starts. And a rule is never more than a guess: if it matters, search.
#
# ## Deeper: take it home
#
# [scripts/search.py](scripts/search.py) is a plain script. Each rank runs Optuna's own loop, and the journal is all
# that they share. So you can start it with `mpiexec` or `srun`, and start it again after a crash. (But only one job at a
# time: a second one would think that the trials of the first were cut off, and mark them as failed.) The marked lines are all
# it takes to turn a training into a search:

# %%
take_home.marked("search.py", r"optuna|trial\.|study|cut_off|State|Journal")

# %% [markdown]
# ## Remember
#
# - Trials don't talk to each other. If you have more questions than ranks, one small trial per rank is the most efficient use
#   of them.
# - Draw learning rates log-uniformly. Random search tries a new learning rate with each trial, and a grid doesn't.
# - Stop bad trials early. Halving that waits leaves ranks idle; ASHA promotes whoever leads so far, and never waits.
# - Held-out images choose, test images report. The number you've chosen by is too good to report.
# - Compare settings over seeds: at least $n = 8 \sigma^2 / \Delta^2$ of them per setting.
# - Keep the study in a file. Ranks die, and notebooks restart.
#
# **Sources.** J. Bergstra and Y. Bengio, *Random Search for Hyper-Parameter Optimization* (JMLR 13, 2012). K. Jamieson and
# A. Talwalkar, *Non-stochastic Best Arm Identification and Hyperparameter Optimization* (arXiv:1502.07943): successive halving.
# L. Li et al., *Hyperband* (arXiv:1603.06560), and *A System for Massively Parallel Hyperparameter Tuning* (arXiv:1810.05934):
# ASHA. T. Akiba et al., *Optuna* (arXiv:1907.10902). X. Bouthillier et al., *Accounting for Variance in Machine Learning
# Benchmarks* (arXiv:2103.03098).

# %%
ranks.stop()
