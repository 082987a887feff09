# shellcheck shell=bash disable=SC2034
# Aurora: nodes of 104 cores and 6 GPUs of two tiles; PBS; mpiexec is HPE's PALS, which reads PBS_NODEFILE itself.
LOGIN=USER@aurora.alcf.anl.gov
NODES=$(hosts_in PBS_NODEFILE) || exit 1
JOB=${PBS_JOBID%%.*}
RANKS_PER_NODE=12
THREADS=4
DEVICE=xpu
PRESET=aurora
BACKENDS=mpi:ddp:fsdp # the backends that train on Intel's GPUs
# The cores of rank i are near tile i. ALCF recommends these, because oneCCL's workers and the system take others.
LAUNCH="mpiexec --ppn 12 --cpu-bind list:4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79"

load_modules() {
    module load frameworks
    # MPI sends from the CPU's memory, oneCCL from the GPU's. oneCCL's ranks find each other through PALS and MPI.
    set_unless_given MPIR_CVAR_ENABLE_GPU=0 CCL_PROCESS_LAUNCHER=pmix CCL_ATL_TRANSPORT=mpi CCL_KVS_MODE=mpi \
        FI_MR_CACHE_MONITOR=userfaultfd
}
