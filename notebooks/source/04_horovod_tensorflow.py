# %% [markdown]
# # Horovod with TensorFlow and Keras
#
# **You will** turn a TensorFlow training script for one process into one for many with Horovod, do the same with Keras
# and `model.fit`, meet a mistake that no message tells of, and get into the habit that finds it: asking whether all ranks
# hold the same weights.
#
# **Time** about 45 minutes. **Needs** two cores; no GPU, no network; Horovod, which `make setup` builds. Notebook `02`
# first, where you average gradients by hand.

# %%
import difflib
import os
import sys

# For TensorFlow, in every process that this notebook starts: no notes on start-up, and one thread to compute with.
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}

import numpy as np
from IPython.display import Markdown

from workshop_lib import ranks
from workshop_lib.exercises import horovod_keras as check
from workshop_lib.notebook import profile
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD
from workshop_lib.ranks import mpi, scripts
from workshop_lib.training import backends

backends.require("horovod-tf")
sizes = profile.current()
samples, epochs = 160 * sizes.steps, sizes.sweep_epochs
folder = BUILD / "04_horovod_tensorflow"
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## A script for one process
#
# MNIST and the workshop's network, with a training loop of our own. TensorFlow writes down what is computed under a
# `GradientTape`, and plays it backwards for the gradients. `tf.function` turns the Python function below it into a
# *graph*, which then runs without Python. (`autograph=False`: there are no loops and branches in it to translate.)
# `%%writefile` only writes the cell into a file, so that it can be started as a program.

# %%
# %%writefile {folder}/one_process.py
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from workshop_lib.data import mnist
from workshop_lib.models import keras_cnn


