"""An adapter that gives Keras 3 what horovod.keras gives Keras 2.

Keras 3 calls `optimizer.apply`, which the DistributedOptimizer of horovod 0.28 does not replace. With horovod.keras,
every rank would train alone, without a warning. Its callbacks look for attributes that Keras 3 no longer has.
"""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf


def DistributedOptimizer(optimizer: keras.optimizers.Optimizer):
    """Return a copy of this optimizer and its state whose gradients are the means over all ranks.

    A model saved with the copy contains the plain optimizer, so wrap that again after loading. All ranks apply their
    gradients together.
    """
    plain = type(optimizer)

    class Distributed(plain):  # type: ignore[valid-type, misc]
        def apply(self, grads, trainable_variables=None):
            return super().apply(average(grads), trainable_variables)

    # Keras saves the optimizer under the plain class's name, so that it finds the class when it loads the model.
    Distributed.__name__ = plain.__name__
    Distributed.__qualname__ = plain.__qualname__
    Distributed.__module__ = plain.__module__
    distributed = Distributed.from_config(optimizer.get_config())
    if optimizer.built:
        distributed.build(optimizer._trainable_variables)
        for own, other in zip(distributed.variables, optimizer.variables, strict=True):
            own.assign(other)
    return distributed


def average(gradients: list) -> list:
    """Return the means of the gradients over the ranks, reduced in one group. All ranks call it, and it blocks.

    The group has its own name. Otherwise Horovod would use the names of the layers, which Keras numbers, and would wait
    forever once one rank had built one more layer than the others.
    """
    tensors = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return hvd.grouped_allreduce(tensors, op=hvd.Average, name="gradients", ignore_name_scope=True)


class BroadcastVariables(keras.callbacks.Callback):
    """Gives every rank the weights and the optimizer state of rank 0, before the first step."""

    def on_train_begin(self, logs=None):
        broadcast_model(self.model)


def broadcast_model(model: keras.Model) -> None:
    """Give every rank the weights and the optimizer state of rank 0. All ranks call it, and it blocks.

    Variables are matched by their order, not by the names of layers. Each rank keeps its own random state for dropout.
    """
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    for place, variable in enumerate([*model.weights, *model.optimizer.variables]):
        variable.assign(hvd.broadcast(variable.value, 0, name=f"variable.{place}"))
