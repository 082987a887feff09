"""What launchers make of a rank that dies, measured for 13_when_training_breaks."""

import contextlib
import io
import re
import time
from pathlib import Path

import pandas as pd

from workshop_lib.ranks.faults.rank_errors import RankError
from workshop_lib.ranks.launch import scripts, which_mpi

DEATHS = {"exits with 7": "os._exit(7)", "is killed": "os.kill(os.getpid(), 9)"}
SLEEP_S = 20  # the time that the other rank sleeps, if nobody ends it
SCRIPT = """\
import os
import time

rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or os.environ["RANK"]
if rank == "1":
    {death}
time.sleep({sleep_s})
"""
ENDED = re.compile(r"(?i)exit ?code *: *-?\d+|signal \d+")  # the words of a launcher that tell how a rank ended


def torchrun(ranks: int) -> list:
    """The words that start `ranks` ranks on this machine with torchrun; a script and its options follow.

    Without the variable, the ranks that torchrun 2.13 to 2.15 starts again after a failure can hang on one machine.
    """
    settings = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"]
    return [*settings, "torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", ranks]


def after_a_death(folder: Path) -> pd.DataFrame:
    """Let rank 1 of two die under mpiexec and under torchrun, in two ways each.

    folder: where to write the scripts. Returns a table of how long the job lasted, and of its exit codes.
    """
    launchers = {"mpiexec": [*which_mpi.mpiexec(), "-n", 2, "python"], "torchrun": torchrun(2)}
    rows = []
    for name, command in launchers.items():
        for death, code in DEATHS.items():
            script = folder / f"{death.replace(' ', '_')}.py"
            script.write_text(SCRIPT.format(death=code, sleep_s=SLEEP_S))
            output = io.StringIO()
            status = "0"
            began_s = time.perf_counter()
            try:
                with contextlib.redirect_stdout(output):
                    scripts.run(*command, script)
            except RankError as error:
                status = re.findall(r"ended with exit code (-?\d+)", str(error))[-1]
            said = [re.sub(" *: *", " ", words).lower() for words in ENDED.findall(output.getvalue())]
            rows.append(
                {
                    "launcher": name,
                    "rank 1 …": death,
                    "job ends after s": f"{time.perf_counter() - began_s:.1f}",
                    "its exit code": status,
                    "it says": ", ".join(dict.fromkeys(said)),
                }
            )
    return pd.DataFrame(rows).set_index(["launcher", "rank 1 …"])