def main(samples, epochs, batch_size=64, lr=0.02):
    train, test = mnist.load("train"), mnist.load("test")
    test_batches = np.array_split(np.arange(len(test.labels)), 20)
    steps = samples // batch_size
    model = keras_cnn.build(seed=1)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(lr, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply(gradients, variables)

    @tf.function(autograph=False)
    def count_right(images, labels):
        guesses = tf.argmax(model(images, training=False), axis=1)
        return tf.math.count_nonzero(guesses == tf.cast(labels, tf.int64))

    for epoch in range(epochs):
        start = time.perf_counter()
        order = np.random.default_rng(epoch).permutation(samples)
        for indices in order[: steps * batch_size].reshape(steps, batch_size):
            train_step(train.images[indices], train.labels[indices])
        seconds = time.perf_counter() - start

        right = seen = 0
        for indices in test_batches:
            right += int(count_right(test.images[indices], test.labels[indices]))
            seen += len(indices)
        print(f"epoch {epoch + 1}: {steps} steps, {seconds:.1f} s, {right} of {seen} test images right")
    model.save_weights(Path(__file__).with_suffix(".weights.h5"))
    return model


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

# %%
scripts.run("python", folder / "one_process.py", samples, epochs, timeout_s=2 * sizes.timeout_s)

# %% [markdown]
# The first epoch is longer: its first step makes the graph.
#
# Keras keeps its weights in variables of its own kind; `v.value` is the variable of TensorFlow inside. For the tape alone
# `v` would do as well. Horovod knows TensorFlow's variables only.
#
# ## The same for many processes
#
# Horovod makes one program run on many processes: each is a *rank*, has its *shard* of the samples, and computes
# gradients of its own. An *allreduce* gives all ranks the mean of these, and each takes the same step. `hvd.rank()`
# numbers the ranks from 0 to `hvd.size() - 1`; `hvd.local_rank()` numbers those of one host.
#
# Read the script, but do not look for the differences: the cell after it finds them.

# %%
# %%writefile {folder}/horovod_tape.py
import sys
import time
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from workshop_lib.data import mnist
from workshop_lib.models import keras_cnn


def main(samples, epochs, batch_size=64, lr=0.02):
    rank, size = hvd.rank(), hvd.size()
    train, test = mnist.load("train"), mnist.load("test")
    test_batches = np.array_split(np.arange(len(test.labels)), 20)[rank::size]
    steps = samples // (batch_size * size)
    model = keras_cnn.build(seed=1)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(lr * size, momentum=0.9)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([v.value for v in (*model.variables, *optimizer.variables)], root_rank=0)

    @tf.function(autograph=False)
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply(gradients, variables)

    @tf.function(autograph=False)
    def count_right(images, labels):
        guesses = tf.argmax(model(images, training=False), axis=1)
        return tf.math.count_nonzero(guesses == tf.cast(labels, tf.int64))

    for epoch in range(epochs):
        start = time.perf_counter()
        order = np.random.default_rng(epoch).permutation(samples)[rank::size]
        for indices in order[: steps * batch_size].reshape(steps, batch_size):
            train_step(train.images[indices], train.labels[indices])
        seconds = time.perf_counter() - start

        right = seen = 0
        for indices in test_batches:
            right += int(count_right(test.images[indices], test.labels[indices]))
            seen += len(indices)
        right, seen = hvd.allreduce(tf.constant([right, seen]), op=hvd.Sum, name="counts").numpy()
        if rank == 0:
            print(f"epoch {epoch + 1}: {steps} steps, {seconds:.1f} s, {right} of {seen} test images right")
    if rank == 0:
        model.save_weights(Path(__file__).with_suffix(".weights.h5"))
    return model


if __name__ == "__main__":
    hvd.init()
    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    main(int(sys.argv[1]), int(sys.argv[2]))
    hvd.shutdown()


# %%
def difference(old, new):
    """What changed between two scripts."""
    texts = [(folder / name).read_text().splitlines() for name in (old, new)]
    lines = list(difflib.unified_diff(*texts, old, new, lineterm="", n=0))
    return Markdown("\n".join(["```diff", *(line for line in lines if not line.startswith("@@")), "```"]))


difference("one_process.py", "horovod_tape.py")

# %% [markdown]
# | change | why |
# |---|---|
# | `hvd.init()` … `hvd.shutdown()` | the ranks find each other, through MPI here. Between the two a thread of Horovod's runs in each process, and listens for what the others are ready to send |
# | `set_visible_devices` | each rank of a host sees one GPU, by its *local* rank; without this line all would compute on GPU 0 |
# | `[rank::size]` on the shuffled samples | each rank draws other samples, by its *global* rank. The shuffle has the same seed everywhere, so the shards do not overlap |
# | `steps` | the batch of a rank stays 64, so the *global batch* is `64 * size`, and an epoch has fewer steps. All ranks must take equally many, or one would wait for ever |
# | `lr * size` | a step for `size` times as many samples may be longer. This *linear scaling* has limits, a topic of its own |
# | `broadcast_variables` | all ranks begin with rank 0's weights and optimizer state; afterwards nothing is sent but gradients |
# | `DistributedGradientTape` | `gradient` returns the mean over ranks |
# | `allreduce(…, op=hvd.Sum)` | each test batch is counted on one rank; counts are added, and only then divided. Horovod's default is the mean |
# | `if rank == 0` | one rank prints, one rank writes the file |
#
# Here `keras_cnn.build(seed=1)` starts all ranks alike anyway. That is luck: a random layer more, or a checkpoint that
# rank 0 alone has read, and it is over.
#
# A program for Horovod is started like any MPI program, with `mpiexec` (Horovod's own `horovodrun` does much the same).

# %%
guess = predict(
    f"One process took {samples // 64} steps an epoch. How many does each of {sizes.ranks} ranks take?",
    low=0,
    high=2 * (samples // 64),
)
guess

# %%
launch = [*mpi.mpiexec(), "-n", sizes.ranks, sys.executable]
scripts.run(*launch, folder / "horovod_tape.py", samples, epochs, timeout_s=2 * sizes.timeout_s)
guess.compare(samples // (64 * sizes.ranks))

# %% [markdown]
# ## What the tape sends
#
# Now on this notebook's ranks. Each has two images of its own and computes the gradient of the last layer's bias, first
# with TensorFlow's tape, then with Horovod's. (TensorFlow takes some seconds to import, on every rank.)

# %%
team = ranks.start(sizes.ranks)
team.push(folder=str(folder), samples=samples, epochs=epochs)

# %%
# %%ranks --timeout 240
import runpy

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI

from workshop_lib.data import mnist
from workshop_lib.models import keras_cnn

tf.get_logger().setLevel("ERROR")
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
train, test = mnist.load("train"), mnist.load("test")
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def bias_gradient(wrap):
    """The gradient for the last layer's bias, of two images of this rank."""
    model = keras_cnn.build(seed=1)
    mine = slice(2 * rank, 2 * rank + 2)
    with tf.GradientTape() as tape:
        loss = loss_of(train.labels[mine], model(train.images[mine]))
    (gradient,) = wrap(tape).gradient(loss, [model.trainable_variables[-1].value])
    return gradient.numpy()


hvd.init()
alone = bias_gradient(lambda tape: tape)
together = bias_gradient(hvd.DistributedGradientTape)
hvd.shutdown()
print(f"by TensorFlow {alone[:4].round(3)}, by Horovod {together[:4].round(3)}, …")

# %%
mean = np.mean(team.pull("alone"), axis=0)
apart = max(np.abs(got - mean).max() for got in team.pull("together"))
print(f"Horovod's gradient and the mean of TensorFlow's differ by {apart:.1e} at the most.")

# %% [markdown]
# *Try it:* `lambda tape: hvd.DistributedGradientTape(tape, op=hvd.Sum)`. By what must the learning rate be multiplied
# now?
#
# Horovod runs between `hvd.init()` and `hvd.shutdown()`, and each cell that uses it has both. For its thread never rests:

# %%
# %%ranks
import time

hvd.init()
before = time.process_time()
time.sleep(1)
busy = time.process_time() - before
hvd.shutdown()
print(f"Horovod with nothing to do took {busy:.1%} of a core")

# %% [markdown]
# (It may start again because MPI was started by mpi4py, and stays.) Where that thread has no core of its own, it competes
# with the threads that compute. That is why two ranks on two cores took so little less time above, or none; the workshop's
# backends give it the lowest priority (`training/backends/horovod_process.py`).
#
# A trap for notebooks: Horovod matches messages by name, and TensorFlow names a gradient after its layer. Keras counts
# its layers. If one rank alone builds a network more than the others, its names differ from then on, and all wait for
# ever. Let all ranks build the same networks, in the same order, or name the layers, as `keras_cnn` does.
#
# ## model.fit
#
# Keras has the loop ready-made: `compile` takes the optimizer and the loss, `fit` the samples. Where is the tape? Inside
# `fit`, out of our reach. So Horovod offers another hook, an optimizer that averages the gradients it is given:
# `horovod.tensorflow.keras.DistributedOptimizer`.
#
# Each rank fits the network to its shard, with a learning rate scaled as before. All start from the same seed, so nothing
# need be broadcast.

# %%
# %%ranks --timeout 240
import horovod.tensorflow.keras as hvd_keras


def fit(optimizer):
    """The workshop's network, trained on this rank's shard."""
    model = keras_cnn.build(seed=1)
    model.compile(optimizer, loss_of, metrics=["accuracy"], jit_compile=False)
    mine = slice(rank, samples - samples % size, size)  # equally many samples on each rank
    history = model.fit(
        train.images[mine], train.labels[mine], batch_size=64, epochs=epochs, verbose=0
    ).history
    for epoch, (loss, accuracy) in enumerate(zip(history["loss"], history["accuracy"], strict=True), 1):
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.1%}")
    return model


hvd.init()
model = fit(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.02 * size, momentum=0.9)))
hvd.shutdown()
print(
    f"after training: {model.evaluate(test.images, test.labels, batch_size=500, verbose=0)[1]:.1%} of all test images right"
)

