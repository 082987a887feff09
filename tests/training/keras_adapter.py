"""Run on two ranks: what Keras 3 does with Horovod.

keras_adapter.py FOLDER    writes to FOLDER/found.json what each function of CASES returns on each rank:
                           {name: list}
"""

import json
import sys
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
import torch
from mpi4py import MPI

from workshop_lib.models import keras_cnn, torch_cnn
from workshop_lib.training.backends import keras3

WORLD = MPI.COMM_WORLD


def network():
    """One weight, which starts at 1 on rank 0 and at 3 on rank 1."""
    start = keras.initializers.Constant(1.0 + 2 * WORLD.rank)
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer=start)])


def weight(model):
    return float(model.get_weights()[0][0, 0])


def fit(model, optimizer, callbacks=(), steps=1, epochs=1):
    """x is 1 on rank 0 and 2 on rank 1, y is 0: the gradients of the mean square are 2 w and 8 w."""
    model.compile(optimizer, "mse", jit_compile=False)
    x = np.full((steps, 1), 1.0 + WORLD.rank, "float32")
    return model.fit(x, 0 * x, batch_size=1, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))


def stock(folder):
    import horovod.tensorflow.keras as stock_hvd

    model = network()
    model.set_weights([np.ones((1, 1))])
    fit(model, stock_hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    return weight(model)


def ours(folder):
    model = network()
    fit(model, keras3.DistributedOptimizer(keras.optimizers.SGD(0.1)), [keras3.BroadcastVariables()])
    return weight(model)


def with_a_layer_more(folder):
    """Rank 0 has built a network that the others have not: its layers are numbered differently."""
    if WORLD.rank == 0:
        network()
        keras_cnn.build(seed=1)
    return [ours(folder), tape_gradient()]


def tape_gradient():
    """Sum of the averaged gradient of the workshop's network."""
    model = keras_cnn.build(seed=1)
    variables = [v.value for v in model.trainable_variables]
    images = np.full((1, 28, 28), WORLD.rank, "uint8")

    @tf.function(autograph=False)
    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images))
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)

    return float(sum(tf.reduce_sum(gradient) for gradient in gradients()))


def broadcast(folder):
    """Weights and momentum of both ranks after a first step alone, and after the broadcast."""
    model, optimizer = network(), keras.optimizers.SGD(0.1, momentum=0.9)
    fit(model, optimizer)
    alone = [float(np.sum(v)) for v in (*model.variables, *optimizer.variables)]
    callback = keras3.BroadcastVariables()
    callback.set_model(model)
    callback.on_train_begin()
    return {"alone": alone, "after": [float(np.sum(v)) for v in (*model.variables, *optimizer.variables)]}


def warm_up(folder):
    rates = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    fit(network(), keras.optimizers.SGD(0.0), [keras3.WarmUp(0.4, 4), Note()], steps=6)
    return [round(rate, 6) for rate in rates]


def schedule(folder):
    """Keras's own scheduler works on the wrapped optimizer."""
    optimizer = keras3.DistributedOptimizer(keras.optimizers.SGD(0.1))
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    fit(network(), optimizer, [keras3.BroadcastVariables(), scheduler], epochs=2)
    return round(float(optimizer.learning_rate), 6)


def metrics(folder):
    """The loss of an epoch, as one rank saw it and averaged."""
    alone = fit(network(), keras.optimizers.SGD(0.0)).history["loss"][0]
    averaged = fit(network(), keras.optimizers.SGD(0.0), [keras3.AverageMetrics()]).history["loss"][0]
    return {"alone": alone, "averaged": averaged}


def save_and_load(folder):
    """Two steps, with and without saving and loading between them."""
    whole = network()
    optimizer = keras3.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))
    fit(whole, optimizer, [keras3.BroadcastVariables()])
    path = folder / "model.keras"
    if WORLD.rank == 0:
        whole.save(path)
    WORLD.Barrier()
    loaded = keras3.load_model(path)
    x = np.full((1, 1), 1.0 + WORLD.rank, "float32")
    for model in (whole, loaded):
        model.fit(x, 0 * x, verbose=0)
    return {"whole": weight(whole), "loaded": weight(loaded)}


def wrapped_twice(folder):
    try:
        keras3.DistributedOptimizer(keras3.DistributedOptimizer(keras.optimizers.Adam()))
    except TypeError as error:
        return str(error)


def with_47_classes_of_another_shape(folder):
    """Whether each network has the weights of the torch network, there and back, and gives the same."""
    shape = (32, 20)
    images = np.random.default_rng(1).integers(0, 256, (5, *shape), np.uint8)
    for name in keras_cnn.NETWORKS:
        ours, theirs = keras_cnn.build(3, 47, name, shape=shape), torch_cnn.build(3, name, 47, shape).eval()
        wanted = [p.detach().numpy() for p in theirs.parameters()]
        if not all(map(np.array_equal, keras_cnn.to_torch(ours.get_weights(), shape), wanted)):
            return False
        right = theirs(torch_cnn.normalize(torch.tensor(images))).detach().numpy()
        if not np.allclose(ours(images, training=False), right, atol=1e-5):
            return False
    return True


CASES = (
    stock, ours, with_a_layer_more, broadcast, warm_up, schedule, metrics, save_and_load, wrapped_twice,
    with_47_classes_of_another_shape,
)  # fmt: skip


if __name__ == "__main__":
    folder, gathered = Path(sys.argv[1]), {}
    for case in CASES:
        hvd.init()
        outcome = case(folder)
        hvd.shutdown()
        gathered[case.__name__] = WORLD.gather(outcome)
        if WORLD.rank == 0:
            print(case.__name__, "done", flush=True)
    if WORLD.rank == 0:
        (folder / "found.json").write_text(json.dumps(gathered))
