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
# This recipe multiplies the learning rate by the ranks, and has no warm-up. The published run learned nothing on 128 ranks
# (accuracy 10 %). Notebook 07 shows why, and which recipes do learn there.
# It stands alone: copy it, and change the lines for another machine or another program.
set -eo pipefail
python=${WORKSHOP_PYTHON:-.venv/bin/python}
backend=${WORKSHOP_JOB_BACKENDS:-ddp}
out=build/perlmutter-${SLURM_JOB_ID:?submit this with sbatch}
mkdir -p "$out"
device=cuda threads=16
net=${NCCL_NET:-AWS Libfabric} # NCCL stops without its plug-in for Slingshot, instead of measuring TCP
if [ "${WORKSHOP_NO_MODULES:-}" = 1 ]; then
    device=cpu threads=1
else
    module load python "${WORKSHOP_NCCL_MODULE:-nccl/2.29.2-cu13}"
    export MPICH_GPU_SUPPORT_ENABLED=0 # MPI sends from the CPU's memory, NCCL from the GPU's
fi
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=$threads OMP_WAIT_POLICY=PASSIVE
export WORKSHOP_GLOO_TIMEOUT_S=${WORKSHOP_GLOO_TIMEOUT_S:-600} # on a cold file system, ranks start minutes apart
# The GPUs are in inverse order of the quarters of the node's cores.
launch="srun --overlap --export=ALL --kill-on-bad-exit=1 --ntasks-per-node=4 --cpus-per-task=32 \
    --cpu-bind=map_ldom:3,2,1,0 --gpus-per-node=4"

counts=${WORKSHOP_JOB_RANKS:-4:8:16:32} failed=""
for n in ${counts//:/ }; do
    # Left alone, srun spreads few ranks over all nodes of the job.
    nodes=$(((n + 3) / 4))
    unset NCCL_NET # a step on one node has no access to Slingshot, and needs none
    [ "$nodes" = 1 ] || export NCCL_NET=$net
    # shellcheck disable=SC2086 # the launcher and the options are several words
    ${WORKSHOP_MPIEXEC:-$launch --nodes=$nodes} -n "$n" \
        "$python" -m workshop_lib train --backend "$backend" --network classic --epochs 32 --device "$device" \
        --optimizer sgd --momentum 0.5 --no-nesterov --lr 0.01 --lr-scaling linear --warmup-epochs 0 --decay none \
        --out "$out/scale.jsonl" ${WORKSHOP_JOB_OPTIONS:-} || failed+=" $n"
done
[ -z "$failed" ] || echo "These numbers of ranks failed:$failed; the output above says why." >&2
"$python" -m workshop_lib plot "$out/scale.jsonl" --out-dir "$out"
[ -z "$failed" ]
