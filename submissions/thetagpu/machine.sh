# shellcheck shell=bash disable=SC2034
# ThetaGPU, until the end of 2023: DGX A100 nodes, each 128 cores and 8 A100; Cobalt; Open MPI.
NODES=$(hosts_in COBALT_NODEFILE) || exit 1
JOB=$COBALT_JOBID
RANKS_PER_NODE=8
THREADS=16
DEVICE=cuda
HOST_FILE=$COBALT_NODEFILE

load_modules() {
    # shellcheck source=/dev/null
    source /etc/profile.d/z00_lmod.sh
    module load conda
    conda activate
}
