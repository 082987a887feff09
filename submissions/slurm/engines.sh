#!/bin/bash
#SBATCH --job-name=workshop-engines
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
# Ranks for notebooks to attach to, for an hour: sbatch submissions/slurm/engines.sh
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh slurm || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
hold_engines
