#!/bin/bash
#SBATCH --job-name=workshop-train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
# One training run with each backend: sbatch submissions/slurm/train.sh
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh slurm || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
train_every_backend
