#!/bin/bash
#COBALT -n 128
#COBALT -t 1:00:00
#COBALT -q training
#COBALT -A comp_perf_workshop
#COBALT --attrs mcdram=cache:numa=quad
#COBALT -O pytorch_mnist_scale

# The documents' scaling job: qsub submissions/theta/qsub_pytorch_mnist_scale.sh
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh theta || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
scale_by_nodes horovod
