# shellcheck shell=bash disable=SC2034
# Sophia: DGX A100 nodes, each 128 cores and 8 A100; PBS; Open MPI.
LOGIN=USER@sophia.alcf.anl.gov
NODES=$(hosts_in PBS_NODEFILE) || exit 1
JOB=${PBS_JOBID%%.*}
RANKS_PER_NODE=${WORKSHOP_RANKS_PER_NODE:-8}
THREADS=16
DEVICE=cuda
PRESET=thetagpu # the same nodes
HOST_FILE=$PBS_NODEFILE

load_modules() {
    module use /soft/modulefiles
    module load conda
    PATH=/usr/mpi/gcc/openmpi-4.1.5a1/bin:$PATH
    # Rank i gets cores 16i to 16i+15. In this order, its GPU is attached to these cores or to their neighbors.
    [ "$RANKS_PER_NODE" != 8 ] || set_unless_given CUDA_VISIBLE_DEVICES=3,2,1,0,7,6,5,4
}
