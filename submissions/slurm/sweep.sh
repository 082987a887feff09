#!/bin/bash
#SBATCH --job-name=workshop-sweep
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
# Every backend on 1, 2, 4, ... ranks, and the figure: sbatch submissions/slurm/sweep.sh
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh slurm || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
sweep_and_draw
