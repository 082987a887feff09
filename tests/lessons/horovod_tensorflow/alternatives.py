"""Right answers to the exercises of 04 beside the solutions, and wrong ones beside the known mistakes."""

from lessons.horovod_tensorflow.judge import MEAN

SHARD = "images[rank::size],\n        labels[rank::size]"
CALLBACKS = "callbacks = [lesson.keras3.BroadcastVariables()]"
DATASET = "dataset = __import__('tensorflow').data.Dataset.from_tensor_slices((images, labels))"
SAVE = "if rank == 0:\n        model.save(path)"
BEFORE_FIT = "callbacks = []\n    hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)"
IMPORT = "import horovod.tensorflow as hvd"

RIGHT = {
    "averaging": {
        "one allreduce each": [
            (MEAN, "[hvd.allreduce(g, op=hvd.Average, name=f'g{i}') for i, g in enumerate(gradients)]")
        ],
        "a sum divided": [(MEAN, f"[g / hvd.size() for g in {MEAN.replace('Average', 'Sum')}]")],
        "apply of the object replaced": """
            def averaging(optimizer):
                import horovod.tensorflow as hvd

                def apply(gradients, variables=None):
                    return plain(hvd.grouped_allreduce(list(gradients), op=hvd.Average), variables)

                plain, optimizer.apply = optimizer.apply, apply
                return optimizer
            """,
        "the library's": """
            def averaging(optimizer):
                return lesson.keras3.DistributedOptimizer(optimizer)
            """,
    },
    "train": {
        "in blocks": [
            (SHARD, "np.array_split(images, size)[rank], np.array_split(labels, size)[rank]"),
            (IMPORT, f"{IMPORT}, numpy as np"),
        ],
        "a dataset": [
            (f"{SHARD},\n        batch_size=64", "dataset.shard(size, rank).batch(64)"),
            (CALLBACKS, f"{CALLBACKS}\n    {DATASET}"),
        ],
        "broadcast before fit": [(CALLBACKS, BEFORE_FIT)],
    },
}
WRONG = {
    "averaging": {
        "Horovod's own class": (
            """
            def averaging(optimizer):
                import horovod.tensorflow.keras as hvd

                return hvd.DistributedOptimizer(optimizer)
            """,
            "Does Keras call your method at all",
        ),
        "the class": (
            [("return Averaging.from_config(optimizer.get_config())", "return Averaging")],
            "the class instead",
        ),
    },
    "train": {
        "shared out by local rank": ([(SHARD, SHARD.replace("rank::", "hvd.local_rank()::"))], "counts within a host"),
        "the batch divided": ([("batch_size=64", "batch_size=64 // size")], "in batches of 64"),
        "saved early": ([(SAVE, "pass"), (CALLBACKS, f"{CALLBACKS}\n    {SAVE}")], "after training"),
    },
}
NEVER_ENDS = {
    "train": {"rank 0 alone trains": ([("    model.fit(", "    rank or model.fit(")], "not rank 0 alone")},
    "averaging": {"rank 0 alone averages": ([(MEAN, f"{MEAN} if hvd.rank() == 0 else gradients")], "not rank 0 alone")},
}
