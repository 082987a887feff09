#!/bin/bash -l
#PBS -N workshop-sweep
#PBS -q debug-scaling
#PBS -l select=8:system=polaris
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:eagle
#PBS -k doe
#PBS -j oe
# Every backend on 1, 2, 4, ... ranks, and the figure: qsub -A PROJECT submissions/polaris/sweep.sh
cd "${PBS_O_WORKDIR:-.}" || exit 1
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh polaris || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
sweep_and_draw
