# shellcheck shell=bash disable=SC2034
# Theta, until the end of 2023: one Xeon Phi of 64 cores and 256 threads a node; Cobalt; aprun.
# The script runs on a service node, and aprun alone reaches the compute nodes.
[ -n "${COBALT_JOBSIZE:-}" ] || fail "COBALT_JOBSIZE is not set: submit this with qsub."
NODES=$COBALT_JOBSIZE
JOB=$COBALT_JOBID
RANKS_PER_NODE=4
THREADS=32
DEVICE=cpu
BACKENDS=horovod:horovod-tf
# 4 ranks of 16 cores, two threads on each: 4 x 32 = 64 x 2.
LAUNCH="aprun -N 4 -d 32 -j 2 -cc depth -e OMP_NUM_THREADS=32 -e KMP_BLOCKTIME=0"

load_modules() {
    module load datascience/pytorch-1.7
    module load datascience/tensorflow-2.3
}

# One backend on several numbers of ranks at the same time, each on nodes of its own: 32 epochs with the
# learning rate 0.01 x ranks and no warm-up, which is the run of the figures.
scale_by_nodes() { # BACKEND
    local n nodes=0 counts=${WORKSHOP_JOB_RANKS:-4:8:16:32:64:128:256} runs=() failed=""
    for n in ${counts//:/ }; do
        nodes=$((nodes + (n + RANKS_PER_NODE - 1) / RANKS_PER_NODE))
    done
    [ "$nodes" -le "$NODES" ] || fail "ranks $counts need $nodes nodes at the same time, and the job has $NODES."
    for n in ${counts//:/ }; do
        launch "$n" "$PYTHON" -m workshop_lib train --backend "$1" --epochs 32 --device cpu --network classic \
            --optimizer sgd --momentum 0.5 --no-nesterov --lr 0.01 --lr-scaling linear --warmup-epochs 0 \
            --decay none --out "$OUT/scale.$n.jsonl" "${OPTIONS[@]}" >"$OUT/scale.$n.log" 2>&1 &
        runs+=($!)
    done
    for n in ${counts//:/ }; do
        wait "${runs[0]}" || failed+=" $n"
        runs=("${runs[@]:1}")
    done
    [ -z "$failed" ] || fail "these numbers of ranks failed:$failed; $OUT/scale.*.log say why."
    workshop plot "$OUT"/scale.*.jsonl --out-dir "$OUT"
}
