# shellcheck shell=bash
# What the jobs of every machine do. A job script sources this from the top folder of the checkout, with the
# name of its machine; ../README.md lists the settings.
#
# submissions/MACHINE/machine.sh says what differs there, in these variables and a function:
#   LOGIN            USER@HOST of the login node, for the tunnel to JupyterLab
#   NODES, JOB       how many nodes this job has, and its number; common/slurm.sh sets both
#   RANKS_PER_NODE   one per GPU where there are GPUs
#   THREADS          of each rank
#   DEVICE           what ranks train on: cuda, xpu, cpu or auto
#   PRESET           the machine of `workshop predict` with which preflight.sh compares this one
#   LAUNCH           the command that starts ranks, with their binding; `-n RANKS program` is added to it. Empty
#                    where the library finds the command itself
#   HOST_FILE        in place of LAUNCH where Open MPI's mpirun starts ranks: the file that names the job's nodes
#   BIND             how the library binds ranks if LAUNCH is empty: none or core
#   load_modules     what has to be loaded before

fail() {
    echo "submissions/$MACHINE: $1" >&2
    exit 1
}

hosts_in() { # VARIABLE: how many different hosts the node file that it names holds
    [ -n "${!1:-}" ] || fail "$1 is not set: submit this script, or run it inside an interactive job."
    [ -s "${!1}" ] || fail "$1 names ${!1}, which is missing or empty: run this on a node of the job."
    sort -u "${!1}" | wc -l
}

set_unless_given() { # NAME=VALUE ...: export each variable that the user has not set, also where a module has set it
    local setting
    for setting; do
        [[ $GIVEN == *" ${setting%%=*} "* ]] || export "${setting?}"
    done
}

launch() { # RANKS PROGRAM [ARGUMENT ...]
    local line
    if [ -n "$LAUNCH" ]; then
        read -ra line <<<"$LAUNCH -n $1"
    else
        mapfile -t line < <("$PYTHON" submissions/common/launch_line.py "$1" "$THREADS" "$BIND")
        [ "${#line[@]}" != 0 ] || return 1
    fi
    env "${line[@]}" "${@:2}"
}

workshop() {
    "$PYTHON" -m workshop_lib "$@"
}

powers_of_two() { # MOST: 1:2:4:... and MOST itself
    local n=1 counts=""
    while [ "$n" -lt "$1" ]; do
        counts+="$n:"
        n=$((2 * n))
    done
    echo "$counts$1"
}

# A minute's look at every node, GPU and link, before anything else.
preflight_nodes() {
    workshop preflight --ranks "$RANKS" --threads "$THREADS" --bind "$BIND" --device "$DEVICE" \
        ${PRESET:+--machine "$PRESET"} --out "$OUT/preflight.json" "${OPTIONS[@]}"
}

