#!/bin/bash
# Perlmutter's srun, for machine.sh: srun.sh -n RANKS PROGRAM [ARGUMENT ...]
# Left alone, srun spreads few ranks over all nodes of the job. --nodes fills one node after the other.
per_node=${WORKSHOP_RANKS_PER_NODE:-4}
nodes=$((($2 + per_node - 1) / per_node))
# With NCCL_NET, NCCL stops where it finds no plug-in for Slingshot, instead of measuring TCP. A step on one node has
# no access to Slingshot, and needs none.
[ "$nodes" = 1 ] || export NCCL_NET=${NCCL_NET:-AWS Libfabric}
# 32 hardware threads are 16 cores, a quarter of the node. The cores of quarter 3 are the nearest to GPU 0.
# With --overlap, a prompt may hold the same cores.
exec srun --overlap --export=ALL --kill-on-bad-exit=1 --nodes="$nodes" --ntasks-per-node="$per_node" \
    --cpus-per-task=32 --cpu-bind=map_ldom:3,2,1,0 --gpus-per-node=4 "$@"
