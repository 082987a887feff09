"""The exercises of 06 that overlap: right answers pass, and wrong ones get the hint that names the mistake."""

import pytest
from judge.verdicts import Verdicts

from workshop_lib.lessons.zero_and_fsdp import judge_overlap as check

pytestmark = pytest.mark.usefixtures("healthy")

APPEND = "self.pending.append((p, part, gradient, handle))"
WAIT = "handle.wait()"
LOOP = "for p, part, _, handle in self.pending:"
SEND = "dist.reduce_scatter_single(part, gradient, async_op=True)"
CLEAR = "self.pending.clear()"
IF_MORE = "if following is not None:"
START, WAIT_FOR = "self.start(layer)", "self.wait(layer)"
START_MORE = "self.start(following)"


class TestOverlap(Verdicts):
    check, notebook, names = check, "06_zero_and_fsdp", ["OverlappedZero2", "Lookahead"]
    right = {
        "OverlappedZero2": {
            "all waits first": [(LOOP, f"[handle.wait() for *_, handle in self.pending]\n        {LOOP}")],
            "divided before": [
                ("(part, gradient,", "(part, gradient / self.comm.size,"),
                ("part / self.comm.size", "part"),
            ],
            "PyTorch's older name": [("reduce_scatter_single", "reduce_scatter_tensor")],
        },
        "Lookahead": {
            "waits, then starts the next": [
                (
                    f"{IF_MORE}\n            {START_MORE}\n        {WAIT_FOR}",
                    f"{WAIT_FOR}\n        {IF_MORE}\n            {START_MORE}",
                )
            ],
            "remembers what is on its way": [
                ("self.wait = wait", "self.wait = wait\n        self.started = set()"),
                (START, f"if layer not in self.started: {START}\n        self.started.discard(layer)"),
                (START_MORE, f"{START_MORE}\n            self.started.add(following)"),
            ],
        },
    }
    wrong = {
        "OverlappedZero2": {
            "sends nothing": ([(f"handle = {SEND}", "p.grad = None\n        return")], check.NOTHING_HINT),
            "sends in finish": (
                [
                    (f"handle = {SEND}", "handle = None"),
                    (LOOP, LOOP.replace("_", "gradient")),
                    (WAIT, f"{SEND}.wait()"),
                ],
                check.LATER_HINT,
            ),
            "sends everything": ([(SEND, "dist.all_reduce(gradient, async_op=True)")], check.WHOLE_HINT),
            "blocks": ([(", async_op=True", ""), (WAIT, "pass")], check.BLOCKING_HINT),
            "waits in reduce": ([(APPEND, f"handle.wait()\n        {APPEND}")], check.WAITING_HINT),
            "keeps the gradient": ([("p.grad = None", "pass")], check.KEPT_HINT),
            "never waits": ([(WAIT, "pass")], check.FORGOT_HINT),
            "sums": ([(" / self.comm.size", "")], check.SUM_HINT),
            # Without emptying the list, the first step's gradients come last.
            "keeps the list": (
                [(LOOP, LOOP.replace("self.pending", "reversed(self.pending)")), (CLEAR, "pass")],
                check.AGAIN_HINT,
            ),
            "part isn't kept": ([("self.shards[p].grad = part / self.comm.size", "pass")], check.SHARE_HINT),
        },
        "Lookahead": {
            "never starts ahead": ([(IF_MORE, "if False:")], check.NOT_AHEAD_HINT),
            "starts nothing at the end": ([(IF_MORE, "if True:")], check.LAST_HINT),
            "never starts the first": ([(START, "pass")], check.UNSTARTED_HINT),
            "doesn't wait": ([(WAIT_FOR, "pass")], check.UNWAITED_HINT),
            "waits for the next": (
                [(START_MORE, f"{START_MORE}\n            self.wait(following)")],
                check.EARLY_WAIT_HINT,
            ),
            "waits twice": ([(WAIT_FOR, f"{WAIT_FOR}; {WAIT_FOR}")], check.AGAIN_STARTED_HINT),
        },
    }


def test_a_single_layer_never_starts_another():
    make, _ = TestOverlap.wrong["Lookahead, never starts ahead"]
    passes = check.Lookahead.observe(None, make())[1]
    assert passes == [[("start", 0), ("wait", 0), ("compute", 0)]] * check.PASSES
