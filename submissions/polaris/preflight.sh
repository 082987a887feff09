#!/bin/bash -l
#PBS -N workshop-preflight
#PBS -q debug
#PBS -l select=2:system=polaris
#PBS -l place=scatter
#PBS -l walltime=00:15:00
#PBS -l filesystems=home:eagle
#PBS -k doe
#PBS -j oe
# A minute's look at every node, GPU and link: qsub -A PROJECT submissions/polaris/preflight.sh
cd "${PBS_O_WORKDIR:-.}" || exit 1
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh polaris || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
preflight_nodes
