#!/bin/bash
# A node for an hour, with a prompt on it: bash submissions/thetagpu/interactive.sh
# There, in the checkout: submissions/thetagpu/lab.sh, train.sh, sweep.sh or engines.sh.
exec qsub-gpu -I -n 1 -t 1:00:00 -q full-node -A comp_perf_workshop --attrs filesystems=home,theta-fs0 "$@"
