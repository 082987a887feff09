"""The exercises of 06 that overlap: right answers pass, and wrong ones get the hint that names the mistake."""

from functools import partial

from exercises.answers import variant
from exercises.verdicts import Verdicts, planted

from workshop_lib.exercises import overlap as check

NOTEBOOK = "06_zero_and_fsdp"
APPEND = "self.pending.append((p, part, gradient, handle))"
WAIT = "handle.wait()"
LOOP = "for p, part, _, handle in self.pending:"
ENTER = "if layer not in self.started:"


class TestOverlap(Verdicts):
    check, notebook = check, NOTEBOOK
    names = ("OverlappedZero2", "Lookahead")
    right = {
        "OverlappedZero2, all waits first": partial(
            variant,
            NOTEBOOK,
            "OverlappedZero2",
            (LOOP, f"[handle.wait() for *_, handle in self.pending]\n        {LOOP}"),
        ),
        "OverlappedZero2, divided before": partial(
            variant,
            NOTEBOOK,
            "OverlappedZero2",
            ("(part, gradient,", "(part, gradient / self.comm.size,"),
            ("part / self.comm.size", "part"),
        ),
        "OverlappedZero2, PyTorch's older name": partial(
            variant, NOTEBOOK, "OverlappedZero2", ("reduce_scatter_single", "reduce_scatter_tensor")
        ),
        "Lookahead, the next one first": partial(
            variant,
            NOTEBOOK,
            "Lookahead",
            (ENTER, f"if following is not None:\n            self.start(following)\n        {ENTER}"),
            (
                "if following is not None:\n            self.start(following)\n            self",
                "if following is not None:\n            self",
            ),
        ),
    }
    wrong = planted(
        NOTEBOOK,
        {
            "OverlappedZero2": {
                "sends in finish": ([(APPEND, "handle.wait()")], check.WAITING_HINT),
                "part isn't kept": ([("self.shares[p].grad = part / self.comm.size", "pass")], check.SHARE_HINT),
            },
            "Lookahead": {
                "starts everything twice": ([(f"{ENTER}\n            self.start(layer)", "self.start(layer)")], "twice")
            },
        },
    )


def test_a_single_layer_never_starts_another():
    exercise = check.Lookahead
    passes = exercise.observe(None, exercise.mistakes[0].answer)[1]
    assert passes == [[("start", 0), ("wait", 0), ("compute", 0)]] * check.PASSES
