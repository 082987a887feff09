"""Right answers to the exercise of 03 beside the solution, and wrong ones beside the known mistakes."""

RIGHT = {
    "lateness": {
        "with pandas": """
            def lateness(events):
                table = pd.DataFrame([event._asdict() for event in events])
                first = table.groupby(["tensor", "step"])["at_ms"].transform("min")
                largest = (table["at_ms"] - first).groupby([table["rank"], table["step"]]).max()
                return {rank: largest[rank].tolist() for rank in sorted(set(table["rank"]))}
            """,
        "sorted, so that the first one is the earliest": """
            def lateness(events):
                first, late = {}, {}
                for tensor, step, rank, at_ms in sorted(events, key=lambda event: event.at_ms):
                    first.setdefault((step, tensor), at_ms)
                    of_rank = late.setdefault(rank, {})
                    of_rank[step] = max(of_rank.get(step, 0.0), at_ms - first[step, tensor])
                return {rank: [of_rank[step] for step in sorted(of_rank)] for rank, of_rank in late.items()}
            """,
        "each step by itself": """
            def lateness(events):
                ranks = sorted({event.rank for event in events})
                late = {rank: [] for rank in ranks}
                for step in sorted({event.step for event in events}):
                    here = [event for event in events if event.step == step]
                    for rank in ranks:
                        late[rank].append(max(
                            event.at_ms - min(other.at_ms for other in here if other.tensor == event.tensor)
                            for event in here if event.rank == rank
                        ))
                return late
            """,
        "from lists of each tensor's messages": """
            def lateness(events):
                import collections
                messages = collections.defaultdict(dict)
                for event in events:
                    messages[event.step, event.tensor][event.rank] = event.at_ms
                late = collections.defaultdict(lambda: collections.defaultdict(list))
                for (step, _), times in messages.items():
                    for rank, at_ms in times.items():
                        late[rank][step].append(at_ms - min(times.values()))
                return {rank: tuple(max(late[rank][step]) for step in sorted(late[rank])) for rank in late}
            """,
        "with NumPy": """
            def lateness(events):
                import numpy as np
                tensors = sorted({event.tensor for event in events})
                shape = 1 + max(e.rank for e in events), 1 + max(e.step for e in events), len(tensors)
                at_ms = np.zeros(shape)
                for event in events:
                    at_ms[event.rank, event.step, tensors.index(event.tensor)] = event.at_ms
                return dict(enumerate((at_ms - at_ms.min(axis=0)).max(axis=2)))
            """,
    }
}
COUNTS = ("event.at_ms - first_ms[event.tensor, event.step]", "max(first_ms.values()) - event.at_ms")
WRONG = {
    "lateness": {
        "from the recording's start": ([(COUNTS[0], "event.at_ms")], "subtract the earliest"),
        "the other way round": ([COUNTS], "subtract the earliest"),
        "steps as keys": ([("return late_ms", "return dict(enumerate(zip(*late_ms.values())))")], "for each rank"),
        "a generator": ([("return late_ms", "return late_ms.values()")], "a list of milliseconds for each rank"),
    }
}
