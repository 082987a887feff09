"""How long does a training wait for tf.data? Start it with: python loader_tf.py times.json [batches] [repeats]"""

import json
import sys
import time
from pathlib import Path

import tensorflow as tf

out, batches, repeats = [*sys.argv[1:], *["times.json", 12, 3][len(sys.argv) - 1 :]]
BATCH_S = 0.02  # a batch takes as long to read as to use
STEPS = {
    "map": lambda files: files.map(read),
    "map, in parallel": lambda files: files.map(read, num_parallel_calls=2),
    "interleave": lambda files: files.interleave(several, cycle_length=2, num_parallel_calls=2),
    "map, prefetch": lambda files: files.map(read).prefetch(1),
}


def read(number):
    """A batch; the sleep stands for a disk."""
    return tf.numpy_function(lambda n: time.sleep(BATCH_S) or n, [number], tf.int64)


def several(number):
    """The batches of one file, here a single one."""
    return tf.data.Dataset.from_tensors(number).map(read)


def epoch(dataset):
    """Seconds until the first batch, of waiting for the others, and of using them."""
    spent, clock = [0.0, 0.0, 0.0], time.perf_counter()
    for number, _ in enumerate(dataset):
        came = time.perf_counter()
        spent[number > 0] += came - clock
        time.sleep(BATCH_S)  # a GPU computes; the CPU is free
        clock = time.perf_counter()
        spent[2] += clock - came
    return spent


times, settings = {}, tf.data.Options()
settings.experimental_optimization.inject_prefetch = False  # else TensorFlow adds a prefetch to each of them
for name, pipeline in STEPS.items():
    dataset = pipeline(tf.data.Dataset.range(int(batches))).with_options(settings)
    times[name] = [epoch(dataset) for _ in range(int(repeats))]
Path(out).write_text(json.dumps(times))
