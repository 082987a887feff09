# shellcheck shell=bash disable=SC2034
# Open MPI's command, for a machine.sh that has set HOST_FILE, RANKS_PER_NODE and THREADS.
# Left alone, Open MPI binds up to two ranks to one core each and larger jobs to more, which bends a scaling curve.
LAUNCH="mpirun --hostfile $HOST_FILE --map-by ppr:$RANKS_PER_NODE:node:PE=$THREADS --bind-to core"
# Ranks on other nodes get only the variables that are named here. A name that stands for nothing is a warning.
mapfile -t PASSED_ON <workshop_lib/ranks/launch/passed_on.txt
for name in $(compgen -e); do
    for pattern in "${PASSED_ON[@]}" PYTHONPATH OMP_NUM_THREADS OMP_WAIT_POLICY CUDA_VISIBLE_DEVICES; do
        # shellcheck disable=SC2053 # it is a pattern
        [[ $name != $pattern ]] || LAUNCH+=" -x $name"
    done
done
# The library sets these when it starts ranks itself.
FOR_LIBRARY=" -x IPYTHONDIR -x WORKSHOP_RANKS -x WORKSHOP_LAUNCHER -x WORKSHOP_CWD"
