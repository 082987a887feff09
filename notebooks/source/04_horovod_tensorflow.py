# %% [markdown]
# # Horovod with TensorFlow and Keras
#
# Someone adds Horovod to a Keras script, as its documentation says, and starts it on two ranks. No error, no warning. The
# loss falls, the accuracy is good, and an epoch takes half the time. But the ranks never exchanged a single gradient. How
# would you have noticed?
#
# **You will** read and run a TensorFlow script with Horovod, meet this bug and find its cause, write the optimizer that fixes
# it, and change a Keras function for one process so that many processes can train together.
#
# **Time** is computed when the notebooks are generated. **Needs** two cores and Horovod, which `make setup` builds; no GPU, no
# network. Do [02_synchronous_sgd](02_synchronous_sgd.ipynb) first, where you average gradients by hand.

# %%
import os
import sys

# For TensorFlow in every process that this notebook starts: no start-up messages, and one thread to compute with.
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}

from workshop_lib import ranks
from workshop_lib.lessons.horovod_tensorflow import judge as check
from workshop_lib.notebook import profile, take_home
from workshop_lib.notebook.prediction import predict
from workshop_lib.paths import BUILD, MNIST, SCRIPTS
from workshop_lib.ranks import mpi, scripts
from workshop_lib.training import backends

backends.require("horovod-tf")
sizes = profile.current()
samples, epochs = 160 * sizes.steps, sizes.sweep_epochs
folder = BUILD / "04_horovod_tensorflow"
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## A script for many processes
#
# Here's a complete TensorFlow script that trains on MNIST, and you can take it home:
# [scripts/horovod_tf.py](scripts/horovod_tf.py). It records what it computes on a `GradientTape` and plays the tape backwards
# to get the gradients. `tf.function` turns a Python function into a *graph*, which then runs without Python. Only the marked
# lines know about other processes. Without them, and with `size` set to 1 and `rank` to 0, it's a script for one process.

# %%
take_home.marked("horovod_tf.py", r"hvd|\brank\b|\bsize\b")

# %% [markdown]
# | line | why |
# |---|---|
# | `hvd.init()` | the ranks find each other, through MPI here. From then on a Horovod thread runs in each process and finds out which gradients are ready on all ranks |
# | `set_visible_devices` | each rank of a host takes its own GPU, by its *local* rank. Without it, all of them compute on GPU 0 |
# | `broadcast_variables` | every rank starts with rank 0's weights and optimizer state |
# | `steps` | 64 images per rank and step, so the *global batch* is `size * BATCH`, and an epoch has fewer steps. All ranks must take the same number of steps, or one waits forever |
# | `DistributedGradientTape` | its `gradient` returns the mean over the ranks |
# | `permutation(…)[rank::size]` | each rank takes its own part of every global batch, by its *global* rank. The shuffle has the same seed everywhere, so the parts don't overlap |
# | `allreduce(…, op=hvd.Sum)` | each rank tests its own share. Add up the counts first, and divide last. You need `op`, because Horovod's default is the mean |
# | `if rank == 0` | one rank prints and writes the file |
#
# Keras keeps its weights in variables of its own, and `v.value` is the TensorFlow variable inside. Horovod only knows
# TensorFlow's, so it needs `v.value`.
#
# Start it with `mpiexec`, like any MPI program. Horovod's own launcher, `horovodrun`, calls `mpirun` with options written for
# Open MPI 4. Open MPI 5 mistakes one of them for the name of your program, and stops. (`horovodrun --gloo` works without MPI.)

