"""Right answers to the exercises of 11b beside the solutions, and wrong ones beside the known mistakes."""

from lessons.pipelines import judge as check

AHEAD = "ahead = min(m, ranks - 1 - rank)"
TAKE_OUT = "x, y = self.kept.pop(i)"
LOOK = "x, y = self.kept[i]"
FURTHER = "ahead = min(total, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)"
GPIPE = 'return [("F", i) for i in range(m)] + [("B", i) for i in range(m)]'
BACK = '[("B", i) for i in range(m)]'
BACK_REVERSED = '[("B", m - 1 - i) for i in range(m)]'

RIGHT = {
    "MyStage": {
        "divided in backward": [("/ self.m", ""), ("y.backward()", "(y / self.m).backward()")],
        "kept by name": [("= x, y", "= {'x': x, 'y': y}"), (TAKE_OUT, f"{TAKE_OUT}.values()")],
    },
    "gpipe": {"last in, first out": [(BACK, BACK_REVERSED)], "as lists": [('("F", i)', '["F", i]')]},
    "one_f_one_b": {
        "backward first in each turn": [
            (AHEAD, "ahead = min(m, ranks - rank)"),
            ('("F", ahead + i), ("B", i)', '("B", i), ("F", ahead + i)'),
        ]
    },
    # What is twice as far in Megatron-LM leaves time for messages, which take none here.
    "interleaved": {"ahead by one for each rank": [("2 * (ranks", "(ranks")]},
    "balanced": {"the last of equally good cuts": [("slowest < best[0]", "slowest <= best[0]")]},
}
WRONG = {
    "MyStage": {
        "never taken out": ([(TAKE_OUT, LOOK)], "self.kept.pop(i)"),
        "kept elsewhere": (
            [("self.kept[i] = x, y", "self.__dict__[i] = x, y"), (TAKE_OUT, "x, y = self.__dict__.pop(i)")],
            "in `self.kept[i]`",
        ),
    },
    "gpipe": {
        "no backward": ([(f" + {BACK}", "")], "lacks ('B', 0)"),
        "one micro-batch too many": ([("range(m)", "range(m + 1)")], "too often"),
        "numbers": ([('("F", i)', "i")], "a list of operations"),
        "one after the other": ([(GPIPE, 'return [(kind, i) for i in range(m) for kind in "FB"]')], check.MIXED_HINT),
        "backward first": (
            [(GPIPE, 'return [(kind, i) for kind in "BF" for i in range(m)]')],
            "rank 0 goes backward with micro-batch 0 before it went forward with it",
        ),
    },
    "one_f_one_b": {
        "fewer micro-batches than ranks": ([(AHEAD, "ahead = ranks - 1 - rank")], "of rank 0"),
        "one more ahead": ([(AHEAD, "ahead = min(m, ranks - rank)")], check.AHEAD_HINT),
    },
    "balanced": {"the shortest sum": ([("max(sum", "min(sum")], "sets the pace")},
    "interleaved": {
        "everything ahead": ([(FURTHER, "ahead = total")], check.CHUNKS_HINT),
        "backward from the first chunk": ([("chunks - 1 - chunk", "chunk")], check.CHUNKS_HINT),
    },
}
