"""Run the same training as jobs with different bindings and threads, for the speed-ups of 08b_where_the_time_goes."""

import sys
from typing import NamedTuple

import pandas as pd

from workshop_lib.machine.cores import usable_threads
from workshop_lib.machine.load import Meter
from workshop_lib.notebook.results import curves, records
from workshop_lib.paths import BUILD
from workshop_lib.ranks.launch import scripts, which_mpi

SAMPLES = 3000
FILE = BUILD / "08b_binding.jsonl"


class PlacedJob(NamedTuple):
    """How one job is launched. `bound`: each rank may use a single core only. `threads` are per rank."""

    ranks: int
    bound: bool
    threads: int

    def command(self, samples: int) -> list[str]:
        """The command that starts the job and appends a record to FILE."""
        words = ["env"]
        if self.bound:
            # The workshop's mapping policy allows oversubscription, and then Open MPI doesn't bind.
            words += ["-u", "PRTE_MCA_rmaps_default_mapping_policy", "PRTE_MCA_hwloc_default_binding_policy=core"]
        words.append(f"OMP_NUM_THREADS={self.threads}")
        if self.threads > 1:
            words.append("OMP_WAIT_POLICY=ACTIVE")
        words += [*which_mpi.mpiexec(), "-n", str(self.ranks), sys.executable, "-m", "workshop_lib", "train"]
        return [*words, "--backend", "mpi", "--epochs", "2", "--train-samples", str(samples), "--out", str(FILE)]


def measure(jobs: list[PlacedJob], repeats: int, samples: int | None, timeout_s: float) -> pd.DataFrame:
    """The samples per second of each job: median, slowest and fastest of its repeats.

    The jobs run one after the other, all of them before the next repeat begins. `cores` is each rank's number of cores:
    one if its record says that it was bound, and a share of all cores if not. Raises RankError if a job fails or takes
    longer than timeout_s.
    """
    FILE.unlink(missing_ok=True)
    others = Meter()
    rows = []
    for _ in range(repeats):
        for job in jobs:
            command = job.command(min(SAMPLES, samples or SAMPLES))
            scripts.run(*command, timeout_s=timeout_s, only="in the last epoch")
            record = records.read(FILE)[-1]
            was_bound = job.bound and record["what"]["binding"] != "none"
            cores = 1 if was_bound else usable_threads() // job.ranks
            rows.append({**job._asdict(), "cores": cores, "samples_per_s": curves.samples_per_s(record)})
    others.report(2)
    groups = pd.DataFrame(rows).groupby(["ranks", "bound", "threads", "cores"])["samples_per_s"]
    table = groups.agg(samples_per_s="median", slowest="min", fastest="max")
    return table.round().astype(int).reset_index()