# %%
guess = predict(
    f"{samples:,} images, 64 per rank and step: how many steps does an epoch take on {sizes.ranks} ranks?",
    low=0,
    high=2 * (samples // 64),
)
guess

# %%
options = ["--data", MNIST, "--images", samples, "--epochs", epochs, "--out", folder / "cnn.keras"]
launch = [*mpi.mpiexec(), "-n", sizes.ranks, sys.executable]
scripts.run(*launch, SCRIPTS / "horovod_tf.py", *options, timeout_s=2 * sizes.timeout_s)
guess.compare(samples // (64 * sizes.ranks))

# %% [markdown]
# The first epoch is slower, because its first step builds the graph.
#
# *Break it:* `python horovod_tf.py` works too, and Horovod then finds a single rank. What would happen if you forgot `mpiexec`
# and started the script twice that way, in two terminals?
#
# ## model.fit
#
# With Keras you don't write the loop: `compile` takes the optimizer and the loss, `fit` takes the samples. The tape is
# somewhere inside `fit`, where you can't wrap it. So Horovod offers a different hook, an optimizer that averages the
# gradients it gets: `horovod.tensorflow.keras.DistributedOptimizer`. Try it on this notebook's ranks. They need a few seconds
# to import TensorFlow, and you can ignore its messages about logs and oneDNN.

# %%
team = ranks.start(sizes.ranks)
team.push(folder=str(folder), samples=samples, epochs=epochs)

# %%
# %%ranks --timeout 240
import hashlib
from contextlib import suppress

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI  # before hvd.init(), so that MPI outlives hvd.shutdown()

from workshop_lib.data import mnist
from workshop_lib.models import keras_cnn

tf.get_logger().setLevel("ERROR")
hvd.init()
rank, size = hvd.rank(), hvd.size()
train, test = mnist.load("train"), mnist.load("test")

# %% [markdown]
# Each rank fits the network to its own part of the samples. All of them start from the same seed, so there is nothing to
# broadcast. The learning rate is multiplied by `size`, because a step based on `size` times as many samples can be longer. This
# *linear scaling* has limits, which are the topic of [07_large_batch](07_large_batch.ipynb). (`jit_compile=False` keeps Keras
# from using its compiler, XLA. Horovod's operations for XLA need a GPU, and aren't in this build.)


# %%
# %%ranks --timeout 240
def fit(optimizer):
    """The network, trained on this rank's samples, and its answers to all test images."""
    model = keras_cnn.build(seed=1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    mine = slice(rank, samples - samples % size, size)  # the same number on every rank
    fitted = model.fit(train.images[mine], train.labels[mine], batch_size=64, epochs=epochs, verbose=0)
    answers = model.predict(test.images, batch_size=500, verbose=0).argmax(axis=1)
    print("loss of each epoch:", *np.round(fitted.history["loss"], 3))
    print(f"right: {np.mean(answers == test.labels):.1%} of all test images")
    return model, answers


model, answers = fit(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.02 * size, momentum=0.9)))

# %% [markdown]
# No error, no warning, a falling loss, and a decent network. Many projects would stop here and publish their scaling curve.
#
# Every rank has tested its network on all test images. If the ranks hold the same network, they give the same answers.

# %%
guess = predict("On how many test images do the first and the last rank disagree?", low=0, high=2_000)
guess

# %%
answers = team.pull("answers")
guess.compare(int((answers[0] != answers[-1]).sum()))

# %% [markdown]
# ## Do the ranks agree?
#
# You can check that in any run, with a single line of code. A *digest* is a checksum of all weights: flip one bit, and it almost
# certainly changes. Gather the digests of all ranks and count how many different ones there are. It should be one.
# (`hvd.allgather_object` collects any object from every rank. Horovod matches messages by name, so give it one.)


# %%
# %%ranks
def digest(model):
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()[:12]


def ranks_agree(model):
    return len(set(hvd.allgather_object(digest(model), name="digest"))) == 1


print(f"digest {digest(model)}, do the ranks agree? {ranks_agree(model)}")

# %% [markdown]
# They don't. Each rank has trained a network of its own, on its own samples.
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
print(f"a step from 0 to {one_step(stock):g}; the mean of the ranks' numbers is {(size - 1) / 2:g}")

# %% [markdown]
# Nobody averaged anything. Why? These are the methods of Horovod's class:

# %%
# %%ranks
if rank == 0:
    print("Horovod's class defines", *(name for name, item in vars(type(stock)).items() if callable(item)))
    print("its `apply` is that of", type(stock).apply.__module__)

# %% [markdown]
# Horovod 0.28 was written for Keras 2, and averages in `_compute_gradients` and its relatives. Keras 2 called them to get the
# gradients; Keras 3 never does. It computes the gradients elsewhere and calls `apply_gradients`, which trusts that they've been
# averaged and hands them on to `apply`. Python is perfectly happy to let you define a method nobody ever calls.
#
# And each rank *does* learn, from its own samples. The speed-up is even better than that of a correct script, which has to
# communicate.
#
# ## Exercise 1 (normal): an optimizer that averages
#
# With this function you can use any Keras optimizer on many ranks. Give it `keras.optimizers.Adam(0.001)`, and you get back
# an Adam with the same settings that applies the mean of all ranks' gradients. If the optimizer clips gradients
# (`clipnorm`), it must clip their mean. The last line creates an object of your class with the given optimizer's settings.
#
# <details><summary>Hint 1: where?</summary>
#
# Horovod's class overrides methods that Keras 3 doesn't call. Which method do all gradients go through, whether they come
# from `fit` or from `apply_gradients`? Your version of it has to do something before the optimizer's own runs.
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# The method is `apply(self, gradients, variables=None)`. `hvd.grouped_allreduce(list, op=hvd.Average)` averages a whole list
# in one go. `super().apply(…)` is what the given optimizer would have done.
#
# </details><details><summary>Solution</summary>
#
# {solution of averaging}
#
# </details>


# %%
def averaging(optimizer):
    """An optimizer like the given one that applies the mean of all ranks' gradients. All ranks step together."""
    import horovod.tensorflow as hvd  # in here, because the notebook's own process does without TensorFlow

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
check.averaging(averaging)

# %% [markdown]
# Now train with it. (The check has shut Horovod down, so the next cells start it again.)

# %%
team.push(averaging=averaging)

# %%
# %%ranks --timeout 240
hvd.init()
with suppress(NotImplementedError):  # while the exercise is open
    print(f"a step from 0 to {one_step(averaging(keras.optimizers.SGD(0.5))):g}")
    model, answers = fit(averaging(keras.optimizers.SGD(0.02 * size, momentum=0.9)))
    print(f"digest {digest(model)}, do the ranks agree? {ranks_agree(model)}")

# %% [markdown]
# The ranks' losses still differ, because each is the loss of one rank's samples. The weights don't.
#
# *Beat it:* send half the bytes. `hvd.Compression.fp16.compress(gradient)` returns a smaller tensor and a context. Pass both to
# `hvd.Compression.fp16.decompress` to get float32 back. What does it cost in accuracy?
#
# ## Exercise 2 (hard): from one process to many
#
# The function below trains a model in one process. Change it so that many ranks train one model together. The same changes
# make any Keras script run on many processes. All ranks call the function with the same arguments, except that each has built
# `model` with its own random weights. Horovod is already initialized.
#
# - Together they train on each sample once per epoch, in batches of `batch_size` *per rank*, with `lr` scaled linearly.
#   (The number of samples divides evenly.)
# - Afterwards all ranks hold the same trained model, and one of them has saved it to `path`.
# - Every rank returns the accuracy on all test samples, each counted once. (Their number does *not* divide evenly.)
#
# The library has an optimizer like yours, `keras3.DistributedOptimizer(optimizer)`, and a callback that broadcasts before the
# first step, `keras3.BroadcastVariables()`.
#
# <details><summary>Hint 1: what has to change?</summary>
#
# Go through the table under the script above. Five of its rows apply: the broadcast, the gradients, each rank's samples, the
# counts, and the file. And what about the learning rate?
#
# </details><details><summary>Hint 2: the pieces</summary>
#
# `rank, size = hvd.rank(), hvd.size()`; `images[rank::size]`; `callbacks=[…]` in `fit`; `if rank == 0:`;
# `hvd.allreduce(np.array([…]), op=hvd.Sum, name="counts").numpy()`, on every rank.
#
# </details><details><summary>Solution</summary>
#
# {solution of train}
#
# </details>


# %%
def train(model, images, labels, test_images, test_labels, lr, batch_size, epochs, path):
    """Train `model` on all ranks together, and save it once. Returns the test accuracy, on every rank."""
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
    # raise NotImplementedError("your code here: delete this line, and change those below")
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
# *Break it:* leave out the broadcast. Does the loss still fall? Would you notice without a digest?
#
# With a `tf.data` pipeline, a rank's samples are `dataset.shard(size, rank)`. Put it before `shuffle` and `batch`, so that no two
# ranks get the same sample and no rank reads samples it won't use.
#
# ## Take it home
#
# [scripts/horovod_keras.py](scripts/horovod_keras.py) is the script from above with a Keras optimizer that averages. It doesn't
# use the tape, but lets Keras take the step:

# %%
take_home.diff("horovod_tf.py", "horovod_keras.py")

# %% [markdown]
# Start it in a terminal: `mpiexec -n 2 python horovod_keras.py`. Its learning rate rises during the first half epoch and falls
# afterwards. This *warm-up* matters because the weights change fast at the start, and that's when long steps do harm.
#
# ## Deeper: what the tape sends
#
# Does Horovod's tape work under Keras 3, at least? Ask it for the gradient of the loss $(w - r)^2$ at $w = 0$.


# %%
# %%ranks
def slope(wrap):
    w = tf.Variable(0.0)
    with tf.GradientTape() as tape:
        loss = (w - rank) ** 2
    return float(wrap(tape).gradient(loss, [w])[0])


hvd.init()
print(f"TensorFlow's tape: {slope(lambda tape: tape):g}, Horovod's: {slope(hvd.DistributedGradientTape):g}")

# %% [markdown]
# It does: $-2r$ on each rank, and their mean from Horovod. *Try it:* `lambda tape: hvd.DistributedGradientTape(tape,
# op=hvd.Sum)`. What would you have to multiply the learning rate by?
#
# Horovod matches tensors by name, TensorFlow names a gradient after its layer, and Keras numbers the layers as it builds them.
# So if a single rank builds one more network than the others, its names differ from then on, and all ranks wait forever. Build
# the same networks in the same order on every rank, or name the layers.
#
# ## Deeper: callbacks
#
# Keras calls the methods of a *callback* at certain moments, such as the start of training or the end of an epoch. Horovod's
# callbacks were written for Keras 2 as well, but at least they fail with an error. (This cell fails on purpose.)

# %%
# %%ranks --catch
callback = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
callback.set_model(model)
callback.on_batch_end(0)

# %% [markdown]
# The library has replacements, each a few lines long, in `workshop_lib/training/backends/keras3.py`:
#
# | callback | what it does |
# |---|---|
# | `BroadcastVariables()` | before the first step, builds the optimizer (until then it has no state), and sends rank 0's weights and state to every rank |
# | `WarmUp(peak_lr, steps)` | sets the optimizer's `learning_rate` before each step; it's an ordinary attribute |
# | `AverageMetrics()` | at the end of an epoch, replaces each metric with its mean over the ranks. That's exact if all ranks have the same number of samples |
#
# Keras calls them in the order of the list. Put `AverageMetrics` before any callback that reads metrics, such as
# `EarlyStopping` or `ReduceLROnPlateau`. Otherwise each rank makes its decision from its own numbers, and if one rank
# stops, the others wait for it forever.
#
# ## Deeper: what else Keras 3 breaks
#
# | broken | what happens | what to do |
# |---|---|---|
# | `hvd.SyncBatchNormalization` | an error: it passes on `fused`, which Keras 3 no longer accepts | use `GroupNormalization` or `LayerNormalization`, which don't need other ranks' samples. Keras's own `BatchNormalization(synchronized=True)` doesn't help: it synchronizes the replicas of `tf.distribute`, finds only one, and silently uses each rank's own statistics |
# | `hvd.PartialDistributedGradientTape` and `register_local_source`, for layers that differ by rank | an error: Keras 3 variables have no `ref` | register TensorFlow's variable: `tape.register_local_source(v.value)` for each variable of those layers, on a `DistributedGradientTape`. Horovod divides their gradients by the number of ranks, unless you create the tape with `scale_local_gradients=False` |
# | `model.save` with Horovod's optimizer | an error, because its class can't be saved | average in `apply`, as you did |
#
# All of these work with the legacy Keras 2 (the package `tf-keras`, and `TF_USE_LEGACY_KERAS=1` in the environment).

# %%
# %%ranks
dense = keras.layers.Dense(1)
dense.build((None, 1))
for broken in (
    lambda: hvd.SyncBatchNormalization(),
    lambda: hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[dense]),
):
    try:
        broken()
    except (ValueError, AttributeError) as error:
        print(f"{type(error).__name__}: {error}")

