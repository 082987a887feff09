# %% [markdown]
# # Scaling curves
#
# **You will** train the same network on 1, 2 and more ranks, measure how much faster it gets, and read the
# curve: ideal, efficiency, spread, the cost of the first epoch, and what happens when there are more ranks than
# cores.
#
# **Time** about 20 minutes. **Needs** two cores; no GPU, no network.

# %%
from workshop_lib import ranks
from workshop_lib.notebook import plots, profile
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD
from workshop_lib.scaling import curves, records
from workshop_lib.scaling.sweep import sweep
from workshop_lib.training.options import TrainOptions

sizes = profile.current()
sizes.sweep_ranks

# %% [markdown]
# ## Measure
#
# In *strong scaling* the work stays the same, here one pass over the same samples, and the number of ranks grows.
# *Speed-up* is the throughput on $N$ ranks divided by the throughput on one; *parallel efficiency* is the
# speed-up divided by $N$. Perfect scaling is a speed-up of $N$ and an efficiency of 100 %.
#
# Each point is measured several times, since machines are noisy: what is drawn is the median, with the fastest
# and the slowest run as bars. Runs follow each other; two at once would share the cores they are measured on.
# The batch per rank is the same everywhere, so the global batch grows with the ranks.

# %%
guess = predict(f"What speed-up will `mpi` reach on {sizes.ranks} ranks?", 0.5, 2 * sizes.ranks, "times")
guess

# %% [markdown]
# And with more ranks than cores? Write that guess down as well.

# %%
options = [
    TrainOptions(backend=name, epochs=sizes.sweep_epochs, train_samples=sizes.sweep_samples)
    for name in ("mpi", "ddp")
]
file = BUILD / "08_scaling_curves.jsonl"
file.unlink(missing_ok=True)
for record in sweep(ranks.start, sizes.sweep_ranks, options, sizes.repeats, sizes.timeout_s, show=False):
    records.write(file, record)

# %% [markdown]
# Every run left a record in a file; the table and the curves are drawn from it alone.

# %%
measured = records.read(file)
curves.summary(measured)

# %%
points = curves.strong_scaling(curves.to_frame(measured)).set_index(["backend", "world_size"])
found = points.loc[("mpi", sizes.ranks)]
guess.compare(found["speedup"], spread=(found["speedup_min"], found["speedup_max"]))

# %%
plots.scaling_curve(measured)

# %% [markdown]
# Read the picture:
#
# - The grey line is perfect scaling. No curve lies above it for long: a speed-up above $N$ nearly always means that
#   the one-rank run was handicapped, for instance by being bound to fewer threads.
# - Hollow points are *oversubscribed*: more ranks than cores. They take turns, and each turn costs time.
#   Such a point says nothing about a machine with that many cores.
# - Crosses show the first epoch, which pays for warming up: loading data, starting threads, opening connections.
#   It is not part of the curve.
# - `mpi` and `ddp` compute the same gradients. What separates their curves is communication: bytes, messages, and how
#   much of it hides behind computing.
#
# ## Where the time goes
#
# The `mpi` backend measures its time in `Allreduce`. Part of it is transfer, part is waiting for the slowest
# rank; a rank cannot tell them apart.

# %%
frame = curves.to_frame(measured)
frame.groupby(["backend", "world_size"])["communication_share"].median().unstack()

# %% [markdown]
# ## Accuracy is the other half
#
# Throughput is worth nothing if the network learns less. With the batch per rank fixed, more ranks make fewer
# and larger steps in the same number of epochs.

# %%
plots.accuracy_curve(measured)

# %% [markdown]
# ## A larger batch hides communication
#
# DDP sends the same number of bytes for every step, however many samples the step has. With four times the
# samples in a step there are four times fewer messages to wait for.

# %%
large = [
    TrainOptions(backend=name, epochs=2, batch_size=256, train_samples=sizes.sweep_samples)
    for name in ("mpi", "ddp")
]
counts = [1, sizes.ranks]
larger_batch = list(sweep(ranks.start, counts, large, 1, sizes.timeout_s, show=False))
small_batch = [record for record in measured if record["what"]["world_size"] in counts]
plots.scaling_curve([*small_batch, *larger_batch])

# %% [markdown]
# ## Remember
#
# - Report speed-up with its baseline, its spread, the threads per rank and the binding; leave the first epoch out.
# - Never time two jobs on the same cores at once, and mark points with more ranks than cores.
# - Efficiency is lost to communication and to waiting; more computing per step hides both.
# - A faster epoch is a means; time to a given accuracy is the end.
#
# **Sources.** The definitions of speed-up and efficiency are those of any textbook on parallel computing, e.g.
# V. Kumar et al., *Introduction to Parallel Computing*, chapter 5; the effect of batch size on training is
# measured in C. Shallue et al., *Measuring the Effects of Data Parallelism on Neural Network Training*
# (arXiv:1811.03600).

# %%
ranks.stop()
