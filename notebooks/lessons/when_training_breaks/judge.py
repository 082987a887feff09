"""Judges `ranks_by_frame` of 13_when_training_breaks, on made-up logs of ranks that were asked for their line."""

import functools
from collections.abc import Callable, Iterator

from workshop_lib.exercises.judge import own_or_solution
from workshop_lib.exercises.play import Edit, played

NOTEBOOK = "13_when_training_breaks"
written = functools.partial(own_or_solution, notebook=NOTEBOOK)

WAITS = (  # deeper than READS, as in real answers
    'File "/opt/torch/distributed/distributed_c10d.py", line 3252 in all_reduce',
    'File "/home/me/job.py", line 42 in average_gradient',
)
READS = ('File "/home/me/job.py", line 36 in read_batch',)
SLEEPS: tuple[str, ...] = ()  # in the function `train` itself
ATTENTION = ('File "/home/me/attention.py", line 12 in forward',)
MLP = ('File "/home/me/mlp.py", line 12 in forward',)
MLP_LATER = ('File "/home/me/mlp.py", line 14 in forward',)
OUTER = ('File "/home/me/job.py", line 59 in train', 'File "/home/me/job.py", line 99 in <module>')
MANY = 1_024
SILENT = 'a stopped process can\'t answer, so look at the silent ranks first: all of them are at the key `"no answer"`.'


def log_of(rank: int, *answers: tuple[str, ...]) -> str:
    """The log of a rank that was asked once per answer. An answer has the frames inside the function `train`."""
    lines = [f"rank {rank} is process {26_470 + rank}", f"rank {rank}: step 0, loss 0.2802"]
    for inner in answers:
        lines.append(f"Current thread 0x00007f89f{rank:04x}b80 (most recent call first):")
        lines += [f"  {frame}" for frame in (*inner, *OUTER)]
    return "\n".join(lines) + "\n"


def groups(found) -> list[list[int]]:
    """The ranks that are together in a dictionary, a pandas Series or the like, whatever its keys are."""
    return sorted(sorted(int(rank) for rank in at) for at in dict(found).values())


def play_ranks_by_frame(ranks_by_frame: Callable, comm) -> Iterator[tuple]:
    found = ranks_by_frame([log_of(rank, READS if rank == 1 else WAITS) for rank in range(4)])
    yield "ranks at the same line are together", groups(found)
    missing = [name for name in ("all_reduce", "read_batch") if not any(name in str(key) for key in dict(found))]
    yield "each key says where its ranks are", missing, "these functions are in no key:"
    asked_twice = [log_of(0, WAITS, WAITS), log_of(1, SLEEPS, WAITS), log_of(2, READS, READS)]
    yield "a rank's last answer counts", groups(ranks_by_frame(asked_twice)), "when ranks are asked twice"
    forwards = [log_of(rank, frame) for rank, frame in enumerate((ATTENTION, MLP, MLP, MLP_LATER))]
    yield "other lines and other files are other places", groups(ranks_by_frame(forwards)), "with three `forward`s"
    silent = [log_of(0, WAITS), log_of(1), log_of(2, WAITS), log_of(3)]
    yield "ranks that haven't answered are together", groups(ranks_by_frame(silent)), "when two don't answer", SILENT
    many = [log_of(rank, READS if rank == 617 else WAITS) for rank in range(MANY)]
    smallest = min(groups(ranks_by_frame(many)), key=len)
    yield f"the one rank of {MANY:,} is found", smallest, "in the smallest group"


LAST = 'log.rpartition("(most recent call first):\\n")'
FRAME = "answer.splitlines()[0].strip()"
ranks_by_frame = played(
    "ranks_by_frame",
    NOTEBOOK,
    play_ranks_by_frame,
    [
        Edit(
            "all ranks are together: is that the last line of the answer? It's the outermost call, the same on every "
            "rank. The innermost frame comes first.",
            (FRAME, "answer.splitlines()[-1].strip()"),
        ),
        Edit(
            "every rank is alone: is a number of its own in the key, such as the rank or that of its thread? Take the "
            "line *below* “most recent call first”.",
            (LAST, 'log.rpartition("Current thread")'),
        ),
        Edit(
            "rank 1 was on its way when it was asked first. Take what comes after the *last* “most recent call first”.",
            (LAST, LAST.replace("rpartition", "partition")),
        ),
        Edit(
            "is the key only a part of the line? Each layer has a `forward`: keep the file, the line and the function.",
            (FRAME, f'{FRAME}.rpartition(" in ")[2]'),
        ),
        Edit(SILENT, ("    frame = ", "    if not found:\n            continue\n        frame = ")),
    ],
    communicates=False,
    watched=False,
    raised={
        "'int' object is not iterable": "each key needs the list of its ranks, not only their number.",
        "'NoneType' object": "it should `return` the dictionary.",
        "invalid literal for int()": "for each frame, the dictionary needs a list of ranks, which are numbers.",
    },
    unknown="For each log: what comes after the last “most recent call first”, and of that, the first line.",
)
