# shellcheck shell=bash disable=SC2034
# Slurm: the size of the job as sbatch or salloc was told, and which launcher.
[ -n "${SLURM_JOB_ID:-}" ] || fail "SLURM_JOB_ID is not set: submit this with sbatch, or run it inside salloc."
NODES=${SLURM_JOB_NUM_NODES:-1}
JOB=$SLURM_JOB_ID

# mpiexec, where the environment brought its own Open MPI, which srun cannot start; else srun with $1.
slurm_launcher() {
    local own
    own=$(dirname "$PYTHON")/mpiexec
    if [ ! -x "$own" ]; then
        echo "srun $1"
        return
    fi
    echo "$own"
}

# The settings of that Open MPI: where ranks are bound, and whether root may start them.
open_mpi_settings() { # THREADS BIND
    [ -x "$(dirname "$PYTHON")/mpiexec" ] || return 0
    local line
    while read -r line; do
        export "${line?}"
    done < <(PYTHONPATH=$PWD "$PYTHON" -c "
import sys
from workshop_lib.ranks import mpi
for name, value in mpi.environment(int(sys.argv[1]), sys.argv[2]).items():
    print(f'{name}={value}')" "$1" "$2")
}
