#!/bin/bash
#SBATCH --job-name=workshop-preflight
#SBATCH --constraint=gpu
#SBATCH --qos=debug
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=00:15:00
#SBATCH --output=%x-%j.out
# A minute's look at every node, GPU and link: sbatch -A PROJECT submissions/perlmutter/preflight.sh
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh perlmutter || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }
preflight_nodes
