#!/bin/bash
#SBATCH --job-name=mnist
#SBATCH --time=00:10:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=32
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
# Put your own paths here. All nodes must be able to read them.
script=scripts/ddp_resume.py
checkpoint=../build/10_compute_nodes/mnist.pt
traces=../build/10_compute_nodes/trace
export TORCH_FR_DUMP_TEMP_FILE="${traces}_${SLURM_JOB_ID}_${SLURM_RESTART_COUNT:-0}_"
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))

# Two minutes before its time is up, the job goes back into the queue.
# Slurm ends the ranks then, and the script saves.
trap 'scontrol requeue "$SLURM_JOB_ID"; wait' USR1
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --export=ALL --kill-on-bad-exit=1 \
    torchrun --nnodes="$SLURM_JOB_NUM_NODES" \
    --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" \
    --rdzv-backend=c10d --rdzv-endpoint="$first:$port" --rdzv-id="$SLURM_JOB_ID" \
    "$script" --out "$checkpoint" "$@" &
wait $!
