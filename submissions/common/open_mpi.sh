# shellcheck shell=bash
# Open MPI on the nodes of the file $1, from a machine.sh that has set RANKS_PER_NODE and THREADS.
# THREADS cores a rank on any number of ranks: by itself Open MPI binds differently up to 2 ranks and above.
LAUNCH="mpirun --hostfile $1 --map-by ppr:$RANKS_PER_NODE:node:PE=$THREADS --bind-to core"
# mpirun itself hands on nothing to ranks on other nodes. It would warn about names that stand for nothing.
for name in PYTHONPATH OMP_NUM_THREADS OMP_WAIT_POLICY IPYTHONDIR WORKSHOP_RANKS WORKSHOP_LAUNCHER WORKSHOP_CWD \
    $(<workshop_lib/ranks/passed_on.txt); do
    LAUNCH+=" -x $name"
done
