"""Rank side of the exercises in 10_compute_nodes: plain functions, run there so that an endless loop ends.

JOBS are what `aprun_options` is called with. PLACES are the hosts of all ranks, in rank order.
"""

NAMES = ("nodes", "cores", "threads_per_core", "ranks_per_node")
JOBS = {
    "theta": dict(zip(NAMES, (4, 64, 2, 4), strict=True)),
    "one a node": dict(zip(NAMES, (128, 64, 1, 1), strict=True)),
    "uneven": dict(zip(NAMES, (3, 36, 2, 5), strict=True)),
}
PLACES = {
    "filled": ["a", "a", "a", "a", "b", "b", "b", "b"],
    "dealt out": ["a", "b", "a", "b", "a", "b", "a", "b"],
    "uneven": ["a", "a", "a", "b", "b", "c", "c", "c"],
}


def aprun_options(comm, function) -> dict:
    """What `function` returns for each of JOBS."""
    return {name: function(**job) for name, job in JOBS.items()}


def device_of(comm, function) -> dict:
    """What `function` returns for every rank of each of PLACES."""
    return {name: [function(rank, list(hosts)) for rank in range(len(hosts))] for name, hosts in PLACES.items()}
