#!/bin/bash -l
#PBS -N workshop-sweep
#PBS -q by-node
#PBS -l select=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:eagle
#PBS -k doe
#PBS -j oe
# Every backend on 1, 2, 4, ... ranks, and the figure: qsub -A PROJECT submissions/sophia/sweep.sh
cd "${PBS_O_WORKDIR:-.}" || exit 1
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh sophia || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
sweep_and_draw
