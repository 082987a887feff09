"""How long does training wait for tf.data? Start it with: python loader_tf.py times.json [batches] [repeats]"""

import argparse
import json
import time
from pathlib import Path

import tensorflow as tf

BATCH_S = 0.02  # a batch takes as long to read as to use


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("times.json"))
    parser.add_argument("batches", type=int, nargs="?", default=12)
    parser.add_argument("repeats", type=int, nargs="?", default=3)
    return parser.parse_args()


def read(number):
    """Return a batch. The sleep stands for a disk."""
    return tf.numpy_function(lambda n: time.sleep(BATCH_S) or n, [number], tf.int64)


def read_file(number):
    """Return the batches of one file, here a single one."""
    return tf.data.Dataset.from_tensors(number).map(read)


PIPELINES = {
    "map": lambda files: files.map(read),
    "map, in parallel": lambda files: files.map(read, num_parallel_calls=2),
    "interleave": lambda files: files.interleave(read_file, cycle_length=2, num_parallel_calls=2),
    "map, prefetch": lambda files: files.map(read).prefetch(1),
}


def epoch(dataset):
    """Return the seconds until the first batch, of waiting for the others, and of using them."""
    first_s = waiting_s = using_s = 0.0
    clock = time.perf_counter()
    for number, _ in enumerate(dataset):
        came = time.perf_counter()
        if number == 0:
            first_s = came - clock
        else:
            waiting_s += came - clock
        time.sleep(BATCH_S)  # a GPU computes, and the CPU is free
        clock = time.perf_counter()
        using_s += clock - came
    return first_s, waiting_s, using_s


def main():
    args = parse_arguments()
    settings = tf.data.Options()
    settings.experimental_optimization.inject_prefetch = False  # or TensorFlow adds a prefetch to each of them
    times = {}
    for name, pipeline in PIPELINES.items():
        dataset = pipeline(tf.data.Dataset.range(args.batches)).with_options(settings)
        times[name] = [epoch(dataset) for _ in range(args.repeats)]
    args.out.write_text(json.dumps(times))


if __name__ == "__main__":
    main()
