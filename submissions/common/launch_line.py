"""Print, a word a line, how the library would start ranks in this job: RANKS THREADS BINDING.

Settings come first, as NAME=VALUE, so that `env` can run it.
"""

import sys

from workshop_lib.ranks.launch import allocation, launchers

ranks, threads, bind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
plan = launchers.plan(ranks, threads, bind, allocation.find(), own=("PYTHONPATH",))
print(*(f"{name}={value}" for name, value in plan.settings.items()), *plan.command, sep="\n")
