# shellcheck shell=bash
# Open MPI: what ranks on other nodes must be given of the environment, since mpirun hands on nothing by itself.
FORWARD=""
for name in PATH LD_LIBRARY_PATH PYTHONPATH PYTHONUNBUFFERED OMP_NUM_THREADS OMP_WAIT_POLICY IPYTHONDIR \
    WORKSHOP_RANKS WORKSHOP_LAUNCHER WORKSHOP_CWD WORKSHOP_PROFILE; do
    FORWARD+=" -x $name"
done
