"""The exercises of 11: right answers pass, and wrong ones get the hint that names the mistake."""

from functools import partial

import pytest
from judge.answers import variant
from judge.verdicts import Verdicts, planted

from workshop_lib.lessons.model_parallelism import judge as check
from workshop_lib.lessons.model_parallelism import judge_cut_blocks as cut_blocks

pytestmark = pytest.mark.usefixtures("healthy")

NOTEBOOK = "11_model_parallelism"
F = "both_ways(x, forward=same, backward=partial(allreduce, self.comm))"
G = "both_ways(part, forward=partial(allreduce, self.comm), backward=same)"
ROW_BIAS = "nn.Parameter(layer.bias.detach().clone())"


class TestLayers(Verdicts):
    check, notebook = check, NOTEBOOK
    names = ("ColumnParallel", "RowParallel")
    right = {
        "ColumnParallel, with a hook": partial(
            variant,
            NOTEBOOK,
            "ColumnParallel",
            (f"x = {F}", "x = x.view_as(x)\n        x.register_hook(partial(allreduce, self.comm))"),
        ),
        "RowParallel, the bias on rank 0 before the sum": partial(
            variant,
            NOTEBOOK,
            "RowParallel",
            ("part = linear(x, self.weight)", "part = linear(x, self.weight) + (self.comm.rank == 0) * self.bias"),
            (f"{G} + self.bias", G),
        ),
    }
    wrong = planted(
        NOTEBOOK,
        {
            "ColumnParallel": {
                "the wrong dimension": ([("shard(layer.weight, 0", "shard(layer.weight, 1")], "shard(layer.weight, 0"),
                "the bias isn't cut": ([("shard(layer.bias, 0, comm)", ROW_BIAS)], "so it's cut, too"),
                "the whole layer": (
                    [("shard(layer.weight, 0, comm)", "layer.weight"), ("shard(layer.bias, 0, comm)", "layer.bias")],
                    "Cut the weight with `shard`, and the bias too",
                ),
                "no parameters": ([("shard(layer.weight, 0, comm)", "shard(layer.weight, 0, comm).data")], "its share"),
                "f and g mixed up": ([(F, G.replace("part,", "x,"))], "x is already whole on every rank"),
            },
            "RowParallel": {
                "the wrong dimension": ([("shard(layer.weight, 1", "shard(layer.weight, 0")], "shard(layer.weight, 1"),
                "the bias is cut": ([(ROW_BIAS, "shard(layer.bias, 0, comm)")], "whole"),
                "f and g mixed up": ([(G, F.replace("x,", "part,"))], "only its own inputs' part"),
                "the bias before and after": (
                    [("linear(x, self.weight)", "linear(x, self.weight, self.bias)")],
                    "none of the known",
                ),
            },
        },
    )


class TestBlocks(Verdicts):
    check, notebook = cut_blocks, NOTEBOOK
    names = ("cut_block", "TokenParallel")
    right = {
        "cut_block, in a loop": partial(
            variant,
            NOTEBOOK,
            "cut_block",
            ("    attention.query = column(attention.query)\n", ""),
            ("    attention.key = column(attention.key)\n", ""),
            (
                "attention.value = column(attention.value)",
                "for name in ('query', 'key', 'value'):\n"
                "        setattr(attention, name, column(getattr(attention, name)))",
            ),
        )
    }
    wrong = planted(
        NOTEBOOK,
        {
            "cut_block": {
                "the key is whole": (
                    [("    attention.key = column(attention.key)\n", "")],
                    "are query, key and value all cut?",
                ),
                "only the MLP": (
                    [(f"    attention.{name} = column(attention.{name})\n", "") for name in ("query", "key", "value")]
                    + [("    attention.out = row(attention.out)\n", "")],
                    "Which of the six linear layers",
                ),
                "out by columns": ([("row(attention.out)", "column(attention.out)")], "row-parallel layer reads parts"),
                "up by rows": (
                    [("column(mlp.up), row(mlp.down)", "row(mlp.up), column(mlp.down)")],
                    "which comes first",
                ),
            },
            "TokenParallel": {
                "enter is leave": (
                    [
                        (
                            "both_ways(x, forward=self.gather, backward=self.scatter_sums)",
                            "both_ways(x, forward=self.scatter_sums, backward=self.gather)",
                        )
                    ],
                    "needs all of them",
                ),
                "backward as forward": (
                    [("backward=self.scatter_sums", "backward=self.gather")],
                    "has the shape of what it belongs to",
                ),
            },
        },
    )
