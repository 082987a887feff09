#!/bin/bash
#SBATCH --job-name=workshop-preflight
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=00:15:00
#SBATCH --output=%x-%j.out
# A minute's look at every node, GPU and link: sbatch submissions/slurm/preflight.sh
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh slurm || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
preflight_nodes
