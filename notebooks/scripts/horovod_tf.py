"""MNIST with Horovod and TensorFlow. Start it with: mpiexec -n 2 python horovod_tf.py"""

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

BATCH = 64  # images per rank and step
# The workshop's copy of MNIST. Anywhere else, give a folder with --data.
MNIST_FOLDER = str(Path(__file__).resolve().parent / "../../assets/mnist")


def mnist_folder(text):
    """Return the folder with this name, for argparse, which shows the error's sentence if MNIST isn't in it."""
    folder = Path(text)
    if not (folder / "train-images-idx3-ubyte.gz").exists():
        missing = f"train-images-idx3-ubyte.gz isn't in {folder.resolve()}"
        raise argparse.ArgumentTypeError(f"{missing}: give MNIST's folder with --data.")
    return folder


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=mnist_folder, default=MNIST_FOLDER, help="folder with MNIST's four files")
    parser.add_argument("--images", type=int, default=60_000, help="training images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("cnn.keras"), help="file for the checkpoint")
    return parser.parse_args()


def read_mnist(folder, split):
    """Return images, float32 [n, 28, 28, 1] with mean 0 and standard deviation 1, and their digits, int32 [n]."""
    pixels = gzip.decompress((folder / f"{split}-images-idx3-ubyte.gz").read_bytes())
    digits = gzip.decompress((folder / f"{split}-labels-idx1-ubyte.gz").read_bytes())
    images = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 28, 28, 1).astype(np.float32)
    labels = np.frombuffer(digits, np.uint8, offset=8).astype(np.int32)
    return (images - np.float32(33.3184)) / np.float32(78.5675), labels


def take_own_device():
    """Leave this rank one GPU of its node, if there are any."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        # Some launchers show each rank one GPU only, which is number 0 on all ranks.
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)  # one core per process, however many processes there are


def cnn():
    keras.config.set_floatx("float32")
    keras.config.set_image_data_format("channels_last")
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            Conv2D(8, kernel_size=5),
            MaxPooling2D(),
            ReLU(),
            Conv2D(56, kernel_size=5),
            MaxPooling2D(),
            ReLU(),
            Flatten(),
            Dense(10),
        ]
    )


def save(model, path):
    """Write a checkpoint. A crash leaves the old file or the new one, never half of one."""
    temporary = path.with_name(f"tmp.{path.name}")
    model.save(temporary)
    temporary.replace(path)


def make_step(model, optimizer):
    """Return a function that trains on one batch."""

    @tf.function(autograph=False)
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply(tape.gradient(loss, [v.value for v in model.trainable_variables]))

    return train_step


def main():
    args = parse_arguments()
    hvd.init()
    rank = hvd.rank()
    size = hvd.size()
    take_own_device()

    images, labels = read_mnist(args.data, "train")
    test_images, test_labels = read_mnist(args.data, "t10k")
    if not 1 <= args.images <= len(labels):
        raise SystemExit(f"--images {args.images}: give a number from 1 to {len(labels)}, which is what there is.")
    steps = args.images // (BATCH * size)
    if steps < 2:
        raise SystemExit(f"--images {args.images} is too few for two steps of {BATCH} per process: give more.")
    # The learning rate rises for half an epoch, then falls to zero.
    warmup = steps // 2
    total = args.epochs * steps

    model = cnn()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    optimizer.build(model.trainable_variables)
    model.compile(optimizer)  # so that it is saved with the model
    hvd.broadcast_variables([v.value for v in (*model.variables, *optimizer.variables)], root_rank=0)
    train_step = make_step(model, optimizer)

    for epoch in range(1, args.epochs + 1):
        # All ranks shuffle the same way, anew in each epoch, and each takes images of its own.
        own = np.random.default_rng([1, epoch]).permutation(args.images)[rank::size]
        start = time.perf_counter()
        for step in range(steps):
            batch = own[step * BATCH : (step + 1) * BATCH]
            done = (epoch - 1) * steps + step
            optimizer.learning_rate = 0.1 * min((done + 1) / warmup, (total - done) / (total - warmup))
            train_step(images[batch], labels[batch])
        speed = steps * size * BATCH / (time.perf_counter() - start)
        guesses = model.predict(test_images[rank::size], 500, verbose=0).argmax(1)
        right = hvd.allreduce(np.sum(guesses == test_labels[rank::size]), op=hvd.Sum)
        if rank == 0:
            print(f"epoch {epoch}: {speed:,.0f} images/s, test accuracy {right / len(test_labels):.2%}")
            save(model, args.out)


if __name__ == "__main__":
    main()
