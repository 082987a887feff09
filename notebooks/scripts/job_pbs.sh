#!/bin/bash
#PBS -N mnist
#PBS -l walltime=00:10:00
#PBS -l select=2:ncpus=32:ngpus=2
#PBS -l place=scatter
#PBS -r y
cd "$PBS_O_WORKDIR" || exit 1
script=scripts/ddp_resume.py
checkpoint=../build/10_compute_nodes/mnist.pt
first=$(head -n 1 "$PBS_NODEFILE")
port=$((20000 + ${PBS_JOBID%%.*} % 10000))

mpiexec -n 2 --ppn 1 --depth 32 --cpu-bind depth \
    torchrun --nnodes=2 --nproc-per-node=2 \
    --rdzv-backend=c10d --rdzv-endpoint="$first:$port" --rdzv-id="$PBS_JOBID" \
    "$script" --out "$checkpoint" "$@"
