# %% [markdown] track="frameworks"
# # Horovod with TensorFlow and Keras
#
# You inherit a Keras script. Someone has added Horovod to it, following Horovod's documentation. You start the script on two
# ranks: no error, no warning, a falling loss, a good accuracy, and half the time per epoch. Would you trust its scaling curve?
# (Horovod's last release was in June 2023, so you'll meet it in scripts that you inherit, not in new ones.)
#
# **You will** examine such a run, find out whether something is wrong with it, and fix it. Then you'll turn a Keras function
# for one process into one for many.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores and Horovod, which `make setup` builds; no GPU, no
# network. Do [02_synchronous_sgd](02_synchronous_sgd.ipynb) first, where you average gradients by hand.

# %%
import os
import sys

# For TensorFlow in every process that this notebook starts: no start-up messages, and
# one thread to compute with.
os.environ |= {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}

from workshop_lib import paths, predict, profile, ranks, scripts, take_home

from lessons import horovod_tensorflow as lesson

lesson.backends.require("horovod-tf")
sizes = profile.current()
samples, epochs = 160 * sizes.steps, sizes.sweep_epochs
out = paths.BUILD / "horovod_tf.keras"

# %% [markdown]
# ## The inherited run
#
# With Keras you don't write the training loop: `compile` takes the optimizer and the loss, and `fit` takes the samples. Horovod
# offers an optimizer that should average the gradients it gets, `horovod.tensorflow.keras.DistributedOptimizer`. The inherited
# script uses this optimizer, and the next cells do the same on this notebook's ranks. The ranks need a few seconds to import
# TensorFlow.

# %%
team = ranks.start(sizes.ranks)
team.push(samples=samples, epochs=epochs, path=str(out))

# %%
# %%ranks --timeout 240
import hashlib

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import keras
import numpy as np
import tensorflow as tf

from workshop_lib import mnist

from lessons import horovod_tensorflow as lesson

tf.get_logger().setLevel("ERROR")
hvd.init()
rank, size = hvd.rank(), hvd.size()
split, test = mnist.load("train"), mnist.load("test")
samples -= samples % size  # so that all ranks get the same number
images, labels = split.images[:samples], split.labels[:samples]

# %% [markdown]
# Each rank fits the network to its own part of the samples. All of them start from the same seed, so there is nothing to
# broadcast. The learning rate is multiplied by `size`, because a step based on `size` times as many samples can be longer
# ([07_large_batch](07_large_batch.ipynb) shows the limits of this *linear scaling*). `jit_compile=False` keeps Keras from using
# the compiler XLA, which Horovod supports only on GPUs.


# %%
# %%ranks --timeout 240
def fit(optimizer):
    """The network, trained on this rank's samples; its answers to all test images."""
    model = lesson.keras_cnn.build(seed=1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    fitted = model.fit(
        images[rank::size], labels[rank::size], batch_size=64, epochs=epochs, verbose=0
    )
    answers = model.predict(test.images, batch_size=500, verbose=0).argmax(axis=1)
    print("loss of each epoch:", *np.round(fitted.history["loss"], 3))
    print(f"right: {np.mean(answers == test.labels):.1%} of all test images")
    return model, answers


model, answers = fit(
    hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.02 * size, momentum=0.9))
)

# %% [markdown]
# No error, no warning, a falling loss, and a decent network. Many projects would stop here and publish their scaling curve.
#
# Every rank has tested its network on all test images. What do you expect: do the ranks give the same answers?

# %%
guess = predict(
    "On how many test images do the first and the last rank disagree?",
    low=0,
    high=2_000,
)
guess

# %%
answers = team.pull("answers")
guess.compare(int((answers[0] != answers[-1]).sum()))

# %% [markdown]
# ## Do the ranks agree?
#
# You can check at the end of any run whether the ranks agree. As in notebook [02](02_synchronous_sgd.ipynb), compute a
# *digest*, a checksum of all weights, on every rank. Then count how many different digests there are. (`hvd.allgather_object`
# collects an object from every rank. Horovod matches messages by name, so pass a `name`.)


# %%
# %%ranks
def digest(model):
    weights = b"".join(w.tobytes() for w in model.get_weights())
    return hashlib.sha256(weights).hexdigest()[:12]


def ranks_agree(model):
    return len(set(hvd.allgather_object(digest(model), name="digest"))) == 1


print(f"digest {digest(model)}, do the ranks agree? {ranks_agree(model)}")

