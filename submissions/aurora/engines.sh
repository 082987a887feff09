#!/bin/bash -l
#PBS -N workshop-engines
#PBS -q debug
#PBS -l select=1
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:flare
#PBS -k doe
#PBS -j oe
# Ranks for notebooks to attach to, for an hour: qsub -A PROJECT submissions/aurora/engines.sh
cd "${PBS_O_WORKDIR:-.}" || exit 1
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh aurora || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
hold_engines
