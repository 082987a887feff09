# shellcheck shell=bash disable=SC2034
# Sophia: DGX A100 nodes, each 128 cores and 8 A100; PBS; Open MPI.
LOGIN=USER@sophia.alcf.anl.gov
NODES=$(hosts_in PBS_NODEFILE) || exit 1
JOB=${PBS_JOBID%%.*}
RANKS_PER_NODE=8
THREADS=16
DEVICE=cuda
source submissions/common/open_mpi.sh
# 16 cores a rank on any number of ranks: by itself Open MPI binds differently up to 2 ranks and above.
LAUNCH="mpirun --hostfile $PBS_NODEFILE --map-by ppr:8:node:PE=16 --bind-to core$FORWARD"

load_modules() {
    module use /soft/modulefiles
    module load conda
    PATH=/usr/mpi/gcc/openmpi-4.1.5a1/bin:$PATH
}
