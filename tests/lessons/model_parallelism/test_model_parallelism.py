"""The exercises of 11: right answers pass, and wrong ones get the hint that names the mistake."""

import pytest
from judge.verdicts import Verdicts

from workshop_lib.lessons.model_parallelism import judge as check
from workshop_lib.lessons.model_parallelism import judge_cut_blocks as cut_blocks

pytestmark = pytest.mark.usefixtures("healthy")

F = "both_ways(x, forward=same, backward=partial(allreduce, self.comm))"
G = "both_ways(part, forward=partial(allreduce, self.comm), backward=same)"
ROW_BIAS = "nn.Parameter(layer.bias.detach().clone())"


class TestLayers(Verdicts):
    check, notebook = check, check.NOTEBOOK
    names = ("ColumnParallel", "RowParallel")
    right = {
        "ColumnParallel": {
            "with a hook": [(f"x = {F}", "x = x.view_as(x)\n        x.register_hook(partial(allreduce, self.comm))")]
        },
        "RowParallel": {
            "the bias on rank 0 before the sum": [
                (f"part = {check.PART}", f"part = {check.PART} + (self.comm.rank == 0) * self.bias"),
                (f"{G} + self.bias", G),
            ]
        },
    }
    wrong = {
        "ColumnParallel": {
            "the wrong dimension": ([("shard(layer.weight, 0", "shard(layer.weight, 1")], "shard(layer.weight, 0"),
            "the bias isn't cut": ([(check.BIAS, ROW_BIAS)], "so it's cut, too"),
            "the whole layer": (
                [(check.WEIGHT, "layer.weight"), (check.BIAS, "layer.bias")],
                "Cut the weight with `shard`, and the bias too",
            ),
            "no parameters": ([(check.WEIGHT, f"{check.WEIGHT}.data")], "rank 0 has 12 where 156 is right"),
            "f and g mixed up": ([(F, G.replace("part,", "x,"))], "x is already whole on every rank"),
        },
        "RowParallel": {
            "the wrong dimension": ([("shard(layer.weight, 1", "shard(layer.weight, 0")], "shard(layer.weight, 1"),
            "the bias is cut": ([(ROW_BIAS, check.BIAS)], "whole"),
            "f and g mixed up": ([(G, F.replace("x,", "part,"))], "only its own inputs' part"),
            "the bias before and after": ([(check.PART, check.OUTPUTS)], "none of the known"),
        },
    }


QUERY = cut_blocks.QUERY
KEY = QUERY.replace("query", "key")
VALUE = QUERY.replace("query", "value")
OUT = "    attention.out = row(attention.out)\n"
TRADED = "    attention.query, attention.key = column(attention.key), column(attention.query)\n"


class TestBlocks(Verdicts):
    check, notebook = cut_blocks, check.NOTEBOOK
    names = ("cut_block", "TokenParallel")
    right = {
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
        "TokenParallel": {},
    }
    wrong = {
        "cut_block": {
            "the key is whole": ([(KEY, "")], "are query, key and value all cut?"),
            "only the MLP": ([(QUERY, ""), (KEY, ""), (VALUE, ""), (OUT, "")], "Which of the six linear layers"),
            "out by columns": ([("row(attention.out)", "column(attention.out)")], "row-parallel layer reads parts"),
            "queries and keys trade places": ([(QUERY, TRADED), (KEY, "")], "the six layers in hint 2"),
            "up by rows": ([("column(mlp.up), row(mlp.down)", "row(mlp.up), column(mlp.down)")], "which comes first"),
        },
        "TokenParallel": {
            "enter is leave": (
                [
                    (
                        "(x, forward=self.gather, backward=self.scatter_sums)",
                        "(x, forward=self.scatter_sums, backward=self.gather)",
                    )
                ],
                "needs all of them",
            ),
            "backward as forward": (
                [("backward=self.scatter_sums", "backward=self.gather")],
                "has the shape of what it belongs to",
            ),
        },
    }