# %% [markdown]
# (`jit_compile=False`, because XLA, the compiler that Keras may use, does not know Horovod's operations.)
#
# No error, no warning, a falling loss, and a good network. Many a project would stop here, and publish its scaling curve.
# All ranks have tested all test images. If they hold one network, they give one answer to each.

# %%
guess = predict(
    "On how many of the 10,000 test images do the first and the last rank disagree?", low=0, high=2_000
)
guess

# %%
# %%ranks
answers = model.predict(test.images, batch_size=500, verbose=0).argmax(axis=1)

# %%
answers = team.pull("answers")
guess.compare(int((answers[0] != answers[-1]).sum()))

# %% [markdown]
# ## Do the ranks agree?
#
# The test of every run, in one line: gather a *digest* of the weights, a checksum that changes with any bit, from all
# ranks, and count the different ones. There must be one. `hvd.allgather_object` collects any object from every rank, on
# every rank; it is given a name because it would otherwise be named by the object's type, and the names must match.


# %%
# %%ranks
import hashlib


def digest(model):
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()[:12]


def ranks_agree(model):
    return len(set(hvd.allgather_object(digest(model), name="digest"))) == 1


hvd.init()
agree = ranks_agree(model)
hvd.shutdown()
print(f"digest {digest(model)}, do the ranks agree? {agree}")

