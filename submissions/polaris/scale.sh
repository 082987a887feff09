#!/bin/bash -l
#PBS -N workshop-scale
#PBS -q debug-scaling
#PBS -l select=8:system=polaris
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:eagle
#PBS -k doe
#PBS -j oe
# Time and accuracy against ranks, the published recipe: qsub -A PROJECT submissions/polaris/scale.sh
# This recipe multiplies the learning rate by the ranks, and has no warm-up. The published run learned nothing on 128 ranks
# (accuracy 10 %). Notebook 07 shows why, and which recipes do learn there.
# It stands alone: copy it, and change the lines for another machine or another program.
set -eo pipefail
cd "${PBS_O_WORKDIR:?submit this with qsub}"
python=${WORKSHOP_PYTHON:-.venv/bin/python}
backend=${WORKSHOP_JOB_BACKENDS:-ddp}
out=build/polaris-${PBS_JOBID%%.*}
mkdir -p "$out"
device=cuda threads=8 given=" $(compgen -e | tr '\n' ' ')"
if [ "${WORKSHOP_NO_MODULES:-}" = 1 ]; then
    device=cpu threads=1
else
    module use /soft/modulefiles
    module load conda
    export MPICH_GPU_SUPPORT_ENABLED=0 # MPI sends from the CPU's memory, NCCL from the GPU's
    if [ "${NCCL_NET:-}" != Socket ]; then # README.md says where these settings are from
        plugin=${WORKSHOP_NCCL_PLUGIN:-/soft/libraries/aws-ofi-nccl/v1.6.0-libfabric-1.22.0/lib}
        if [ ! -e "$plugin/libnccl-net.so" ]; then
            echo "$plugin has no libnccl-net.so, with which NCCL reaches Slingshot: see \"Trouble\" in README.md." >&2
            exit 1
        fi
        export LD_LIBRARY_PATH=$plugin:/soft/libraries/hwloc/lib:${LD_LIBRARY_PATH:-}
        for setting in NCCL_NET="AWS Libfabric" NCCL_CROSS_NIC=1 \
            FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd FI_CXI_DEFAULT_CQ_SIZE=131072 \
            FI_CXI_DEFAULT_TX_SIZE=2048 FI_CXI_RX_MATCH_MODE=hybrid FI_CXI_RDZV_PROTO=alt_read \
            FI_CXI_RDZV_EAGER_SIZE=0 FI_CXI_RDZV_THRESHOLD=0 FI_CXI_RDZV_GET_MIN=0; do
            [[ $given == *" ${setting%%=*} "* ]] || export "${setting?}" # whatever the module has set
        done
    fi
fi
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=$threads OMP_WAIT_POLICY=PASSIVE
export WORKSHOP_GLOO_TIMEOUT_S=${WORKSHOP_GLOO_TIMEOUT_S:-600} # on a cold file system, ranks start minutes apart

counts=${WORKSHOP_JOB_RANKS:-4:8:16:32} failed=""
for n in ${counts//:/ }; do
    # shellcheck disable=SC2086 # the launcher and the options are several words
    ${WORKSHOP_MPIEXEC:-mpiexec --ppn 4 --cpu-bind list:24-31:16-23:8-15:0-7} -n "$n" \
        "$python" -m workshop_lib train --backend "$backend" --network classic --epochs 32 --device "$device" \
        --optimizer sgd --momentum 0.5 --no-nesterov --lr 0.01 --lr-scaling linear --warmup-epochs 0 --decay none \
        --out "$out/scale.jsonl" ${WORKSHOP_JOB_OPTIONS:-} || failed+=" $n"
done
[ -z "$failed" ] || echo "These numbers of ranks failed:$failed; the output above says why." >&2
"$python" -m workshop_lib plot "$out/scale.jsonl" --out-dir "$out"
[ -z "$failed" ]
