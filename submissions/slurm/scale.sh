#!/bin/bash
#SBATCH --job-name=workshop-scale
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
# Time and accuracy against ranks, the published recipe: sbatch submissions/slurm/scale.sh
# It stands alone: copy it, and change the lines for another machine or another program.
set -eo pipefail
python=${WORKSHOP_PYTHON:-.venv/bin/python}
backend=${WORKSHOP_JOB_BACKENDS:-ddp}
out=build/slurm-${SLURM_JOB_ID:?submit this with sbatch}
mkdir -p "$out"
if [ -z "${WORKSHOP_NO_MODULES:-}" ]; then
    for name in ${WORKSHOP_MODULES:-}; do module load "$name"; done
fi
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1} OMP_WAIT_POLICY=PASSIVE

for n in ${WORKSHOP_JOB_RANKS:-2 4 8}; do
    # shellcheck disable=SC2086 # the options are several words
    srun --kill-on-bad-exit=1 -n "$n" --ntasks-per-node="${SLURM_NTASKS_PER_NODE:-1}" \
        --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
        "$python" -m workshop_lib train --backend "$backend" --network classic --epochs 32 --device auto \
        --optimizer sgd --momentum 0.5 --no-nesterov --lr 0.01 --lr-scaling linear --warmup-epochs 0 --decay none \
        --out "$out/scale.jsonl" ${WORKSHOP_JOB_OPTIONS:-}
done
"$python" -m workshop_lib plot "$out/scale.jsonl" --out-dir "$out"