# %% [markdown]
# They do not. Each rank has trained a network of its own, on its own shard.
#
# ## One step
#
# What happened shows in the smallest model there is: a single weight $w$, which starts at 0. On rank $r$ the loss is $(w
# - r)^2$. Its gradient is $-2r$, so with a learning rate of 0.5 a rank by itself steps from 0 to $r$, its own number.
# With averaged gradients all ranks must step to the mean of their numbers.


# %%
# %%ranks
def one_step(optimizer):
    """The weight after one step of fit on this rank."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), dense])
    model.compile(optimizer, "mse", jit_compile=False)
    one = np.ones((1, 1), "float32")
    model.fit(one, rank * one, verbose=0)
    return float(model.get_weights()[0][0, 0])


hvd.init()
weight = one_step(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.5)))
hvd.shutdown()
print(f"one step from 0 to {weight:g}; the mean of the ranks' numbers is {np.mean(range(size)):g}")

# %% [markdown]
# Nothing was averaged. To see why, look at which methods Horovod's class has of its own, and which of them `fit` calls:

# %%
# %%ranks
import types

stock = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.5))
own = [
    name
    for name, item in vars(type(stock)).items()
    if isinstance(item, types.FunctionType) and name != "__init__"
]
called = []


def noted(name, method):
    def call(*args, **how):
        called.append(name)
        return method(*args, **how)

    return call


for name in [*own, "apply"]:
    setattr(stock, name, noted(name, getattr(stock, name)))

hvd.init()
one_step(stock)
hvd.shutdown()
if rank == 0:
    print("Horovod's class defines:", ", ".join(own))
    print("fit calls:", ", then ".join(called))
    print("apply is defined in:", type(stock).apply.__module__)

# %% [markdown]
# Horovod 0.28 was written for Keras 2. Its class averages in `_compute_gradients` and its like, methods that Keras 2
# called for the gradients. Its `apply_gradients` relies on that, and hands on what it gets. Keras 3 computes gradients
# elsewhere and calls `apply_gradients`, which calls `apply`. The methods that average are there, and nobody calls them.
#
# Nothing in Python forbids to define a method that is never called. And each rank *does* learn, from its shard. The loss
# falls, the epoch takes a fraction of the time, and the speed-up is better than that of a correct program, which has to
# communicate.
#
# Horovod's callbacks for Keras are made for Keras 2 too. They at least say so, as does
# `model.save` with such an optimizer; `save_weights` does not. (This cell fails on purpose.)

# %%
# %%ranks --catch
hvd.init()
callback = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
callback.set_model(model)
callback.on_batch_end(0)

# %% [markdown]
# ## The repair
#
# All gradients go through `apply`. So average them there, and leave the rest to Keras. `grouped_allreduce` sends a whole
# list as one message.


# %%
# %%ranks
class AveragingSGD(keras.optimizers.SGD):
    def apply(self, gradients, variables=None):
        return super().apply(hvd.grouped_allreduce(list(gradients), op=hvd.Average), variables)


hvd.init()
weight = one_step(AveragingSGD(0.5))
hvd.shutdown()
print(f"one step from 0 to {weight:g}; the mean of the ranks' numbers is {np.mean(range(size)):g}")

# %%
# %%ranks --timeout 240
hvd.init()
model = fit(AveragingSGD(0.02 * size, momentum=0.9))
agree = ranks_agree(model)
hvd.shutdown()
print(
    f"after training: {model.evaluate(test.images, test.labels, batch_size=500, verbose=0)[1]:.1%} of all test images right"
)
print(f"digest {digest(model)}, do the ranks agree? {agree}")

# %%
assert all(team.pull("agree")), "the ranks hold different weights"

# %% [markdown]
# The losses of the ranks still differ, for each is that of one shard. The weights do not. And the script with the tape?
# The habit costs one line, so ask there too:

# %%
# %%ranks --timeout 240
hvd.init()
by_tape = runpy.run_path(f"{folder}/horovod_tape.py")["main"](min(samples, 2_000), 1)
agree = ranks_agree(by_tape)
hvd.shutdown()
print(f"digest {digest(by_tape)}, do the ranks agree? {agree}")

# %% [markdown]
# ### Exercise 1: any optimizer
#
# `AveragingSGD` is SGD. Write a function that takes any optimizer of Keras, such as `keras.optimizers.Adam(0.001)`, and
# returns one of the same kind with the same settings, which applies the mean of all ranks' gradients. Gradients may be
# clipped by the optimizer (`clipnorm`): then their mean is to be clipped.
#
# The last line makes a new object of your class with the settings of the old one. (The import is inside, because the
# notebook's own process does without TensorFlow.)


# %%
def averaging(optimizer):
    import horovod.tensorflow as hvd

    class Averaging(type(optimizer)):
        # <solution>
        def apply(self, gradients, variables=None):
            mean = hvd.grouped_allreduce(list(gradients), op=hvd.Average)
            return super().apply(mean, variables)

        # <stub>
        # # which method do all gradients go through? What happens there before the optimizer's own?
        # raise NotImplementedError("your code here")
        # </stub>
        # </solution>

    return Averaging.from_config(optimizer.get_config())


# %%
check.averaging(averaging)

# %% [markdown]
# ## The whole script, with Keras
#
# What else does a script with `fit` need? Callbacks: objects whose methods Keras calls at certain moments. First the
# script for one process.

# %%
# %%writefile {folder}/one_keras.py
import sys
from pathlib import Path

import keras

from workshop_lib.data import mnist
from workshop_lib.models import keras_cnn


def main(samples, epochs, batch_size=64, lr=0.02):
    train, test = mnist.load("train"), mnist.load("test")
    mine, my_test = slice(samples), slice(None)
    model = keras_cnn.build(seed=1)
    optimizer = keras.optimizers.SGD(lr, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss_of, metrics=["accuracy"], jit_compile=False)
    fitted = model.fit(
        train.images[mine],
        train.labels[mine],
        batch_size=batch_size,
        epochs=epochs,
        verbose=0,
    )
    loss, accuracy = model.evaluate(test.images[my_test], test.labels[my_test], batch_size=500, verbose=0)
    print("training loss of each epoch:", [round(loss, 4) for loss in fitted.history["loss"]])
    print(f"test accuracy {accuracy:.2%}")
    model.save(Path(__file__).with_suffix(".keras"))
    return model


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

# %%
scripts.run("python", folder / "one_keras.py", samples, epochs, timeout_s=2 * sizes.timeout_s)

# %% [markdown]
# And for many. The three callbacks are what Horovod's would do, had they come along to Keras 3. *Warm-up* raises the
# learning rate from a small value over the first steps, here over one epoch: at the start, weights change fast, and long
# steps do harm.

# %%
# %%writefile {folder}/horovod_keras.py
import sys
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from workshop_lib.data import mnist
from workshop_lib.models import keras_cnn


class AveragingSGD(keras.optimizers.SGD):
    def apply(self, gradients, variables=None):
        return super().apply(hvd.grouped_allreduce(list(gradients), op=hvd.Average), variables)


class Broadcast(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.optimizer.build(self.model.trainable_variables)
        variables = [*self.model.variables, *self.model.optimizer.variables]
        hvd.broadcast_variables([v.value for v in variables], root_rank=0)


class WarmUp(keras.callbacks.Callback):
    def __init__(self, lr, steps):
        super().__init__()
        self.lr, self.steps, self.step = lr, steps, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.step += 1
        self.model.optimizer.learning_rate = self.lr * min(1, self.step / self.steps)


class AverageMetrics(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        for name in sorted(logs):  # all ranks in the same order
            logs[name] = float(hvd.allreduce(tf.constant(logs[name]), op=hvd.Average, name=name))


def main(samples, epochs, batch_size=64, lr=0.02):
    rank, size = hvd.rank(), hvd.size()
    train, test = mnist.load("train"), mnist.load("test")
    mine, my_test = slice(rank, samples - samples % size, size), slice(rank, None, size)
    steps = samples // (batch_size * size)
    model = keras_cnn.build(seed=1)
    optimizer = AveragingSGD(lr * size, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss_of, metrics=["accuracy"], jit_compile=False)
    fitted = model.fit(
        train.images[mine],
        train.labels[mine],
        batch_size=batch_size,
        epochs=epochs,
        verbose=0,
        callbacks=[Broadcast(), WarmUp(lr * size, steps), AverageMetrics()],
    )
    loss, accuracy = model.evaluate(test.images[my_test], test.labels[my_test], batch_size=500, verbose=0)
    seen = len(test.labels[my_test])
    right, seen = hvd.allreduce(tf.constant([accuracy * seen, seen]), op=hvd.Sum, name="test").numpy()
    if rank == 0:
        print("training loss of each epoch:", [round(loss, 4) for loss in fitted.history["loss"]])
        print(f"test accuracy {right / seen:.2%}")
        model.save(Path(__file__).with_suffix(".keras"))
    return model


if __name__ == "__main__":
    hvd.init()
    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    main(int(sys.argv[1]), int(sys.argv[2]))
    hvd.shutdown()

# %%
difference("one_keras.py", "horovod_keras.py")

# %% [markdown]
# | change | why |
# |---|---|
# | `AveragingSGD`, `lr * size` | gradients averaged; the learning rate scaled |
# | `Broadcast` | in `on_train_begin`, before the first step. An optimizer makes its state when it is built, so build it, then send it |
# | `WarmUp` | the learning rate of Keras may be set between steps, as an attribute |
# | `AverageMetrics` | the mean of what the ranks saw. It is exact because all shards have one size |
# | `accuracy * seen`, then `right / seen` | exact with shards of any size |
# | `if rank == 0` around `save` | one rank writes the file |
#
# Callbacks are called in the order of the list: one that reads metrics, such as `ReduceLROnPlateau` or `EarlyStopping`,
# comes after `AverageMetrics`. Otherwise each rank decides by its own numbers, one stops, and the others wait for it.

# %%
# %%ranks --timeout 240
hvd.init()
model = runpy.run_path(f"{folder}/horovod_keras.py")["main"](samples, epochs)
agree = ranks_agree(model)
hvd.shutdown()
print(f"digest {digest(model)}, do the ranks agree? {agree}")

# %% [markdown]
# *Try it:* leave out `Broadcast()` and build the network with `seed=hvd.rank()`. Does the loss fall? Do the ranks agree?
#
# ## Saving and loading
#
# A file written by `model.save` holds the weights, the optimizer's state, and the *names* of the classes. A class of your
# own must be given to `load_model`, in `custom_objects`. The library's `keras3.DistributedOptimizer` therefore saves
# under the name of the optimizer that it was made from: such a file opens anywhere, also where there is no Horovod. But
# what comes back?
#
# One step, save, load, another step, with the model of a single weight:

# %%
# %%ranks
from workshop_lib.training.backends import keras3

path = f"{folder}/one_weight.keras"
one = np.ones((1, 1), "float32")

hvd.init()
dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
saved = keras.Sequential([keras.Input((1,)), dense])
saved.compile(keras3.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
saved.fit(one, rank * one, verbose=0, callbacks=[keras3.BroadcastVariables()])
if rank == 0:
    saved.save(path)
MPI.COMM_WORLD.Barrier()  # until the file is there

loaded = keras.models.load_model(path)
wrapped = keras.models.load_model(path)
wrapped.optimizer = keras3.DistributedOptimizer(wrapped.optimizer)
for name, model in (("loaded", loaded), ("loaded, wrapped again", wrapped)):
    model.fit(one, rank * one, verbose=0)
    agree = ranks_agree(model)
    print(f"{name}: the weight is {model.get_weights()[0].item():.3f}, do the ranks agree? {agree}")
hvd.shutdown()

# %% [markdown]
# The loaded optimizer is Keras's own, and averages nothing: the same trap by another door. Wrap it again, or use
# `keras3.load_model`, which does both.
#
# ### Exercise 2: from one process to many
#
# The function below trains a model on one process. Make it right on several: all ranks call it with the same arguments,
# but for `model`, which each has built with random weights of its own. Horovod is initialised.
#
# - Together they train on each sample once an epoch, with batches of `batch_size` *on each rank*, and with `lr` scaled
#   linearly. The number of samples divides evenly.
# - Afterwards all hold the same trained model, and one of them has saved it to `path`.
# - All return the accuracy on the test samples, each counted once. Their number does *not* divide evenly.
#
# `keras3.DistributedOptimizer(optimizer)` and `keras3.BroadcastVariables()` do what their names say.


# %%
def train(model, images, labels, test_images, test_labels, lr, batch_size, epochs, path):
    import horovod.tensorflow as hvd
    import keras
    import numpy as np

    from workshop_lib.training.backends import keras3

    # <solution>
    rank, size = hvd.rank(), hvd.size()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras3.DistributedOptimizer(keras.optimizers.SGD(lr * size, momentum=0.9))
    model.compile(optimizer, loss_of, jit_compile=False)
    callbacks = [keras3.BroadcastVariables()]
    mine, my_labels = images[rank::size], labels[rank::size]
    model.fit(mine, my_labels, batch_size=batch_size, epochs=epochs, verbose=0, callbacks=callbacks)
    if rank == 0:
        model.save(path)
    my_test, my_test_labels = test_images[rank::size], test_labels[rank::size]
    answers = np.argmax(model(my_test), axis=1)
    counts = np.array([np.sum(answers == my_test_labels), len(my_test_labels)])
    right, seen = hvd.allreduce(counts, op=hvd.Sum, name="counts").numpy()
    return right / seen
    # <stub>
    # raise NotImplementedError("delete this line, then change those below")
    # loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # optimizer = keras.optimizers.SGD(lr, momentum=0.9)
    # model.compile(optimizer, loss_of, jit_compile=False)
    # model.fit(images, labels, batch_size=batch_size, epochs=epochs, verbose=0)
    # model.save(path)
    # answers = np.argmax(model(test_images), axis=1)
    # right, seen = np.sum(answers == test_labels), len(test_labels)
    # return right / seen
    # </stub>
    # </solution>


# %%
check.train(train)

# %% [markdown]
# ## Remember
#
# - From one process to many: initialise, a GPU by the local rank, a shard by the global rank, scale the learning rate,
#   broadcast, average the gradients; rank 0 saves; counts are added, then divided.
# - Horovod knows TensorFlow's variables: hand it `v.value`.
# - Horovod 0.28's `DistributedOptimizer` averages nothing under Keras 3, and no message says so. Average in `apply`.
#   After loading, wrap again.
# - A falling loss proves nothing about the communication: every rank by itself learns, too. At the end of every run, ask
#   whether the ranks agree.
#
# **Sources.** A. Sergeev and M. Del Balso, *Horovod: fast and easy distributed deep learning in TensorFlow*
# (arXiv:1802.05799): the steps from one process to many. Horovod's documentation and the source of version 0.28.1
# (`horovod/_keras`) for where it averages; the source of Keras 3 (`BaseOptimizer.apply_gradients`) for what calls what.
# P. Goyal et al., *Accurate, Large Minibatch SGD* (arXiv:1706.02677): linear scaling and warm-up.

# %%
ranks.stop()