# %% [markdown]
# They don't. Each rank has trained a network of its own, on its own samples. Where did the gradients go?
#
# ## One step
#
# To see what happened, take the smallest model there is: a single weight $w$, which starts at 0. On rank $r$ the loss is
# $(w - r)^2$. At the start its gradient is $-2r$, so with a learning rate of 0.5, a rank that trains alone steps from 0
# to $r$, its own number. With averaged gradients, every rank steps to the mean of all the ranks' numbers.


# %%
# %%ranks
def one_step(optimizer):
    """The weight after one step of fit on this rank."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), dense])
    model.compile(optimizer, "mse", jit_compile=False)
    one = np.ones((1, 1), "float32")
    model.fit(one, rank * one, verbose=0)
    return model.get_weights()[0].item()


stock = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.5))
print(
    f"a step from 0 to {one_step(stock):g}; "
    f"the mean of the ranks' numbers is {(size - 1) / 2:g}"
)

# %% [markdown]
# No rank averaged anything. Why? These are the methods that Horovod's class defines:

# %%
# %%ranks
if rank == 0:
    print(
        "Horovod's class defines",
        *(name for name, item in vars(type(stock)).items() if callable(item)),
    )
    print("its `apply` comes from", type(stock).apply.__module__)

# %% [markdown]
# Horovod 0.28 was written for Keras 2, and averages in `_compute_gradients` and similar methods. Keras 2 called these methods
# to get the gradients. Keras 3 never calls them: it computes the gradients elsewhere and calls `apply_gradients`, which trusts
# that the gradients have been averaged and hands them on to `apply`. Python is perfectly happy to let you define a method
# nobody ever calls.
#
# And each rank *does* learn, from its own samples. The speed-up is even better than that of a correct script, which has to
# communicate.
#
# ## Exercise 1 (normal): an optimizer that averages
#
# With this function you can use any Keras optimizer on many ranks. Give it `keras.optimizers.Adam(0.001)`, and it returns an
# Adam optimizer with the same settings, which applies the mean of all ranks' gradients. If the optimizer clips gradients
# (`clipnorm`), it must clip their mean. The last line creates an object of your class with the given optimizer's settings.
#
# <details><summary>Hint 1: where?</summary>
#
# Horovod's class overrides methods that Keras 3 doesn't call. Which method do all gradients go through, whether they come from
# `fit` or from `apply_gradients`? Override that method: do something first, and then call the optimizer's own version.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# The method is `apply(self, gradients, variables=None)`. `hvd.grouped_allreduce(list, op=hvd.Average)` averages a whole list in
# one go. `super().apply(…)` does what the given optimizer would have done.
#
# </details><details><summary>Solution</summary>
#
# {solution of averaging}
#
# </details>


# %%
def averaging(optimizer):
    """An optimizer like the given one that applies the mean of all ranks' gradients.

    All ranks step together.
    """
    # Imported here because only the ranks need TensorFlow.
    import horovod.tensorflow as hvd

    class Averaging(type(optimizer)):
        # <solution>
        def apply(self, gradients, variables=None):
            mean = hvd.grouped_allreduce(list(gradients), op=hvd.Average)
            return super().apply(mean, variables)

        # <stub>
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>

    return Averaging.from_config(optimizer.get_config())


# %%
lesson.check.averaging(averaging)

# %% [markdown]
# Now train with it. (The check has shut Horovod down, so the next cell starts it again.)

# %%
team.push(averaging=averaging)

# %%
# %%ranks --timeout 240
hvd.init()
print(f"a step from 0 to {one_step(averaging(keras.optimizers.SGD(0.5))):g}")
model, answers = fit(averaging(keras.optimizers.SGD(0.02 * size, momentum=0.9)))
print(f"digest {digest(model)}, do the ranks agree? {ranks_agree(model)}")
hvd.shutdown()  # its idle thread would take time from the script below

# %% [markdown]
# The ranks' losses still differ, because each is the loss of one rank's samples. The weights don't.
#
# ## A script for many processes
#
# What does a script for many processes need besides averaged gradients? [scripts/horovod_tf.py](scripts/horovod_tf.py) is a
# complete TensorFlow script for MNIST that you can take home. It has a loop of its own instead of `fit`, so it records its
# computations on a `GradientTape`, and plays the tape backward to get the gradients. Horovod can wrap this tape, and the wrapped
# tape works with Keras 3, too. `tf.function` turns a Python function into a *graph*, which then runs without Python. Only the
# marked lines know about other processes. Here they are, with the lines around them:

# %%
take_home.marked("horovod_tf.py", r"hvd|\[rank|if rank|\bsize\b", 2)

# %% [markdown]
# | line | why |
# |---|---|
# | `hvd.init()` | starts Horovod's background thread, which finds out which gradients are ready on all ranks ([03](03_horovod_pytorch.ipynb) shows how) |
# | `set_visible_devices` | each rank of a host takes its own GPU, by its *local* rank. Without it, all of them compute on GPU 0 |
# | `broadcast_variables` | every rank starts with rank 0's weights and optimizer state |
# | `steps` | each step takes 64 images per rank, so an epoch has fewer steps. All ranks must take the same number of steps, or some ranks wait forever |
# | `DistributedGradientTape` | its `gradient` returns the mean over the ranks |
# | `permutation(…)[rank::size]` | each rank takes its own part of every batch. All ranks shuffle with the same seed, so the parts don't overlap |
# | `allreduce(…, op=hvd.Sum)` | each rank tests its own part. Add up counts and divide last, as in [01](01_mpi_basics.ipynb) |
# | `if rank == 0` | one rank prints and writes the file |
#
# Keras keeps its weights in variables of its own. Inside each Keras variable `v` is a TensorFlow variable, `v.value`, the only
# kind that Horovod understands.
#
# The next cell starts the script with `mpiexec`. A Horovod script needs no `-m mpi4py`; [03](03_horovod_pytorch.ipynb) says
# why.

# %%
options = ["--data", paths.MNIST, "--images", samples, "--epochs", epochs, "--out", out]
launch = [*scripts.mpiexec(sizes.ranks), sys.executable]
scripts.run(
    *launch, paths.SCRIPTS / "horovod_tf.py", *options, timeout_s=2 * sizes.timeout_s
)

# %% [markdown]
# The first epoch includes the first step, which builds the graph. How much slower does that make the first epoch in your run?
#
# ## Exercise 2 (normal): from one process to many
#
# The function below trains a model in one process. Change it so that many ranks train one model together. The same changes make
# any Keras script run on many processes. All ranks call the function with the same images, labels and path, but each rank has
# built `model` with its own random weights. Horovod is already initialized.
#
# - Together the ranks train on each sample once per epoch, with 64 samples *per rank* in each step, and the learning rate
#   scaled linearly. (The number of samples is a multiple of the number of ranks.)
# - Afterwards all ranks hold the same trained model, and one of them has saved it.
#
# `averaging` is your function from exercise 1. The callback `lesson.keras3.BroadcastVariables()` broadcasts rank 0's weights
# before the first step.
#
# <details><summary>Hint 1: what has to change?</summary>
#
# Go through the table under the script above. Four of its rows apply: the broadcast, the gradients, each rank's samples, and the
# file. And what about the learning rate?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `rank, size = hvd.rank(), hvd.size()`; `images[rank::size]`; `callbacks=[…]` in `fit`; `if rank == 0:`.
#
# </details><details><summary>Solution</summary>
#
# {solution of train}
#
# </details>


# %%
def train(model, images, labels, path, averaging):
    """Trains `model` on all ranks together and saves it to `path`, once.

    Must be called on every rank.
    """
    import horovod.tensorflow as hvd
    import keras

    # <solution>
    rank, size = hvd.rank(), hvd.size()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = averaging(keras.optimizers.SGD(0.02 * size, momentum=0.9))
    model.compile(optimizer, loss, jit_compile=False)
    callbacks = [lesson.keras3.BroadcastVariables()]
    model.fit(
        images[rank::size],
        labels[rank::size],
        batch_size=64,
        epochs=2,
        verbose=0,
        callbacks=callbacks,
    )
    if rank == 0:
        model.save(path)
    # <stub>
    # raise NotImplementedError("your code here: delete this line, change those below")
    # loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
    # model.compile(optimizer, loss, jit_compile=False)
    # model.fit(images, labels, batch_size=64, epochs=2, verbose=0)
    # model.save(path)
    # </stub>
    # </solution>


# %%
lesson.check.train(train)

# %% [markdown]
# Now the ranks begin with different weights:

# %%
team.push(train=train)

# %%
# %%ranks --timeout 240
hvd.init()
model = lesson.keras_cnn.build(seed=rank)
train(model, images, labels, path, averaging)
print(f"digest {digest(model)}, do the ranks agree? {ranks_agree(model)}")

# %% [markdown]
# *Break it:* leave out the broadcast. What does the digest say?
#
# With a `tf.data` pipeline, a rank's samples are `dataset.shard(size, rank)`. Call `shard` before `shuffle` and `batch`, so
# that no two ranks get the same sample.
#
# ## Take it home
#
# [scripts/horovod_keras.py](scripts/horovod_keras.py) is `horovod_tf.py` with a Keras optimizer that averages. Instead of
# recording a tape, this script lets Keras take the step. To start the script in a terminal, go to the workshop's folder, and
# type:
#
# ```bash
# source .venv/bin/activate
# mpiexec -n 2 python notebooks/scripts/horovod_keras.py
# ```

# %%
take_home.diff("horovod_tf.py", "horovod_keras.py")

# %% [markdown]
# ## Deeper: what else Keras 3 breaks
#
# Horovod's gradient tape works under Keras 3. The parts of Horovod in this table don't. All of them work with the legacy Keras
# 2 (the package `tf-keras`, and `TF_USE_LEGACY_KERAS=1` in the environment).
#
# | broken | what to do |
# |---|---|
# | `hvd_keras.callbacks` raise errors | broadcast with `lesson.keras3.BroadcastVariables`, and warm up with a schedule for the learning rate. To average an epoch's metrics, call `hvd.allreduce` in the `on_epoch_end` of a callback, and list this callback before those that read the metrics, such as `EarlyStopping`. Otherwise one rank may stop on its own, and the other ranks wait forever |
# | `hvd.SyncBatchNormalization` raises an error | use `GroupNormalization` or `LayerNormalization`. Keras's own `BatchNormalization(synchronized=True)` doesn't help: under Horovod it silently uses each rank's own statistics |
# | `hvd.PartialDistributedGradientTape`, for layers that differ by rank, raises an error | call `tape.register_local_source(v.value)` for each variable of those layers, on a `DistributedGradientTape` created with `scale_local_gradients=False` |
# | `model.save` raises an error with Horovod's optimizer | average in `apply`, as you did |
# | `keras.models.load_model` returns a plain optimizer, which averages nothing | wrap the optimizer again after loading |

# %%
# %%ranks
dense = keras.layers.Dense(1)
dense.build((None, 1))
callback = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
callback.set_model(model)
for broken in (
    lambda: callback.on_batch_end(0),
    lambda: hvd.SyncBatchNormalization(),
    lambda: hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[dense]),
):
    try:
        broken()
    except (ValueError, AttributeError) as error:
        print(f"{type(error).__name__}: {error}")
hvd.shutdown()

# %% [markdown]
# There's one more trap. Horovod matches tensors by name, and Keras numbers the layers as it builds them. If a single rank
# builds one more network than the other ranks do, its layers' names differ from then on, and all ranks wait forever. After 60
# seconds, Horovod's *stall inspector* warns: it lists the tensors that some ranks wait for, and the ranks that haven't
# announced them. With `HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=120` it also ends the job. So build the same networks in the same
# order on every rank, or name the layers yourself.
#
# ## Deeper: TensorFlow's own strategies
#
# TensorFlow has its own distribution strategies, in `tf.distribute`. `MirroredStrategy` uses several GPUs from one process, and
# `MultiWorkerMirroredStrategy` uses several hosts. Its processes talk over gRPC, which leaves a supercomputer's fast network
# unused unless NCCL moves the tensors. Choose one of these if your code is already TensorFlow throughout. For new work, look at
# DDP ([05](05_ddp.ipynb)) first. (For scripts that still use sessions and hooks of TensorFlow 1, the book's page
# [Differences](../book/differences.md) says what replaces them.)
#
# ## Remember
#
# - From one process to many: take a GPU by local rank and samples by rank, broadcast, average the gradients, adapt the learning
#   rate to the larger batch, and save on rank 0.
# - Horovod only understands TensorFlow's variables, so hand it `v.value` instead of a Keras variable `v`.
# - Under Keras 3, Horovod 0.28's `DistributedOptimizer` silently averages nothing. Average in `apply`, and wrap the optimizer
#   again after loading.
# - A falling loss proves nothing about communication, because a rank that never communicates learns, too. At the end of every
#   run, check that the ranks agree.
#
# **Sources.** A. Sergeev and M. Del Balso, *Horovod: fast and easy distributed deep learning in TensorFlow* (arXiv:1802.05799):
# the steps from one process to many. The source of Horovod 0.28.1 (`horovod/_keras`) for where Horovod averages, and the source
# of Keras 3 (`BaseOptimizer.apply_gradients`) for which method calls which. P. Goyal et al., *Accurate, Large Minibatch SGD*
# (arXiv:1706.02677): linear scaling and warm-up.

# %%
ranks.stop()
