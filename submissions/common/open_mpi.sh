# shellcheck shell=bash
# Open MPI on the nodes of the file $1, from a machine.sh that has set RANKS_PER_NODE and THREADS.
# THREADS cores a rank on any number of ranks: by itself Open MPI binds differently up to 2 ranks and above.
LAUNCH="mpirun --hostfile $1 --map-by ppr:$RANKS_PER_NODE:node:PE=$THREADS --bind-to core"
# What ranks on other nodes must be given of the environment, since mpirun hands on nothing by itself.
for name in PATH LD_LIBRARY_PATH PYTHONPATH PYTHONUNBUFFERED OMP_NUM_THREADS OMP_WAIT_POLICY IPYTHONDIR \
    WORKSHOP_RANKS WORKSHOP_LAUNCHER WORKSHOP_CWD WORKSHOP_PROFILE; do
    LAUNCH+=" -x $name"
done
