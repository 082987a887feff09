#!/bin/bash
#SBATCH --job-name=workshop-lab
#SBATCH --constraint=gpu
#SBATCH --qos=regular
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
# JupyterLab on a node of the job: sbatch -A PROJECT submissions/perlmutter/lab.sh; its output says how to reach it.
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh perlmutter || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
open_lab
