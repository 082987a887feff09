"""Right answers to the exercise of 13 beside the solution, and wrong ones beside the known mistakes."""

RIGHT = {
    "ranks_by_frame": {
        "a regular expression, and keys of three parts": """
            import re
            from collections import defaultdict
            def ranks_by_frame(logs):
                found = defaultdict(set)
                for rank, log in enumerate(logs):
                    frames = re.findall(r'call first\\):\\n  File "(.+)", line (\\d+) in (.+)', log)
                    found[frames[-1] if frames else None].add(rank)
                return found
            """,
        "pandas": """
            import pandas as pd
            def ranks_by_frame(logs):
                answers = pd.Series(logs).str.split("first):", regex=False)
                frames = answers.map(lambda parts: parts[-1].split("\\n")[1] if len(parts) > 1 else "no answer")
                return frames.groupby(frames).groups
            """,
        "a Counter of lines, rarest first": """
            from collections import Counter
            def ranks_by_frame(logs):
                at = []
                for log in logs:
                    lines = log.splitlines()
                    headers = [n for n, line in enumerate(lines) if "most recent call first" in line]
                    at.append(lines[headers[-1] + 1] if headers else "no answer")
                rarest_first = [line for line, _ in reversed(Counter(at).most_common())]
                return {line: [rank for rank, other in enumerate(at) if other == line] for line in rarest_first}
            """,
    }
}
WRONG = {
    "ranks_by_frame": {
        "counts": (
            """
            from collections import Counter
            def ranks_by_frame(logs):
                return Counter(log.rpartition("first):\\n")[2].splitlines()[0] for log in logs)
            """,
            "each key needs the list of its ranks",
        ),
        "a frame for each rank": (
            """
            def ranks_by_frame(logs):
                return {rank: log.rpartition("first):\\n")[2].splitlines()[0] for rank, log in enumerate(logs)}
            """,
            "for each frame, the dictionary needs a list of ranks",
        ),
        "always the third line from the end": (
            """
            def ranks_by_frame(logs):
                result = {}
                for rank, log in enumerate(logs):
                    result.setdefault(log.splitlines()[-3], []).append(rank)
                return result
            """,
            "these functions are in no key",
        ),
        "silent ranks at their first line": (
            """
            def ranks_by_frame(logs):
                result = {}
                for rank, log in enumerate(logs):
                    result.setdefault(log.rpartition("first):\\n")[2].splitlines()[0], []).append(rank)
                return result
            """,
            "all of them are at the key",
        ),
        "no return": ("def ranks_by_frame(logs): print(len(logs))", "it should `return` the dictionary"),
        "numbered groups": (
            """
            def ranks_by_frame(logs):
                lines = [log.rpartition("first):\\n")[2].splitlines()[0] for log in logs]
                groups = [[rank for rank in range(len(logs)) if lines[rank] == line] for line in set(lines)]
                return dict(enumerate(groups))
            """,
            "these functions are in no key",
        ),
    }
}
