#!/bin/bash
#SBATCH --job-name=workshop-train
#SBATCH --constraint=gpu
#SBATCH --qos=debug
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=00:30:00
#SBATCH --output=%x-%j.out
# One training run with each backend: sbatch -A PROJECT submissions/perlmutter/train.sh
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh perlmutter || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
train_every_backend
