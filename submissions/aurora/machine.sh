# shellcheck shell=bash disable=SC2034
# Aurora: nodes of 104 cores and 6 GPUs of two tiles; PBS; mpiexec is HPE's PALS, which reads PBS_NODEFILE itself.
LOGIN=USER@aurora.alcf.anl.gov
NODES=$(hosts_in PBS_NODEFILE) || exit 1
JOB=${PBS_JOBID%%.*}
RANKS_PER_NODE=12
THREADS=8
DEVICE=xpu
PRESET=aurora
BACKENDS=mpi:ddp:fsdp # the backends that train on Intel's GPUs
# The cores of rank i are near tile i; cores 0 and 52 are the system's. A depth of 8 would put rank 6 on both sockets.
LAUNCH="mpiexec --ppn 12 --cpu-bind list:1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100"

load_modules() {
    module load frameworks
    # MPI sends from the CPU's memory, oneCCL from the GPU's. oneCCL's ranks find each other through PALS and MPI.
    set_unless_given MPIR_CVAR_ENABLE_GPU=0 CCL_PROCESS_LAUNCHER=pmix CCL_ATL_TRANSPORT=mpi CCL_KVS_MODE=mpi
}
