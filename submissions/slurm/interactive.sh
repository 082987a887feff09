#!/bin/bash
# A node for an hour, with a prompt on it: bash submissions/slurm/interactive.sh [OPTIONS OF salloc]
# There: submissions/slurm/preflight.sh, lab.sh, train.sh, sweep.sh, engines.sh or scale.sh.
# The options of srun are those with which Slurm itself opens such a prompt. It holds none of the job's cores.
exec salloc --nodes=1 --ntasks-per-node=4 --cpus-per-task=2 --time=01:00:00 "$@" \
    srun --interactive --preserve-env --export=ALL --pty bash
