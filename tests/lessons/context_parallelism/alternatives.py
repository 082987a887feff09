"""Right answers to the exercises of 11c beside the solutions, and wrong ones beside the known mistakes."""

from lessons.context_parallelism import judge as check

RANKS = 4  # on 2, left and right are the same

RIGHT = {
    "merge": {
        "both parts in a loop": """
            def merge(a, b):
                top = torch.maximum(a[0], b[0])
                parts = [[each * (part[0] - top).exp() for each in part[1:]] for part in (a, b)]
                return top, parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
            """
    },
    "ring_attention": {
        "the own block first": """
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
        "with requests": [(check.SENDRECV, check.BOTH_STARTED + check.BOTH_DONE)],
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
    "overlapped_ring": {
        "two messages, receives first": """
            def overlapped_ring(query, key, value, attend, merge, comm):
                right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
                merged = None
                for step in range(comm.size):
                    requests, coming = [], (key, value)
                    if step + 1 < comm.size:
                        coming = torch.empty_like(key), torch.empty_like(value)
                        requests = [comm.Irecv(each.numpy(), left, tag) for tag, each in enumerate(coming)]
                        requests += [comm.Isend(each.numpy(), right, tag) for tag, each in enumerate((key, value))]
                    part = attend(query, key, value, (comm.rank - step) % comm.size)
                    merged = merge(merged, part) if merged else part
                    for request in requests:
                        request.Wait()
                    key, value = coming
                top, total, out = merged
                return out / total, total.log() + top
            """,
        "all waited for at once": [(check.BOTH_DONE, "            MPI.Request.Waitall([sending, receiving])\n")],
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
WRONG = {
    "merge": {
        "with exp of the tops": (
            [("(top_a - top).exp()", "top_a.exp() / top.exp()"), ("(top_b - top).exp()", "top_b.exp() / top.exp()")],
            "0 or negative",
        )
    },
    "ring_attention": {
        "one step ahead": ([(check.SOURCE, "source = (comm.rank - step - 1) % comm.size")], "after `step` exchanges"),
        "one block too many": ([("step < comm.size - 1", "True")], "are enough for 4 ranks"),
    },
    "overlapped_ring": {
        "still Sendrecv": (
            [(check.BOTH_STARTED, ""), (check.BOTH_DONE, check.SENDRECV)],
            "without a message under way in the steps",
        ),
        "waited for too early": (
            [(check.BOTH_DONE, ""), (check.BOTH_STARTED, check.BOTH_STARTED + check.BOTH_DONE)],
            "nothing travels while you compute",
        ),
        "only the receive starts early": (
            [
                ("            sending = comm.Isend(block.numpy(), right)\n", ""),
                ("            sending.Wait()\n", "            comm.Send(block.numpy(), right)\n"),
            ],
            "without a message under way in the steps",
        ),
    },
}
NEVER_ENDS = {
    "ring_attention": {
        "all receive first": (
            [
                (
                    check.SENDRECV,
                    "            comm.Recv(arriving.numpy(), left)\n            comm.Send(block.numpy(), right)\n",
                )
            ],
            "sends to its right and receives from its left",
        )
    }
}
