#!/bin/bash -l
#PBS -N workshop-train
#PBS -q debug
#PBS -l select=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:flare
#PBS -k doe
#PBS -j oe
# One training run with each backend: qsub -A PROJECT submissions/aurora/train.sh
cd "${PBS_O_WORKDIR:-.}" || exit 1
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh aurora || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
train_every_backend
