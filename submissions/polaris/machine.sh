# shellcheck shell=bash disable=SC2034
# Polaris: nodes of 32 cores and 4 A100; PBS; mpiexec is HPE's PALS, which reads PBS_NODEFILE itself.
LOGIN=USER@polaris.alcf.anl.gov
NODES=$(hosts_in PBS_NODEFILE) || exit 1
JOB=${PBS_JOBID%%.*}
RANKS_PER_NODE=4
THREADS=8
DEVICE=cuda
PRESET=polaris
# Rank i of a node takes GPU i. The cores nearest to GPU 0 are 24 to 31, those nearest to GPU 3 are 0 to 7.
# One user's notes (README.md, NCCL) say 37 GB/s between nodes with --cpu-bind, and 4 without: by default, the ranks aren't
# spread over the NUMA domains.
LAUNCH="mpiexec --ppn 4 --cpu-bind list:24-31:16-23:8-15:0-7"

load_modules() {
    module use /soft/modulefiles
    module load conda
    export MPICH_GPU_SUPPORT_ENABLED=0 # MPI sends from the CPU's memory, NCCL from the GPU's
    [ "$NODES" = 1 ] || [ "${NCCL_NET:-}" = Socket ] || use_slingshot
}

use_slingshot() { # README.md says where these settings are from
    local plugin=${WORKSHOP_NCCL_PLUGIN:-/soft/libraries/aws-ofi-nccl/v1.6.0-libfabric-1.22.0/lib}
    [ -e "$plugin/libnccl-net.so" ] ||
        fail "$plugin has no libnccl-net.so, with which NCCL reaches Slingshot: see \"Trouble\" in README.md."
    export LD_LIBRARY_PATH=$plugin:/soft/libraries/hwloc/lib:${LD_LIBRARY_PATH:-}
    set_unless_given NCCL_NET="AWS Libfabric" NCCL_CROSS_NIC=1 \
        FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd FI_CXI_DEFAULT_CQ_SIZE=131072 \
        FI_CXI_DEFAULT_TX_SIZE=2048 FI_CXI_RX_MATCH_MODE=hybrid FI_CXI_RDZV_PROTO=alt_read \
        FI_CXI_RDZV_EAGER_SIZE=0 FI_CXI_RDZV_THRESHOLD=0 FI_CXI_RDZV_GET_MIN=0
}
