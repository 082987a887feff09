"""The checks of 10 accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from exercises.answers import written
from exercises.verdicts import Verdicts, planted

from workshop_lib.exercises import compute_nodes as check

NOTEBOOK = "10_compute_nodes"
NAMES = ["aprun_options", "device_of"]
JOB = "aprun_options(nodes, cores, threads_per_core, ranks_per_node)"
PLACE = "hosts[:rank].count(hosts[rank])"


RIGHT = {
    "from the threads of a rank, as floats": (
        JOB,
        """\
threads = float(cores * threads_per_core // ranks_per_node)
return dict(j=threads_per_core, d=threads, N=ranks_per_node, n=ranks_per_node * nodes)""",
    ),
    "by counting": (
        "device_of(rank, hosts)",
        """\
before = 0
for other, host in enumerate(hosts):
    if host == hosts[rank] and other < rank:
        before += 1
return before""",
    ),
    "by the list of the host's ranks": (
        "device_of(rank, hosts)",
        "return [r for r, host in enumerate(hosts) if host == hosts[rank]].index(rank)",
    ),
}


D = '"d": cpus // ranks_per_node'
N = '"n": nodes * ranks_per_node'
WRONG = {
    "aprun_options": {
        "ranks of a node for the job": ([(N, '"n": ranks_per_node')], "not those of a node"),
        "nodes for the job": ([(N, '"n": nodes')], "and not nodes"),
        "CPUs for ranks": ([(N, '"n": nodes * cpus')], "their threads are in `-d`"),
        "hardware threads make ranks": ([(N, f"{N} * threads_per_core")], "do not make more of them"),
        "ranks of the job for a node": (
            [('"N": ranks_per_node', '"N": nodes * ranks_per_node')],
            "`-N` counts the ranks of one node",
        ),
        "cores only": ([("cores * threads_per_core", "cores")], "twice as many CPUs as cores"),
        "shared by all ranks": (
            [(D, '"d": cpus // (nodes * ranks_per_node)')],
            "by the ranks of that node, not by those of the whole job",
        ),
        "the whole node": ([(D, '"d": cpus')], "CPUs of the whole node"),
        "the node's cores": ([(D, '"d": cores')], "cores of the whole node"),
        "threads of a core": ([(D, '"d": threads_per_core')], "is `-j`"),
        "one thread a core": ([('"j": threads_per_core', '"j": 1')], "2 here"),
        "threads of a rank": (
            [('"j": threads_per_core', '"j": cpus // ranks_per_node')],
            "those of a rank are in `-d`",
        ),
        "rounded up": ([(D, '"d": -(-cpus // ranks_per_node)')], "round down"),
        "not rounded": ([(D, '"d": cpus / ranks_per_node')], "round down"),
        "always two": ([('"j": threads_per_core', '"j": 2')], "1 a core"),
        "without -j": ([('        "j": threads_per_core,\n', "")], "it returned {"),
        "nothing returned": ([("return {", "options = {")], "`return` the options"),
    },
    "device_of": {
        "global rank": ([(PLACE, "rank")], "The second node has no GPU 4"),
        "GPU 0": ([(PLACE, "0")], "every rank takes GPU 0"),
        "number of the node": ([(PLACE, "sorted(set(hosts)).index(hosts[rank])")], "the number of the node"),
        "remainder": ([(PLACE, "rank % hosts.count(hosts[rank])")], "half of the GPUs get two ranks"),
        "remainder by the first": ([(PLACE, "rank % hosts.count(hosts[0])")], "half of the GPUs"),
        "distance to the first": ([(PLACE, "rank - hosts.index(hosts[rank])")], "distance to the host's first"),
        "from one": ([(PLACE, "hosts[: rank + 1].count(hosts[rank])")], "numbered from 0"),
        "those after": ([(PLACE, "hosts[rank + 1 :].count(hosts[rank])")], "count those before"),
        "how many": ([(PLACE, "hosts.count(hosts[rank])")], "which of them is this one"),
        "equal nodes taken for granted": (
            [(PLACE, f"({PLACE}) % 2 if hosts.count('c') else {PLACE}")],
            "How many ranks of the same host",
        ),
        "nothing returned": ([("return ", "")], "`return` the number"),
    },
}
ENDLESS = {"device_of": {"a loop": ([("return ", "while True: pass\n    return ")], "the function does not end")}}


class TestVerdicts(Verdicts):
    check, notebook, names = check, NOTEBOOK, NAMES
    right = {title: partial(written, "", head, *body.splitlines()) for title, (head, body) in RIGHT.items()}
    wrong, never_ends = planted(NOTEBOOK, WRONG), planted(NOTEBOOK, ENDLESS)
