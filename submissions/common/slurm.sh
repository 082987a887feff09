# shellcheck shell=bash disable=SC2034
# Slurm: the size of the job as sbatch or salloc was told.
[ -n "${SLURM_JOB_ID:-}" ] || fail "SLURM_JOB_ID is not set: submit this with sbatch, or run it inside salloc."
NODES=${SLURM_JOB_NUM_NODES:-1}
JOB=$SLURM_JOB_ID
