"""Right answers to the exercises of 11 beside the solutions, and wrong ones beside the known mistakes."""

from lessons.model_parallelism import judge as check

F = """lesson.both_ways(
            x, forward=lesson.same, backward=partial(lesson.allreduce, self.comm)
        )"""
KEY = check.QUERY.replace("query", "key")

RIGHT = {
    "ColumnParallel": {
        "with a hook": [(f"x = {F}", "x = x.view_as(x)\n        x.register_hook(partial(lesson.allreduce, self.comm))")]
    },
    "RowParallel": {
        "the bias on rank 0 before the sum": [
            (f"part = {check.PART}", f"part = {check.PART} + (self.comm.rank == 0) * self.bias"),
            ("whole + self.bias", "whole"),
        ]
    },
    "cut_block": {
        "in a loop": """
                def cut_block(block, column, row):
                    for name in ("query", "key", "value"):
                        setattr(block.attention, name, column(getattr(block.attention, name)))
                    block.attention.out = row(block.attention.out)
                    block.mlp.up = column(block.mlp.up)
                    block.mlp.down = row(block.mlp.down)
                """
    },
    "TokenParallel": {
        "with a lambda": [(check.SCATTER, "self.scatter_sums = lambda x: lesson.reduce_scatter(comm, x, 1)")]
    },
}
WRONG = {
    "ColumnParallel": {
        "the whole layer": (
            [
                ("lesson.shard(layer.weight, 0, comm)", "layer.weight"),
                ("lesson.shard(layer.bias, 0, comm)", "layer.bias"),
            ],
            "Cut the weight with `shard`, and the bias too",
        ),
        "the wrong dimension": (
            [("lesson.shard(layer.weight, 0", "lesson.shard(layer.weight, 1")],
            "lesson.shard(layer.weight, 0",
        ),
    },
    "RowParallel": {
        "the wrong dimension": (
            [("lesson.shard(layer.weight, 1", "lesson.shard(layer.weight, 0")],
            "lesson.shard(layer.weight, 1",
        )
    },
    "cut_block": {"the key is whole": ([(KEY, "")], "are query, key and value all cut?")},
    "TokenParallel": {
        "backward as forward": (
            [("backward=self.scatter_sums", "backward=self.gather")],
            "has the shape of what it belongs to",
        )
    },
}
