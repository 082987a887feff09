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
# This recipe multiplies the learning rate by the ranks, and has no warm-up. The published run learned nothing on 128 ranks
# (accuracy 10 %). Notebook 07 shows why, and which recipes do learn there.
# It stands alone: copy it, and change the lines for another machine or another program.
set -eo pipefail
cd "${PBS_O_WORKDIR:?submit this with qsub}"
python=${WORKSHOP_PYTHON:-.venv/bin/python}
backend=${WORKSHOP_JOB_BACKENDS:-ddp}
out=build/aurora-${PBS_JOBID%%.*}
mkdir -p "$out"
device=xpu threads=4 given=" $(compgen -e | tr '\n' ' ')"
if [ "${WORKSHOP_NO_MODULES:-}" = 1 ]; then
    device=cpu threads=1
else
    module load frameworks
    # MPI sends from the CPU's memory, oneCCL from the GPU's. oneCCL's ranks find each other through PALS and MPI.
    for setting in MPIR_CVAR_ENABLE_GPU=0 CCL_PROCESS_LAUNCHER=pmix CCL_ATL_TRANSPORT=mpi CCL_KVS_MODE=mpi \
        FI_MR_CACHE_MONITOR=userfaultfd; do
        [[ $given == *" ${setting%%=*} "* ]] || export "${setting?}" # whatever the module has set
    done
fi
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=$threads OMP_WAIT_POLICY=PASSIVE
export WORKSHOP_GLOO_TIMEOUT_S=${WORKSHOP_GLOO_TIMEOUT_S:-600} # on a cold file system, ranks start minutes apart
launch="mpiexec --ppn 12"
launch+=" --cpu-bind list:4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79"

counts=${WORKSHOP_JOB_RANKS:-12:24:48:96} failed=""
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
