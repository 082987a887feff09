# shellcheck shell=bash disable=SC2034
# Any cluster with Slurm: sizes are what sbatch was told.
LOGIN=USER@LOGIN_NODE
source submissions/common/slurm.sh
RANKS_PER_NODE=${SLURM_NTASKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}
THREADS=${SLURM_CPUS_PER_TASK:-1}
DEVICE=auto # a GPU for each rank, where there are as many
BIND=core

load_modules() {
    local name
    for name in ${WORKSHOP_MODULES:-}; do
        module load "$name"
    done
}
