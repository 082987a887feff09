# shellcheck shell=bash disable=SC2034
# Perlmutter's GPU nodes: 64 cores of two threads each and 4 A100; Slurm.
LOGIN=USER@perlmutter.nersc.gov
source submissions/common/slurm.sh
RANKS_PER_NODE=${SLURM_NTASKS_PER_NODE:-4}
THREADS=16
DEVICE=cuda
LAUNCH="bash $PWD/submissions/perlmutter/srun.sh"
# srun cannot start the ranks of an Open MPI that the set-up installed. The library knows what can.
if [ -x "$(dirname "$PYTHON")/mpiexec" ]; then
    LAUNCH="" BIND=core
fi

load_modules() {
    local given=${NCCL_NET:-}
    module load python "${WORKSHOP_NCCL_MODULE:-nccl/2.29.2-cu13}"
    export MPICH_GPU_SUPPORT_ENABLED=0 # MPI sends from the CPU's memory, NCCL from the GPU's
    unset NCCL_NET # srun.sh sets it where ranks are on several nodes
    [ -z "$given" ] || export NCCL_NET=$given
}
