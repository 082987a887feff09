#!/bin/bash
#COBALT -n 4
#COBALT -t 1:00:00
#COBALT -q training
#COBALT -A comp_perf_workshop
#COBALT --attrs mcdram=cache:numa=quad
#COBALT -O workshop_engines

# Ranks for notebooks to attach to, for an hour: qsub submissions/theta/engines.sh
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh theta || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
hold_engines
