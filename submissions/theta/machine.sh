# shellcheck shell=bash disable=SC2034
# Theta, until the end of 2023: one Xeon Phi of 64 cores and 256 threads a node; Cobalt; aprun.
# The script runs on a service node, and aprun alone reaches the compute nodes.
[ -n "${COBALT_JOBSIZE:-}" ] || fail "COBALT_JOBSIZE is not set: submit this with qsub."
NODES=$COBALT_JOBSIZE
JOB=$COBALT_JOBID
RANKS_PER_NODE=4
THREADS=32
DEVICE=cpu
BACKENDS=horovod
# 4 ranks of 16 cores, two threads on each: 4 x 32 = 64 x 2.
LAUNCH="aprun -N 4 -d 32 -j 2 -cc depth -e OMP_NUM_THREADS=32 -e KMP_BLOCKTIME=0"

load_modules() {
    module load datascience/pytorch-1.7
    module load datascience/tensorflow-2.3
}
