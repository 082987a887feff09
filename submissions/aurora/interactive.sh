#!/bin/bash
# A node for an hour, with a prompt on it: bash submissions/aurora/interactive.sh -A PROJECT
# There: cd "$PBS_O_WORKDIR", then submissions/aurora/preflight.sh, lab.sh, train.sh, sweep.sh or engines.sh.
exec qsub -I -q debug -l select=1 -l place=scatter -l walltime=01:00:00 -l filesystems=home:flare "$@"
