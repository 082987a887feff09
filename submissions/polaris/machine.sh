# shellcheck shell=bash disable=SC2034
# Polaris: nodes of 32 cores and 4 A100; PBS; mpiexec is HPE's PALS, which reads PBS_NODEFILE itself.
LOGIN=USER@polaris.alcf.anl.gov
NODES=$(hosts_in PBS_NODEFILE) || exit 1
JOB=${PBS_JOBID%%.*}
RANKS_PER_NODE=4
THREADS=8
DEVICE=cuda
# Rank i of a node takes GPU i; the cores beside GPU 0 are 24 to 31, those beside GPU 3 are 0 to 7.
LAUNCH="mpiexec --ppn 4 --cpu-bind list:24-31:16-23:8-15:0-7"

load_modules() {
    module use /soft/modulefiles
    module load conda
    # NCCL reaches Slingshot by the plug-in for libfabric alone. With NCCL_NET set, a job that doesn't find the
    # plug-in ends with an error, instead of measuring TCP.
    export NCCL_NET="AWS Libfabric" NCCL_CROSS_NIC=1 NCCL_NET_GDR_LEVEL=PHB NCCL_COLLNET_ENABLE=1
    export LD_LIBRARY_PATH=/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib:/soft/libraries/hwloc/lib:${LD_LIBRARY_PATH:-}
    export FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd FI_CXI_DEFAULT_CQ_SIZE=131072
    export MPICH_GPU_SUPPORT_ENABLED=0  # MPI sends from the CPU's memory, NCCL from the GPU's
    export WORKSHOP_STAGE_DIR=${WORKSHOP_STAGE_DIR:-/local/scratch} # the data on the node's own disk
}
