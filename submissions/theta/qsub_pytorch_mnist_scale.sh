#!/bin/bash
#COBALT -n 128
#COBALT -t 1:00:00
#COBALT -q training
#COBALT -A comp_perf_workshop
#COBALT --attrs mcdram=cache:numa=quad
#COBALT -O pytorch_mnist_scale

# The documents' scaling job: several numbers of ranks at the same time, each on nodes of its own. 32 epochs with the
# learning rate 0.01 x ranks and no warm-up, which is the run of the figures. It learned nothing on 128 ranks.
# shellcheck source=submissions/common/job.sh
source submissions/common/job.sh theta || { echo "$PWD is not the checkout: submit there." >&2; exit 1; }

counts=${WORKSHOP_JOB_RANKS:-4:8:16:32:64:128:256}
runs=()
failed=""
for n in ${counts//:/ }; do
    launch "$n" "$PYTHON" -m workshop_lib train --backend horovod --epochs 32 --device cpu --network classic \
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
