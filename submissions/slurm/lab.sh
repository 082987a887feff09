#!/bin/bash
#SBATCH --job-name=workshop-lab
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
# JupyterLab on a node of the job: sbatch submissions/slurm/lab.sh; its output says how to reach it.
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh slurm || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
open_lab
