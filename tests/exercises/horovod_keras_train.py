"""Answers to `train` of 04_horovod_tensorflow: right ones, wrong ones, and one that never ends."""

from exercises.answers import variant

NOTEBOOK = "04_horovod_tensorflow"
SHARD = "images[rank::size], labels[rank::size]"
MY_TEST = "test_images[rank::size], test_labels[rank::size]"
MINE = f"mine, my_labels = {SHARD}"
CALLBACKS = "callbacks = [keras3.BroadcastVariables()]"
WRAPPED = "keras3.DistributedOptimizer(keras.optimizers.SGD(lr * size, momentum=0.9))"
COUNTS = 'hvd.allreduce(counts, op=hvd.Sum, name="counts").numpy()'
SAVE = "if rank == 0:\n        model.save(path)"
STOCK = "__import__('horovod.tensorflow.keras').tensorflow.keras"
BEFORE_FIT = "callbacks = []\n    hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)"
AFTER_A_STEP = (
    "class Late(keras3.BroadcastVariables):\n"
    "        on_train_begin = lambda self, logs=None: None\n"
    "        def on_train_batch_end(self, batch, logs=None):\n"
    "            keras3.BroadcastVariables.on_train_begin(self) if batch == 0 else None\n"
    "    callbacks = [Late()]"
)


def changed(*replacements: tuple[str, str]):
    return variant(NOTEBOOK, "train", *replacements)


RIGHT = {
    "train, in blocks": lambda: changed(
        (SHARD, "np.array_split(images, size)[rank], np.array_split(labels, size)[rank]"),
        (MY_TEST, "np.array_split(test_images, size)[rank], np.array_split(test_labels, size)[rank]"),
    ),
    "train, a dataset": lambda: changed(
        (
            MINE,
            "import tensorflow as tf\n"
            "    mine = tf.data.Dataset.from_tensor_slices((images, labels))\n"
            "    mine = mine.shard(size, rank).batch(batch_size)",
        ),
        ("fit(mine, my_labels, batch_size=batch_size, ", "fit(mine, "),
    ),
    "train, broadcast before fit": lambda: changed((CALLBACKS, BEFORE_FIT)),
    "train, every rank tests all": lambda: changed((MY_TEST, "test_images, test_labels")),
    "train, weighted mean": lambda: changed(
        (
            f"right, seen = {COUNTS}",
            "share = np.mean(answers == my_test_labels) * len(my_test_labels) / len(test_labels)\n"
            "    return float(hvd.allreduce(share, op=hvd.Sum, name='share'))",
        )
    ),
}
WRONG = {
    "no broadcast": (lambda: changed((CALLBACKS, "callbacks = []")), "`keras3.BroadcastVariables()` among"),
    "broadcast after the first step": (lambda: changed((CALLBACKS, AFTER_A_STEP)), "before the first step"),
    "broadcast from the last rank": (
        lambda: changed((CALLBACKS, "callbacks = [keras3.BroadcastVariables(root=size - 1)]")),
        "is `root_rank` 0",
    ),
    "shards by local rank": (
        lambda: changed((SHARD, SHARD.replace("rank::", "hvd.local_rank()::"))),
        "Share out by `rank()`",
    ),
    "shards by local rank and size": (
        lambda: changed((SHARD, SHARD.replace("rank::size", "hvd.local_rank()::hvd.local_size()"))),
        "Share out by `rank()`",
    ),
    "not shared out": (lambda: changed((MINE, "mine, my_labels = images, labels")), "trains on all samples"),
    "all take the first part": (lambda: changed((SHARD, "images[::size], labels[::size]")), "used by nobody"),
    "batch divided": (
        lambda: changed(("batch_size=batch_size", "batch_size=batch_size // size")),
        "is that of one rank",
    ),
    "learning rate as it was": (lambda: changed(("lr * size", "lr")), "multiply the learning rate"),
    "root of the ranks": (lambda: changed(("lr * size", "lr * size**0.5")), "asks for `lr * hvd.size()`"),
    "scaled and summed": (
        lambda: changed((WRAPPED, WRAPPED.replace("momentum=0.9)", "momentum=0.9), op=hvd.Sum"))),
        "scaled twice, or summed",
    ),
    "optimizer not wrapped": (
        lambda: changed((WRAPPED, WRAPPED.replace("keras3.DistributedOptimizer", ""))),
        "nothing averages the gradients",
    ),
    "Horovod's own optimizer": (
        lambda: changed((WRAPPED, WRAPPED.replace("keras3", STOCK)), (CALLBACKS, BEFORE_FIT), (SAVE, "pass")),
        "nothing averages the gradients",
    ),
    "all ranks save": (lambda: changed((SAVE, "model.save(path)")), "saved as well"),
    "nobody saves": (lambda: changed((SAVE, "pass")), "wrote no file"),
    "saved before training": (
        lambda: changed((SAVE, "pass"), ("    model.fit(", "    rank or model.save(path)\n    model.fit(")),
        "after training",
    ),
    "accuracy of a part": (lambda: changed((COUNTS, "counts")), "each rank reports its own part"),
    "mean of accuracies": (
        lambda: changed(
            (
                f"right, seen = {COUNTS}",
                "own = np.mean(answers == my_test_labels)\n"
                "    return float(hvd.allreduce(own, op=hvd.Average, name='own'))",
            )
        ),
        "their parts differ in size",
    ),
    "a count": (lambda: changed(("return right / seen", "return right")), "that is a count"),
    "returned on rank 0": (
        lambda: changed(("return right / seen", "return right / seen if rank == 0 else 0.0")),
        "the ranks do not agree",
    ),
    "nothing returned": (lambda: changed(("return right / seen", "right / seen")), "return the accuracy"),
}
NEVER_ENDS = {
    "counts added on rank 0 alone": (
        lambda: changed((COUNTS, f"{COUNTS} if rank == 0 else counts")),
        "not rank 0 alone",
    )
}
