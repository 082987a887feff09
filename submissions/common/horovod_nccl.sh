#!/bin/bash
# Horovod with NCCL in .venv, for nodes with NVIDIA GPUs, so that notebooks 03 and 04 train on them. Run it where the
# machine's page says, with its modules and CUDA's loaded: bash submissions/common/horovod_nccl.sh [MPICC=cc PYTHON=...]
set -euo pipefail
for program in nvcc make; do
    command -v "$program" >/dev/null || { echo "$program is not on PATH: load the module that has it." >&2; exit 1; }
done
# PyTorch brings its NCCL along, and Horovod is built against that one: a process with two would load only one of them.
make setup MPI=system HOROVOD= HOROVOD_GPU_OPERATIONS=NCCL "$@"
.venv/bin/python - <<'END'
import horovod.torch as hvd

built = hvd.nccl_built()
raise SystemExit(0 if built else "Horovod was built, but without NCCL: build/setup.log says what it found.")
END
echo "Horovod has NCCL. In a job: horovod, horovod-tf and horovod-keras train on GPUs."
