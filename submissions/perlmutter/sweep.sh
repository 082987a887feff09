#!/bin/bash
#SBATCH --job-name=workshop-sweep
#SBATCH --constraint=gpu
#SBATCH --qos=regular
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
# Every backend on 1, 2, 4, ... ranks, and the figure: sbatch -A PROJECT submissions/perlmutter/sweep.sh
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh perlmutter || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
sweep_and_draw
