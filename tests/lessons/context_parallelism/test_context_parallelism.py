"""The exercises of 11c: right answers pass, and wrong ones get the hint that names the mistake."""

import pytest
from judge.answers import variant
from judge.verdicts import Verdicts, soon

from workshop_lib.lessons.context_parallelism import judge as check

RANKS = 4  # on 2, left and right are the same
pytestmark = pytest.mark.usefixtures("healthy")

BOTH_STARTED = "sending = comm.Isend(block.numpy(), right)\n            receiving = comm.Irecv(arriving.numpy(), left)"
SENT_ALREADY = ("            sending.Wait()\n            receiving.Wait()\n", "")


class TestContextParallelism(Verdicts):
    check, notebook = check, check.NOTEBOOK
    names = ("merge", "ring_attention", "zigzag")
    right = {
        "merge": {
            "both parts in a loop": """
                def merge(a, b):
                    top = torch.maximum(a[0], b[0])
                    parts = [[each * (part[0] - top).exp() for each in part[1:]] for part in (a, b)]
                    return top, parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
                """
        },
        "ring_attention": {
            "Sendrecv after computing": """
                def ring_attention(query, key, value, attend, merge, comm):
                    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
                    merged = attend(query, key, value, comm.rank)
                    block = torch.stack([key, value])
                    for step in range(1, comm.size):
                        arriving = torch.empty_like(block)
                        comm.Sendrecv(block.numpy(), right, recvbuf=arriving.numpy(), source=left)
                        block = arriving
                        merged = merge(merged, attend(query, *block, (comm.rank - step) % comm.size))
                    top, total, out = merged
                    return out / total, top + torch.log(total)
                """,
            "the other way around": [
                ("right = (comm.rank + 1)", "right = (comm.rank - 1)"),
                ("left = (comm.rank - 1)", "left = (comm.rank + 1)"),
                (check.SOURCE, "source = (comm.rank + step) % comm.size"),
            ],
            "two messages": """
                def ring_attention(query, key, value, attend, merge, comm):
                    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
                    merged = None
                    for step in range(comm.size):
                        part = attend(query, key, value, (comm.rank - step) % comm.size)
                        merged = merge(merged, part) if merged else part
                        if step + 1 < comm.size:
                            next_key, next_value = torch.empty_like(key), torch.empty_like(value)
                            comm.Sendrecv(key.numpy(), right, recvbuf=next_key.numpy(), source=left)
                            comm.Sendrecv(value.numpy(), right, recvbuf=next_value.numpy(), source=left)
                            key, value = next_key, next_value
                    top, total, out = merged
                    return out / total, total.log() + top
                """,
        },
        "zigzag": {
            "by slices": """
                def zigzag(tokens, rank, size):
                    n = tokens // (2 * size)
                    first, last = rank * n, (2 * size - 1 - rank) * n
                    return torch.tensor([*range(first, first + n), *range(last, last + n)])
                """,
            "the other way around": [(check.TWO, "torch.cat([chunks[size - 1 - rank], chunks[size + rank]])")],
        },
    }
    wrong = {
        "merge": {
            "with exp of the tops": (
                [
                    ("(top_a - top).exp()", "top_a.exp() / top.exp()"),
                    ("(top_b - top).exp()", "top_b.exp() / top.exp()"),
                ],
                "0 or negative",
            )
        },
        "ring_attention": {
            "one step ahead": (
                [(check.SOURCE, "source = (comm.rank - step - 1) % comm.size")],
                "after `step` exchanges",
            ),
            "one block too many": ([("step == comm.size - 1", "False")], "are enough for 4 ranks"),
        },
    }


def test_ranks_that_wait_for_each_other_are_told_what_a_ring_needs(team):
    only_receive = "comm.Recv(arriving.numpy(), left)\n            comm.Send(block.numpy(), right)"
    answer = variant(check.NOTEBOOK, "ring_attention", (BOTH_STARTED, only_receive), SENT_ALREADY)
    verdict = soon(check.ring_attention)(answer)
    assert verdict.passed is False
    assert "sends to its right and receives from its left" in verdict.hint
    assert "comm.Recv(arriving.numpy(), left)" in verdict.details, "it says on which line the ranks wait"
    assert team.healthy, "fresh ranks are there for the next cell"
