"""MNIST with Horovod and Keras 3. Start it with: mpiexec -n 2 python horovod_keras.py"""

import argparse
import gzip
import os
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever a keras.json or a variable of yours says
os.environ["TF_USE_LEGACY_KERAS"] = "0"

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from keras.layers import Conv2D, Dense, Flatten, MaxPooling2D, ReLU


class AveragingSGD(keras.optimizers.SGD):  # horovod.keras, made for Keras 2, would average nothing here
    def apply(self, gradients, variables=None):
        return super().apply(hvd.grouped_allreduce(list(gradients), op=hvd.Average), variables)


mnist = Path(__file__).resolve().parent / "../../assets/mnist"  # its place in the workshop; --data names another
options = {"data": mnist, "images": 60_000, "epochs": 2, "out": Path("cnn.keras")}
parser = argparse.ArgumentParser(description=__doc__)
for name, default in options.items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
args = parser.parse_args()
if not (args.data / "train-images-idx3-ubyte.gz").exists():
    raise SystemExit(f"train-images-idx3-ubyte.gz isn't in {args.data.resolve()}: give MNIST's folder with --data.")
hvd.init()
rank, size = hvd.rank(), hvd.size()
tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[hvd.local_rank() :][:1], "GPU")  # its own, if any
tf.config.threading.set_intra_op_parallelism_threads(1)  # one core per process, however many processes there are
names = "train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"
files = [gzip.decompress((args.data / f"{name}-ubyte.gz").read_bytes()) for name in names]
values = [np.frombuffer(file, np.uint8, offset=4 + 4 * file[3]) for file in files]
images, test_images = [(v.reshape(-1, 28, 28, 1) - np.float32(33.3184)) / np.float32(78.5675) for v in values[::2]]
labels, test_labels = [v.astype(np.int32) for v in values[1::2]]

keras.config.set_floatx("float32")
keras.config.set_image_data_format("channels_last")
keras.utils.set_random_seed(1)
layers = Conv2D(8, 5), MaxPooling2D(), ReLU(), Conv2D(56, 5), MaxPooling2D(), ReLU(), Flatten(), Dense(10)
model = keras.Sequential([keras.Input((28, 28, 1)), *layers])
optimizer = AveragingSGD(0.1, momentum=0.9, nesterov=True)
optimizer.build(model.trainable_variables)
model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
hvd.broadcast_variables([v.value for v in (*model.variables, *optimizer.variables)], root_rank=0)
steps = args.images // (64 * size)
if steps < 2:
    raise SystemExit(f"--images {args.images} is too few for two steps of 64 per rank: give more or start fewer ranks.")
if args.images > len(labels):
    raise SystemExit(f"--images {args.images} is too many: {args.data.resolve()} has {len(labels)}.")
total, warmup = args.epochs * steps, steps // 2

for epoch in range(1, args.epochs + 1):
    order = np.random.default_rng([1, epoch]).permutation(args.images)
    start = time.perf_counter()
    for step, batch in enumerate(order[: steps * size * 64].reshape(steps, size, 64)[:, rank], (epoch - 1) * steps):
        optimizer.learning_rate = 0.1 * min((step + 1) / warmup, (total - step) / (total - warmup))
        model.train_on_batch(images[batch], labels[batch])
    speed = steps * size * 64 / (time.perf_counter() - start)
    guesses = model.predict(test_images[rank::size], 500, verbose=0).argmax(1)
    right = hvd.allreduce(np.sum(guesses == test_labels[rank::size]), op=hvd.Sum)
    if rank == 0:
        print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right / len(test_labels):.2%}")
        model.save(args.out.with_name(f"tmp.{args.out.name}"))
        args.out.with_name(f"tmp.{args.out.name}").replace(args.out)  # a crash leaves the old file or the new
