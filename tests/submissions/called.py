"""What a machine's program is on the stand-in: `python called.py LOG NAME WORD...` writes down its call.

With STAND_IN_RANKS set, a launcher also starts the ranks, with this machine's own mpiexec, but at most that many. With
STAND_IN_FAILS_ON set, it fails on this number of ranks.
"""

import json
import os
import subprocess
import sys

log, name, *words = sys.argv[1:]
with open(log, "a") as file:
    file.write(json.dumps([name, words, dict(os.environ)]) + "\n")
if "-n" in words:
    at = words.index("-n")  # the number of ranks stands last, before the program
    if words[at + 1] == os.environ.get("STAND_IN_FAILS_ON"):
        sys.exit(1)
    if "STAND_IN_RANKS" in os.environ:
        command, settings = json.loads(os.environ["STAND_IN_START"])
        ranks = min(int(words[at + 1]), int(os.environ["STAND_IN_RANKS"]))
        foreign = ("PBS_", "COBALT_", "SLURM_")  # the real mpiexec would look for the scheduler
        own = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        sys.exit(subprocess.run([*command, "-n", str(ranks), *words[at + 2 :]], env=own | settings).returncode)
