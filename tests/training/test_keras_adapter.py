"""Horovod with Keras 3, on two ranks: what the stock optimizer does not do, and what the adapter does."""

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from needs import needs_backend
from our_ranks import on_every_rank

pytestmark = [needs_backend("horovod-keras"), pytest.mark.full]


@contextlib.contextmanager
def horovod():
    """On a rank: Horovod is initialized for these lines, which get the rank and the adapter."""
    import horovod.tensorflow as hvd

    from workshop_lib.training.backends import keras3

    hvd.init()
    try:
        yield hvd.rank(), keras3
    finally:
        hvd.shutdown()


def network():
    """One weight, which starts at 1 on rank 0 and at 3 on rank 1."""
    import keras

    start = keras.initializers.Constant(1.0 + 2 * MPI.COMM_WORLD.rank)
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer=start)])


def sgd(learning_rate=0.1, **options):
    import keras

    return keras.optimizers.SGD(learning_rate, **options)


def weight(model):
    return float(model.get_weights()[0][0, 0])


def fit(model, optimizer, *callbacks, steps=1, epochs=1):
    """x is 1 on rank 0 and 2 on rank 1, y is 0: the gradients of the mean square are 2 w and 8 w."""
    model.compile(optimizer, "mse", jit_compile=False)
    x = np.full((steps, 1), 1.0 + MPI.COMM_WORLD.rank, "float32")
    return model.fit(x, 0 * x, batch_size=1, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))


def step_of_ours(keras3):
    model = network()
    fit(model, keras3.DistributedOptimizer(sgd()), keras3.BroadcastVariables())
    assert weight(model) == pytest.approx(1 - 0.1 * 5), "from rank 0's weight, by the mean gradient"


@on_every_rank
def test_a_rank_may_have_built_more_layers_than_the_others():
    """Horovod's own names for the gradients would differ, and both ranks wait until the test's limit."""
    with horovod() as (rank, keras3):
        import horovod.tensorflow as hvd
        import tensorflow as tf

        from workshop_lib.training.models import keras_cnn

        if rank == 0:
            network()
            keras_cnn.build(seed=1)
        step_of_ours(keras3)
        model = keras_cnn.build(seed=1)
        variables = [v.value for v in model.trainable_variables]
        images = np.full((1, 28, 28), rank, "uint8")

        @tf.function(autograph=False)
        def gradients():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(images))
            return hvd.DistributedGradientTape(tape).gradient(loss, variables)

        mine = [gradient.numpy().tobytes() for gradient in gradients()]
        assert MPI.COMM_WORLD.allgather(mine) == [mine, mine]


@on_every_rank
def test_weights_and_optimizer_state_are_broadcast():
    with horovod() as (_, keras3):
        model, optimizer = network(), sgd(momentum=0.9)
        fit(model, optimizer)

        def states():
            return MPI.COMM_WORLD.allgather([float(np.sum(v)) for v in (*model.variables, *optimizer.variables)])

        first, second = states()
        assert first != second
        callback = keras3.BroadcastVariables()
        callback.set_model(model)
        callback.on_train_begin()
        assert states() == [first, first]


@on_every_rank
def test_a_loaded_model_is_wrapped_again_and_goes_on_with_its_momentum():
    with horovod() as (rank, keras3), tempfile.TemporaryDirectory() as own:
        import keras

        whole = network()
        fit(whole, keras3.DistributedOptimizer(sgd(0.01, momentum=0.9)), keras3.BroadcastVariables())
        path = MPI.COMM_WORLD.bcast(Path(own) / "model.keras")
        if rank == 0:
            whole.save(path)
        MPI.COMM_WORLD.Barrier()
        loaded = keras.models.load_model(path)
        loaded.optimizer = keras3.DistributedOptimizer(loaded.optimizer)
        x = np.full((1, 1), 1.0 + rank, "float32")
        for model in (whole, loaded):
            model.fit(x, 0 * x, verbose=0)
        assert MPI.COMM_WORLD.allgather(weight(loaded)) == pytest.approx([weight(whole)] * 2)


@on_every_rank
def test_the_network_of_more_classes_and_another_shape_has_the_torch_network_s_weights():
    """There and back, and it gives the same."""
    import torch

    from workshop_lib.training.models import keras_cnn, torch_cnn

    shape = (32, 20)
    images = np.random.default_rng(1).integers(0, 256, (5, *shape), np.uint8)
    for name in keras_cnn.NETWORKS:
        ours, theirs = keras_cnn.build(3, 47, name, shape=shape), torch_cnn.build(3, name, 47, shape).eval()
        back = keras_cnn.to_torch(ours.get_weights(), shape)
        assert all(map(np.array_equal, back, [p.detach().numpy() for p in theirs.parameters()]))
        right = theirs(torch_cnn.normalize(torch.tensor(images))).detach().numpy()
        assert np.allclose(ours(images, training=False), right, atol=1e-5)
