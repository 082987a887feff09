#!/bin/bash -l
#PBS -N workshop-lab
#PBS -q by-node
#PBS -l select=1
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:eagle
#PBS -k doe
#PBS -j oe
# JupyterLab on a node of the job: qsub -A PROJECT submissions/sophia/lab.sh; its output says how to reach it.
cd "${PBS_O_WORKDIR:-.}" || exit 1
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh sophia || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
open_lab
