"""Lose a rank of a script. The notebook kills rank 3 of two torchruns, and reads what each of them reports."""

import threading
import time
from pathlib import Path

from workshop_lib.ranks.faults.rank_errors import RankError
from workshop_lib.ranks.launch import processes, scripts


def run_and_lose(*command, rank: int, once: Path, timeout_s: float = 120.0, only: str = "") -> float | None:
    """Like `scripts.run`, but kill the process with this RANK as soon as the file `once` exists, and print the outcome.

    The command is expected to fail then, so this raises no error. Returns the seconds from the kill to the end of the
    last process; None if the rank had ended before.
    """
    set_id = processes.new_set_id()
    ended = threading.Event()
    killed_s: list[float] = []

    def lose() -> None:
        while not (once.exists() or ended.wait(0.02)):
            pass
        lost = [each for each, _ in processes.marked(set_id) if scripts.rank_of(each) == str(rank)]
        if lost and not ended.is_set():
            killed_s.append(time.monotonic())
            print(f"--- rank {rank} is killed", flush=True)
            processes.kill(lost, wait_s=0)

    thread = threading.Thread(target=lose)
    thread.start()
    try:
        scripts.run(*command, timeout_s=timeout_s, set_id=set_id, only=only)
    except RankError as error:
        print(f"--- the command {str(error).rpartition('` ')[2]}")  # the command itself is printed above
    finally:
        ended.set()
        thread.join()
    if not killed_s:
        print(f"--- all processes had ended before rank {rank} could be killed")
        return None
    after_s = time.monotonic() - killed_s[0]
    print(f"--- {after_s:.1f} s after the kill, all processes have ended")
    return after_s
