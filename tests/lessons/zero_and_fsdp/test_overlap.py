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
IF_MORE, REMEMBER = "if following is not None:", "self.started.add(following)"
START_MORE = f"{IF_MORE}\n            self.start(following)\n"
ENTER = "if layer not in self.started:"


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
        "Lookahead": {"the next one first": [(START_MORE, f"{IF_MORE}\n"), (ENTER, f"{START_MORE}        {ENTER}")]},
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
            "part isn't kept": ([("self.shares[p].grad = part / self.comm.size", "pass")], check.SHARE_HINT),
        },
        "Lookahead": {
            "never starts ahead": ([(IF_MORE, "if False:")], check.NOT_AHEAD_HINT),
            "doesn't remember": ([(REMEMBER, "pass")], check.AGAIN_STARTED_HINT),
            "doesn't forget": ([("self.started.discard(layer)", "pass")], check.UNSTARTED_HINT),
            "starts nothing at the end": ([(IF_MORE, "if True:")], check.LAST_HINT),
            "doesn't wait": ([("self.wait(layer)", "pass")], check.UNWAITED_HINT),
            "waits for the next": (
                [(REMEMBER, f"{REMEMBER}\n            self.wait(following)")],
                check.EARLY_WAIT_HINT,
            ),
            "starts everything twice": ([(f"{ENTER}\n            self.start(layer)", "self.start(layer)")], "twice"),
        },
    }


def test_a_single_layer_never_starts_another():
    make, _ = TestOverlap.wrong["Lookahead, never starts ahead"]
    passes = check.Lookahead.observe(None, make())[1]
    assert passes == [[("start", 0), ("wait", 0), ("compute", 0)]] * check.PASSES
