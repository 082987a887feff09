#!/bin/bash
#COBALT -n 4
#COBALT -t 1:00:00
#COBALT -q training
#COBALT -A comp_perf_workshop
#COBALT --attrs mcdram=cache:numa=quad
#COBALT -O workshop_train

# The documents' first run, 16 ranks on 4 nodes: qsub submissions/theta/train.sh
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh theta || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
train_every_backend
