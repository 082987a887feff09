"""Ranks that another process holds, such as a job's (`workshop engines start`), used from elsewhere."""

import time
from pathlib import Path

from . import folders
from .cluster import CURRENT, START_ELSEWHERE_LIMIT_S, Ranks, check_number
from .errors import RankError

CONNECT_LIMIT_S = 10.0
GONE_AFTER_S = 15.0  # of a holder that shows no ranks: it takes seconds to stop old ones
PROBE_EVERY_S, PROBES_FAILED = 0.5, 3


class AttachedRanks(Ranks):
    """Used like the notebook's own ranks, but stopping them only lets go of them."""

    attached_only = True

    def __init__(self, folder: Path):
        self._supervised, self.client = [], None
        self._connect(folder)

    def _connect(self, folder: Path) -> None:
        folders.require_answer(folder)
        self.folder, self._holder = folder, folders.owner(folder)
        self._held = (folder / folders.HELD).exists()
        self._cells = {}
        self._probes_failed, self._next_probe = 0, 0.0
        self.client = folders.connect(folder, time.monotonic() + CONNECT_LIMIT_S)
        self.trouble = None
        self.shape = (len(self.client.ids), None, None)
        self._check_order()

    @property
    def remedy(self) -> str:
        if self._held:
            return super().remedy
        return "They were started elsewhere: restart them there, then attach again."

    def restart(self, n: int | None = None) -> Ranks:
        """Have the process that holds these ranks start fresh ones, and use those."""
        if n is not None:
            check_number(n)
        if not self._held:
            raise RankError(f"These ranks cannot be restarted from here. {self.remedy}")
        CURRENT.replace(self)
        self.stop()
        folders.ask_for_restart(self.folder, n)
        self._connect(self._wait_for_fresh())
        if n not in (None, self.n):  # the holder had begun to replace lost ranks before it was asked
            return self.restart(n)
        return self

    def stop(self) -> None:
        """Let go of the ranks; they stay with their holder."""
        if self.client is not None:
            self.trouble = "they were stopped"
            self.client.close(linger=0)
            self.client = None

    def _wait_for_fresh(self) -> Path:
        begun = seen = time.monotonic()
        while time.monotonic() - begun < START_ELSEWHERE_LIMIT_S:
            for folder in set(folders.of_holder(self._holder)) - {self.folder}:
                seen = time.monotonic()
                if (folder / folders.HELD).exists():
                    return folder
            if time.monotonic() - seen > GONE_AFTER_S:
                raise RankError(
                    "The process that held these ranks, or its job, has ended: start it again "
                    "(`workshop engines start`), then attach."
                )
            time.sleep(0.1)
        raise RankError(f"No fresh ranks came up within {START_ELSEWHERE_LIMIT_S:.0f} s where these were held.")

    def _lost(self) -> bool:
        """Whether a rank has ended, or whoever held them; or their controller stopped answering."""
        if super()._lost():
            return True
        if time.monotonic() > self._next_probe:  # a call may be under way, so a look is short
            self._probes_failed = 0 if folders.answers(self.folder) else self._probes_failed + 1
            self._next_probe = time.monotonic() + PROBE_EVERY_S
        return self._probes_failed >= PROBES_FAILED
