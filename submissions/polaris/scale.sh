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
# It stands alone: copy it, and change the lines for another machine or another program.
set -eo pipefail
cd "${PBS_O_WORKDIR:?submit this with qsub}"
python=${WORKSHOP_PYTHON:-.venv/bin/python}
backend=${WORKSHOP_JOB_BACKENDS:-ddp}
out=build/polaris-${PBS_JOBID%%.*}
mkdir -p "$out"
if [ -z "${WORKSHOP_NO_MODULES:-}" ]; then
    module use /soft/modulefiles
    module load conda
    export MPICH_GPU_SUPPORT_ENABLED=0 # MPI sends from the CPU's memory, NCCL from the GPU's
    # NCCL reaches Slingshot by the plug-in for libfabric alone. With NCCL_NET set, a job that doesn't find the
    # plug-in ends with an error, instead of measuring TCP.
    export NCCL_NET="AWS Libfabric" NCCL_CROSS_NIC=1 NCCL_NET_GDR_LEVEL=PHB NCCL_COLLNET_ENABLE=1
    export LD_LIBRARY_PATH=/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib:/soft/libraries/hwloc/lib:${LD_LIBRARY_PATH:-}
    export FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd FI_CXI_DEFAULT_CQ_SIZE=131072
fi
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OMP_NUM_THREADS=8 OMP_WAIT_POLICY=PASSIVE

for n in ${WORKSHOP_JOB_RANKS:-4 8 16 32}; do
    # shellcheck disable=SC2086 # the options are several words
    mpiexec -n "$n" --ppn 4 --cpu-bind list:24-31:16-23:8-15:0-7 \
        "$python" -m workshop_lib train --backend "$backend" --network classic --epochs 32 --device cuda \
        --optimizer sgd --momentum 0.5 --no-nesterov --lr 0.01 --lr-scaling linear --warmup-epochs 0 --decay none \
        --out "$out/scale.jsonl" ${WORKSHOP_JOB_OPTIONS:-}
done
"$python" -m workshop_lib plot "$out/scale.jsonl" --out-dir "$out"
