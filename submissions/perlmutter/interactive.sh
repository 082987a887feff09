#!/bin/bash
# A node for an hour, with a prompt on it: bash submissions/perlmutter/interactive.sh -A PROJECT
# There: submissions/perlmutter/preflight.sh, lab.sh, train.sh, sweep.sh or engines.sh.
exec salloc --qos=interactive --constraint=gpu --nodes=1 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=32 \
    --time=01:00:00 "$@"
