# shellcheck shell=bash disable=SC2034
# Perlmutter's GPU nodes: 64 cores of two threads each and 4 A100; Slurm.
LOGIN=USER@perlmutter.nersc.gov
source submissions/common/slurm.sh
RANKS_PER_NODE=${SLURM_NTASKS_PER_NODE:-4}
THREADS=16
DEVICE=cuda
# 32 hardware threads are 16 cores, a quarter of the node. Beside another step, such as a prompt: --overlap.
LAUNCH="srun --overlap --kill-on-bad-exit=1 --ntasks-per-node=$RANKS_PER_NODE"
LAUNCH+=" --cpus-per-task=32 --cpu-bind=cores --gpus-per-node=4"
# An environment that brought its own Open MPI: srun cannot start it, and the library knows how to.
[ ! -x "$(dirname "$PYTHON")/mpiexec" ] || LAUNCH=""

load_modules() {
    module load python nccl
    # NCCL reaches Slingshot by the plug-in for libfabric alone. With NCCL_NET set, a job that doesn't find the
    # plug-in ends with an error, instead of measuring TCP.
    export NCCL_NET="AWS Libfabric"
    export MPICH_GPU_SUPPORT_ENABLED=0 # MPI sends from the CPU's memory, NCCL from the GPU's
}
