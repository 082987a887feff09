#!/bin/bash
#COBALT -n 2
#COBALT -t 1:00:00
#COBALT -q full-node
#COBALT -A comp_perf_workshop
#COBALT --attrs filesystems=home,theta-fs0
#COBALT -O workshop_sweep

# Every backend on 1 to 16 GPUs, and the figure: qsub-gpu submissions/thetagpu/sweep.sh
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh thetagpu || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
sweep_and_draw
