#!/bin/bash -l
#PBS -N workshop-scale
#PBS -q debug-scaling
#PBS -l select=8
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:flare
#PBS -k doe
#PBS -j oe
# Time and accuracy against ranks, the published recipe: qsub -A PROJECT submissions/aurora/scale.sh
# It stands alone: copy it, and change the lines for another machine or another program.
set -eo pipefail
cd "${PBS_O_WORKDIR:?submit this with qsub}"
python=${WORKSHOP_PYTHON:-.venv/bin/python}
backend=${WORKSHOP_JOB_BACKENDS:-ddp}
out=build/aurora-${PBS_JOBID%%.*}
mkdir -p "$out"
if [ -z "${WORKSHOP_NO_MODULES:-}" ]; then
    module load frameworks
fi
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=8 OMP_WAIT_POLICY=PASSIVE

for n in ${WORKSHOP_JOB_RANKS:-12 24 48 96}; do
    # shellcheck disable=SC2086 # the options are several words
    mpiexec -n "$n" --ppn 12 \
        --cpu-bind list:1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100 \
        "$python" -m workshop_lib train --backend "$backend" --network classic --epochs 32 --device xpu \
        --optimizer sgd --momentum 0.5 --no-nesterov --lr 0.01 --lr-scaling linear --warmup-epochs 0 --decay none \
        --out "$out/scale.jsonl" ${WORKSHOP_JOB_OPTIONS:-}
done
"$python" -m workshop_lib plot "$out/scale.jsonl" --out-dir "$out"
