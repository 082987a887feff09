#!/bin/bash
#COBALT -n 1
#COBALT -t 1:00:00
#COBALT -q full-node
#COBALT -A comp_perf_workshop
#COBALT --attrs filesystems=home,theta-fs0
#COBALT -O workshop_engines

# Ranks for notebooks to attach to, for an hour: qsub-gpu submissions/thetagpu/engines.sh
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh thetagpu || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
hold_engines
