#!/bin/bash
#SBATCH --job-name=workshop-scale
#SBATCH --constraint=gpu
#SBATCH --qos=regular
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
# Time and accuracy against ranks, the published recipe: sbatch -A PROJECT submissions/perlmutter/scale.sh
# It stands alone: copy it, and change the lines for another machine or another program.
set -eo pipefail
python=${WORKSHOP_PYTHON:-.venv/bin/python}
backend=${WORKSHOP_JOB_BACKENDS:-ddp}
out=build/perlmutter-${SLURM_JOB_ID:?submit this with sbatch}
mkdir -p "$out"
if [ -z "${WORKSHOP_NO_MODULES:-}" ]; then
    module load python nccl
    export MPICH_GPU_SUPPORT_ENABLED=0 # MPI sends from the CPU's memory, NCCL from the GPU's
    # NCCL reaches Slingshot by the plug-in for libfabric alone. With NCCL_NET set, a job that doesn't find the
    # plug-in ends with an error, instead of measuring TCP.
    export NCCL_NET="AWS Libfabric"
fi
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=16 OMP_WAIT_POLICY=PASSIVE

for n in ${WORKSHOP_JOB_RANKS:-4 8 16 32}; do
    # shellcheck disable=SC2086 # the options are several words
    srun --kill-on-bad-exit=1 -n "$n" --ntasks-per-node=4 --cpus-per-task=32 --cpu-bind=cores --gpus-per-node=4 \
        "$python" -m workshop_lib train --backend "$backend" --network classic --epochs 32 --device cuda \
        --optimizer sgd --momentum 0.5 --no-nesterov --lr 0.01 --lr-scaling linear --warmup-epochs 0 --decay none \
        --out "$out/scale.jsonl" ${WORKSHOP_JOB_OPTIONS:-}
done
"$python" -m workshop_lib plot "$out/scale.jsonl" --out-dir "$out"
