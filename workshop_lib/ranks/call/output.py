"""What the ranks of a call print and display, in the order in which each rank printed and displayed it.

Each rank sends all of this as published data, in one order (sent.py). Its outcome has a channel of its own, the reply
to the call: published data may be dropped on its way to a slow listener, and an outcome never.
"""

import time
from dataclasses import dataclass, field

from workshop_lib.ranks.faults.rank_errors import grouped, listed

from .messages import Displayed, Text, output_key

EACH_UP_TO = 8  # with more ranks than that, ranks that print the same share a line
OTHERS_LIMIT_S = 0.5  # how long a display waits for other ranks' displays, to be shown beside them


def labeled(texts: dict[int, str], n: int) -> list[str]:
    """The lines of each rank's text with the rank in front. Among many ranks, equal texts are shown once, for all."""
    if n <= EACH_UP_TO:
        return [f"[{rank}] {line}" for rank, text in texts.items() for line in text.splitlines()]
    return [f"[{listed(ranks)}] {line}" for ranks, text in grouped(texts) for line in text.splitlines()]


@dataclass(eq=False)
class Row:
    """What ranks show side by side: the first display of each rank, or the second of each rank, and so on."""

    ranks: list[int]  # the ranks that run the call
    parts: dict[int, Displayed] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)  # ranks whose part is new since it was last shown

    def new_lines(self) -> list[str]:
        """The changed parts as text, each line with its rank in front. After that, they do not count as changed."""
        changed = sorted(self.changed)
        self.changed = set()
        texts = {rank: self.parts[rank]["data"].get("text/plain", "") for rank in changed}
        return labeled(texts, len(self.ranks))

    @property
    def is_the_same(self) -> bool:
        """Whether all ranks displayed the same.

        If there are formats other than text, the texts may differ, because they may contain an object's address.
        """
        bundles = [_without_text(self.parts[rank]["data"]) for rank in self.parts]
        return len(self.parts) == len(self.ranks) and all(bundle == bundles[0] for bundle in bundles)


class RankOutput:
    """What one rank has printed and displayed so far, and how much of it has been taken."""

    def __init__(self, answer):
        self.answer = answer  # a call.Answer
        self.taken = 0  # texts and displays
        self.displays_taken = 0
        self.being_written = {"stdout": "", "stderr": ""}

    def take_lines(self, whole: bool) -> list[str]:
        """Take the new lines up to the next display. whole: whether to take unfinished last lines, too."""
        lines = []
        while isinstance(new := self._next(), Text):
            self.taken += 1
            *ended, rest = (self.being_written[new.stream] + new.text).split("\n")
            self.being_written[new.stream] = rest
            lines += ended
        if whole and new is None:
            lines += [line for line in self.being_written.values() if line]
            self.being_written = dict.fromkeys(self.being_written, "")
        return [_as_redrawn(line) for line in lines]

    def next_display(self) -> Displayed | None:
        """What the rank displayed after the lines that were taken; None if it displayed or printed something else."""
        new = self._next()
        return None if isinstance(new, Text) else new

    def take_display(self) -> Displayed | None:
        """Take the next display, if there is one."""
        new = self.next_display()
        if new is not None:
            self.taken += 1
            self.displays_taken += 1
        return new

    def _next(self) -> Text | Displayed | None:
        return self.answer.data.get(output_key(self.taken))

    def unfinished(self) -> str:
        """The line that the rank is writing, such as a progress bar; empty if there is none."""
        lines = [_as_redrawn(line.rstrip("\r ")) for line in self.being_written.values()]
        return next(filter(None, lines), "")


def _as_redrawn(line: str) -> str:
    """A line as a terminal shows it: progress bars return to its beginning."""
    return line.rstrip("\r").rpartition("\r")[2]


class Output:
    """The output of a call on some ranks, taken as it arrives."""

    def __init__(self, answers: dict):
        self.ranks = {rank: RankOutput(answer) for rank, answer in answers.items()}
        self.rows: list[Row] = []
        self._waits_since_s: float | None = None

    def news(self, whole: bool = False) -> list[str | Row]:
        """New lines, each with its rank in front, and rows that are new or have changed; rank 0 first.

        whole: whether the call is over, so that unfinished lines count, too.
        """
        items: list[str | Row] = []
        while True:
            lines = {rank: output.take_lines(whole) for rank, output in self.ranks.items()}
            texts = {rank: "".join(f"{line}\n" for line in new) for rank, new in lines.items() if new}
            items += labeled(texts, len(self.ranks))
            if not whole and self._waits_for_others():
                return items
            changed = [row for rank in self.ranks for row in self._take_display(rank)]
            if not changed:
                return items
            items += [row for row in dict.fromkeys(changed) if row not in items]

    def unfinished(self) -> list[str]:
        """The lines that ranks are writing, each with its rank in front."""
        lines = {rank: output.unfinished() for rank, output in self.ranks.items()}
        return labeled({rank: line for rank, line in lines.items() if line}, len(self.ranks))

    def _waits_for_others(self) -> bool:
        """Whether to wait a moment before showing a rank's next display, because other ranks may display the same."""
        running = [output for output in self.ranks.values() if not output.answer.ready()]
        new = [output for output in self.ranks.values() if output.next_display()]
        ahead = [output for output in new if any(other.displays_taken < output.displays_taken for other in running)]
        if not new or ahead or all(output in new for output in running):
            self._waits_since_s = None
            return False
        self._waits_since_s = self._waits_since_s or time.monotonic()
        return time.monotonic() - self._waits_since_s < OTHERS_LIMIT_S

    def _take_display(self, rank: int) -> list[Row]:
        """Take a rank's next display; return the row that it changes, or none if there is no next display."""
        new = self.ranks[rank].take_display()
        if new is None:
            return []
        row = next((row for row in self.rows if rank not in row.parts), None)
        if row is None:
            self.rows.append(row := Row(list(self.ranks)))
        row.parts[rank] = new
        row.changed.add(rank)
        return [row]


def _without_text(data: dict) -> dict:
    return {mime: value for mime, value in data.items() if mime != "text/plain"} or data
