#!/bin/bash -l
#PBS -N workshop-scale
#PBS -q by-node
#PBS -l select=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:eagle
#PBS -k doe
#PBS -j oe
# Time and accuracy against ranks, the published recipe: qsub -A PROJECT submissions/sophia/scale.sh
# It stands alone: copy it, and change the lines for another machine or another program.
set -eo pipefail
cd "${PBS_O_WORKDIR:?submit this with qsub}"
python=${WORKSHOP_PYTHON:-.venv/bin/python}
backend=${WORKSHOP_JOB_BACKENDS:-ddp}
out=build/sophia-${PBS_JOBID%%.*}
mkdir -p "$out"
if [ -z "${WORKSHOP_NO_MODULES:-}" ]; then
    module use /soft/modulefiles
    module load conda
    PATH=/usr/mpi/gcc/openmpi-4.1.5a1/bin:$PATH
fi
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=16 OMP_WAIT_POLICY=PASSIVE

for n in ${WORKSHOP_JOB_RANKS:-2 4 8 16}; do
    # shellcheck disable=SC2086 # the options are several words
    mpirun -n "$n" --hostfile "$PBS_NODEFILE" --map-by ppr:8:node:PE=16 --bind-to core \
        -x PATH -x LD_LIBRARY_PATH -x PYTHONPATH -x PYTHONUNBUFFERED -x OMP_NUM_THREADS -x OMP_WAIT_POLICY \
        "$python" -m workshop_lib train --backend "$backend" --network classic --epochs 32 --device cuda \
        --optimizer sgd --momentum 0.5 --no-nesterov --lr 0.01 --lr-scaling linear --warmup-epochs 0 --decay none \
        --out "$out/scale.jsonl" ${WORKSHOP_JOB_OPTIONS:-}
done
"$python" -m workshop_lib plot "$out/scale.jsonl" --out-dir "$out"
