"""Horovod for Keras 3, with model.fit. What is added to a one-process script:

    hvd.init()
    optimizer = keras3.DistributedOptimizer(optimizer)       gradients are averaged before they are applied
    model.fit(…, callbacks=[keras3.BroadcastVariables()])    everybody starts alike

`keras3` is the adapter beside this file: horovod.keras, made for Keras 2, would not average anything.
"""

import keras

from workshop_lib.training.backends import keras3
from workshop_lib.training.backends.horovod_tf import HorovodTf


class HorovodKeras(HorovodTf):
    name = "horovod-keras"

    def learner(self, options, train_split, test_split):
        from workshop_lib.training.learners.keras import KerasLearner

        return KerasLearner(options, self, train_split, test_split)

    def wrap_optimizer(self, optimizer: keras.optimizers.Optimizer, model=None) -> keras.optimizers.Optimizer:
        return keras3.DistributedOptimizer(optimizer)

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """For the first call of model.fit."""
        return [keras3.BroadcastVariables()]