# One run with each backend, each as a job of its own launcher: a backend that fails does not stop the others.
train_every_backend() {
    local backend failed=""
    for backend in ${BACKENDS//:/ }; do
        echo "== $backend on $RANKS ranks, $NODES nodes: ${LAUNCH:-as the library starts them}"
        launch "$RANKS" "$PYTHON" -m workshop_lib train --backend "$backend" --epochs 8 --device "$DEVICE" \
            --out "$OUT/train.jsonl" "${OPTIONS[@]}" || failed+=" $backend"
    done
    [ -z "$failed" ] || fail "these backends failed:$failed; the output above says why."
    echo "records: $OUT/train.jsonl"
}

# Every backend on 1, 2, 4, ... ranks, and the figure. The ranks are started by the library, with LAUNCH.
sweep_and_draw() {
    local counts=${WORKSHOP_JOB_RANKS:-$(powers_of_two "$RANKS")}
    workshop sweep --ranks "${counts//:/,}" --backends "${BACKENDS//:/,}" --epochs 3 --repeats 2 \
        --threads "$THREADS" --bind "$BIND" --device "$DEVICE" --out "$OUT/sweep.jsonl" "${OPTIONS[@]}"
    workshop plot "$OUT/sweep.jsonl" --out-dir "$OUT"
}

# Ranks for notebooks elsewhere, until the job ends or `workshop engines stop`.
hold_engines() {
    workshop engines start --ranks "${WORKSHOP_JOB_RANKS:-$RANKS}" --threads "$THREADS" --bind "$BIND" \
        "${OPTIONS[@]}"
}

free_port() { # FIRST: the first port from here on at which no program on this node answers
    local port=$1
    while { : <>"/dev/tcp/localhost/$port" || : <>"/dev/tcp/$(hostname)/$port"; } 2>/dev/null; do
        port=$((port + 1))
    done
    echo "$port"
}

# JupyterLab on this node, for a browser at the other end of a tunnel through the login node.
open_lab() {
    local port root=() stream
    port=$(free_port "${WORKSHOP_JOB_PORT:-8888}")
    [ "$port" = "${WORKSHOP_JOB_PORT:-$port}" ] ||
        fail "port $WORKSHOP_JOB_PORT of $(hostname) is taken: set WORKSHOP_JOB_PORT to another one, or leave it out."
    # Whoever reads the token can use this Lab. It stands in Jupyter's own files and in the job's output.
    umask 077
    for stream in /proc/self/fd/{1,2}; do
        [ ! -f "$stream" ] || chmod go= "$stream"
    done
    [ "$(id -u)" != 0 ] || root=(--allow-root)
    export IPYTHONDIR=$PWD/build/ipython JUPYTER_CONFIG_DIR=$PWD/build/jupyter/config
    export JUPYTER_DATA_DIR=$PWD/build/jupyter/data JUPYTER_RUNTIME_DIR=$PWD/build/jupyter/runtime
    # What the workshop wants of JupyterLab, as `make lab` has it.
    export JUPYTER_CONFIG_PATH=$PWD/workshop_lib/notebook/jupyter JUPYTER_PATH=$PWD/workshop_lib/notebook/jupyter
    echo "On your own computer: ssh -L $port:$(hostname):$port $LOGIN, and open the address with the token below"
    echo "there, with localhost for the host. In a notebook: ranks.start($RANKS)."
    # On every network: a node's own name may stand for itself alone. Whoever connects needs the token. On another port
    # than the one above it must not start, since the tunnel would lead to somebody else's server.
    "$PYTHON" -m jupyterlab --no-browser "${root[@]}" --ip="*" --port="$port" --ServerApp.port_retries=0 "${OPTIONS[@]}"
}

GIVEN=" $(compgen -e | tr '\n' ' ')"
MACHINE=$1 LAUNCH="" HOST_FILE="" PRESET="" BIND="" BACKENDS=""
PYTHON=${WORKSHOP_PYTHON:-$PWD/.venv/bin/python}
# shellcheck source=submissions/polaris/machine.sh
source "submissions/$MACHINE/machine.sh" || fail "there is no machine.sh for it here."
if [ "${WORKSHOP_NO_MODULES:-}" = 1 ]; then
    THREADS=1 DEVICE=cpu BIND=none
else
    load_modules # may fail, and may use variables that are not set
fi
set -euo pipefail

# The scripts source this file before `||`, where `set -e` does nothing. So every failure here says itself what it is.
[ -x "$PYTHON" ] || fail "$PYTHON is missing: run make setup on a login node, as its README.md says."
read -ra OPTIONS <<<"${WORKSHOP_JOB_OPTIONS:-}"
RANKS=$((NODES * RANKS_PER_NODE))
OUT=build/$MACHINE-$JOB
mkdir -p "$OUT" || fail "$PWD/$OUT cannot be created: is there a quota, or does the checkout belong to somebody else?"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
# Threads that wait sleep, so that they take no core from another rank.
export OMP_NUM_THREADS=$THREADS OMP_WAIT_POLICY=PASSIVE
export WORKSHOP_RANKS_PER_NODE=$RANKS_PER_NODE WORKSHOP_PROFILE=${WORKSHOP_PROFILE:-cluster}
# On a cold file system, one rank may be minutes behind another.
export WORKSHOP_GLOO_TIMEOUT_S=${WORKSHOP_GLOO_TIMEOUT_S:-600}
BIND=${BIND:-none}
FOR_LIBRARY=""
[ -z "$HOST_FILE" ] || source submissions/common/open_mpi.sh
LAUNCH=${WORKSHOP_MPIEXEC:-$LAUNCH}
[ -z "$LAUNCH" ] || export WORKSHOP_MPIEXEC=${WORKSHOP_MPIEXEC:-$LAUNCH$FOR_LIBRARY}
BACKENDS=${WORKSHOP_JOB_BACKENDS:-$BACKENDS}
if [ -z "$BACKENDS" ]; then
    BACKENDS=$("$PYTHON" -c "from workshop_lib.training import backends; print(*backends.available(), sep=':')") ||
        fail "$PYTHON cannot import workshop_lib, as the lines above say: was it set up with the same modules?"
fi
[ -n "$BACKENDS" ] || fail "$PYTHON finds no backend that is installed: run make setup on a login node."
