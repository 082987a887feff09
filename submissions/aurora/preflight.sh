#!/bin/bash -l
#PBS -N workshop-preflight
#PBS -q debug
#PBS -l select=2
#PBS -l place=scatter
#PBS -l walltime=00:15:00
#PBS -l filesystems=home:flare
#PBS -k doe
#PBS -j oe
# A minute's look at every node, GPU and link: qsub -A PROJECT submissions/aurora/preflight.sh
cd "${PBS_O_WORKDIR:-.}" || exit 1
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh aurora || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
preflight_nodes
