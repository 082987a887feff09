#!/bin/bash
# A node for an hour, with a prompt in it: bash submissions/slurm/interactive.sh [OPTIONS OF salloc]
# There: submissions/slurm/lab.sh, train.sh, sweep.sh or engines.sh.
exec salloc --nodes=1 --ntasks-per-node=4 --cpus-per-task=2 --time=01:00:00 "$@"
