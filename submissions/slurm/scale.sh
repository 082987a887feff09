#!/bin/bash
#SBATCH --job-name=workshop-scale
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
# Time and accuracy against ranks, the published recipe: sbatch submissions/slurm/scale.sh
# This recipe multiplies the learning rate by the ranks, and has no warm-up. The published run learned nothing on 128 ranks
# (accuracy 10 %). Notebook 07 shows why, and which recipes do learn there.
# It stands alone: copy it, and change the lines for another machine or another program.
set -eo pipefail
python=${WORKSHOP_PYTHON:-.venv/bin/python}
backend=${WORKSHOP_JOB_BACKENDS:-ddp}
out=build/slurm-${SLURM_JOB_ID:?submit this with sbatch}
mkdir -p "$out"
device=auto threads=${SLURM_CPUS_PER_TASK:-1}
if [ "${WORKSHOP_NO_MODULES:-}" = 1 ]; then
    device=cpu threads=1
else
    for name in ${WORKSHOP_MODULES:-}; do module load "$name"; done
fi
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=$threads OMP_WAIT_POLICY=PASSIVE
export WORKSHOP_GLOO_TIMEOUT_S=${WORKSHOP_GLOO_TIMEOUT_S:-600} # on a cold file system, ranks start minutes apart
per_node=${SLURM_NTASKS_PER_NODE:-1}
launch="srun --overlap --export=ALL --kill-on-bad-exit=1 --ntasks-per-node=$per_node --cpus-per-task=$threads"

counts=${WORKSHOP_JOB_RANKS:-2:4:8} failed=""
for n in ${counts//:/ }; do
    # Left alone, srun spreads few ranks over all nodes of the job.
    nodes=$(((n + per_node - 1) / per_node))
    # shellcheck disable=SC2086 # the launcher and the options are several words
    ${WORKSHOP_MPIEXEC:-$launch --nodes=$nodes} -n "$n" \
        "$python" -m workshop_lib train --backend "$backend" --network classic --epochs 32 --device "$device" \
        --optimizer sgd --momentum 0.5 --no-nesterov --lr 0.01 --lr-scaling linear --warmup-epochs 0 --decay none \
        --out "$out/scale.jsonl" ${WORKSHOP_JOB_OPTIONS:-} || failed+=" $n"
done
[ -z "$failed" ] || echo "These numbers of ranks failed:$failed; the output above says why." >&2
"$python" -m workshop_lib plot "$out/scale.jsonl" --out-dir "$out"
[ -z "$failed" ]
