#!/bin/bash
# The documents' interactive session, 4 nodes for an hour: bash submissions/theta/interactive.sh
# There: submissions/theta/train.sh, on the service node whose prompt it is.
exec qsub -n 4 -q training -A comp_perf_workshop -I -t 1:00:00 "$@"
