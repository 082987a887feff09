#!/bin/bash
#COBALT -n 1
#COBALT -t 1:00:00
#COBALT -q full-node
#COBALT -A comp_perf_workshop
#COBALT --attrs filesystems=home,theta-fs0
#COBALT -O workshop_lab

# JupyterLab on a node of the job: qsub-gpu submissions/thetagpu/lab.sh; its output says how to reach it.
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh thetagpu || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
open_lab
