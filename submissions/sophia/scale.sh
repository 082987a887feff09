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
# This recipe multiplies the learning rate by the ranks, and has no warm-up. The published run learned nothing on 128 ranks
# (accuracy 10 %). Notebook 07 shows why, and which recipes do learn there.
# It stands alone: copy it, and change the lines for another machine or another program.
set -eo pipefail
cd "${PBS_O_WORKDIR:?submit this with qsub}"
python=${WORKSHOP_PYTHON:-.venv/bin/python}
backend=${WORKSHOP_JOB_BACKENDS:-ddp}
out=build/sophia-${PBS_JOBID%%.*}
mkdir -p "$out"
device=cuda threads=16
if [ "${WORKSHOP_NO_MODULES:-}" = 1 ]; then
    device=cpu threads=1
else
    module use /soft/modulefiles
    module load conda
    PATH=/usr/mpi/gcc/openmpi-4.1.5a1/bin:$PATH
    # Rank i gets cores 16i to 16i+15. In this order, its GPU is attached to these cores or to their neighbors.
    export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-3,2,1,0,7,6,5,4}
fi
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=$threads OMP_WAIT_POLICY=PASSIVE
export WORKSHOP_GLOO_TIMEOUT_S=${WORKSHOP_GLOO_TIMEOUT_S:-600} # on a cold file system, ranks start minutes apart
launch="mpirun --hostfile $PBS_NODEFILE --map-by ppr:8:node:PE=16 --bind-to core"
# Ranks on other nodes get only the variables that are named here.
for name in $(compgen -e); do
    case $name in
        PATH | LD_LIBRARY_PATH | CUDA_VISIBLE_DEVICES | PYTHON* | OMP_* | TMPDIR | WORKSHOP_* | FI_* | GLOO_* | \
            NCCL_* | TORCH_* | UCX_*)
            launch+=" -x $name"
            ;;
    esac
done

counts=${WORKSHOP_JOB_RANKS:-2:4:8:16} failed=""
for n in ${counts//:/ }; do
    # shellcheck disable=SC2086 # the launcher and the options are several words
    ${WORKSHOP_MPIEXEC:-$launch} -n "$n" \
        "$python" -m workshop_lib train --backend "$backend" --network classic --epochs 32 --device "$device" \
        --optimizer sgd --momentum 0.5 --no-nesterov --lr 0.01 --lr-scaling linear --warmup-epochs 0 --decay none \
        --out "$out/scale.jsonl" ${WORKSHOP_JOB_OPTIONS:-} || failed+=" $n"
done
[ -z "$failed" ] || echo "These numbers of ranks failed:$failed; the output above says why." >&2
"$python" -m workshop_lib plot "$out/scale.jsonl" --out-dir "$out"
[ -z "$failed" ]