# %%
# %%ranks
x = tf.constant([[rank + 1.0]])
with tf.GradientTape() as tape:
    loss = dense(x)
tape = hvd.DistributedGradientTape(tape, scale_local_gradients=False)
tape.register_local_source(dense.kernel.value)
print("the kernel's gradient stays", tape.gradient(loss, [dense.kernel.value])[0].numpy().item())

# %% [markdown]
# ## Deeper: saving and loading
#
# A file written by `model.save` holds the weights, the optimizer's state, and the *names* of the classes. The library's
# `keras3.DistributedOptimizer` saves under the name of the optimizer it was made from, so you can open the file anywhere,
# even without Horovod. But what do you get back? Take a step, save, load, and take another step.

# %%
# %%ranks
from workshop_lib.training.backends import keras3

path, one = f"{folder}/one_weight.keras", np.ones((1, 1), "float32")
dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
saved = keras.Sequential([keras.Input((1,)), dense])
saved.compile(keras3.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
saved.train_on_batch(one, rank * one)
if rank == 0:
    saved.save(path)
MPI.COMM_WORLD.Barrier()  # until the file is there

for load in (keras.models.load_model, keras3.load_model):
    model = load(path)
    model.train_on_batch(one, rank * one)
    print(f"{load.__module__}: {model.get_weights()[0].item():.3f}, do the ranks agree? {ranks_agree(model)}")
hvd.shutdown()

# %% [markdown]
# Keras loads a plain optimizer, which averages nothing, so you're back in the same trap. Wrap it again after
# loading, which is all that `keras3.load_model` adds.
#
# ## Deeper: old code, PyTorch, and TensorFlow's own way
#
# You'll still find scripts for TensorFlow 1, with a *session* that calls *hooks*. This is what became of them:
#
# | TensorFlow 1 | today |
# |---|---|
# | `MonitoredTrainingSession(hooks=…)` | your own loop around a `tf.function`, or `model.fit` |
# | `hvd.BroadcastGlobalVariablesHook(0)` | `hvd.broadcast_variables(…)`, or a callback |
# | `hvd.DistributedOptimizer(…).minimize(loss)` | `hvd.DistributedGradientTape(tape)` |
# | `StopAtStepHook(last_step=N // hvd.size())` | the number of steps in your loop |
# | `LoggingTensorHook` | `print` on rank 0, or the metrics of `fit` |
# | `checkpoint_dir=… if hvd.rank() == 0 else None` | `if rank == 0: model.save(…)` |
# | `gpu_options.visible_device_list` | `tf.config.set_visible_devices` |
# | `tf.contrib` | gone; its layers and optimizers are in Keras |
#
# And this is how it compares with Horovod for PyTorch, in notebook [03](03_horovod_pytorch.ipynb):
#
# | | PyTorch | TensorFlow |
# |---|---|---|
# | gradients | `DistributedOptimizer`, while `backward` runs | `DistributedGradientTape`, when you ask for them |
# | names of the messages | `named_parameters` | the layers' names |
# | weights | `broadcast_parameters` | `broadcast_variables` |
# | optimizer state | `broadcast_optimizer_state` | among the variables, once the optimizer is built |
# | samples | `DistributedSampler` or indices | `dataset.shard` or indices |
#
# TensorFlow also has strategies of its own, `tf.distribute`. `MirroredStrategy` uses several GPUs from one process, and
# `MultiWorkerMirroredStrategy` uses several hosts. You list them in the environment variable `TF_CONFIG`, and the processes talk
# over gRPC. You don't need MPI for that, which is handy in the cloud. On supercomputers, people used to advise against it,
# because gRPC runs over TCP and leaves the fast network unused, unless NCCL moves the tensors. `ParameterServerStrategy`
# updates weights asynchronously. Choose one of these if your code is already TensorFlow throughout. Horovod's last release is
# from 2023, so for new work look at DDP ([05](05_ddp.ipynb)) first.
#
# ## Remember
#
# - From one process to many: initialize, take a GPU by local rank and samples by global rank, broadcast, average the gradients,
#   and scale the learning rate. Add up counts, then divide. Rank 0 saves.
# - Horovod only knows TensorFlow's variables, so hand it `v.value`.
# - Under Keras 3, Horovod 0.28's `DistributedOptimizer` silently averages nothing. Average in `apply`, and wrap the optimizer
#   again after loading.
# - A falling loss proves nothing about communication, because a rank also learns on its own. At the end of every run, check that
#   the ranks agree.
#
# **Sources.** A. Sergeev and M. Del Balso, *Horovod: fast and easy distributed deep learning in TensorFlow*
# (arXiv:1802.05799): the steps from one process to many. The source of Horovod 0.28.1 (`horovod/_keras`) for where it averages,
# and that of Keras 3 (`BaseOptimizer.apply_gradients`) for what calls what. P. Goyal et al., *Accurate, Large Minibatch SGD*
# (arXiv:1706.02677): linear scaling and warm-up.

# %%
ranks.stop()
