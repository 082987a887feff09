"""The exercises of 10 accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from exercises.answers import variant, written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import compute_nodes as check

NOTEBOOK = "10_compute_nodes"
aprun_options = partial(variant, NOTEBOOK, "aprun_options")
device_of = partial(variant, NOTEBOOK, "device_of")


class TestComputeNodes(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["aprun_options", "device_of"]
    right = {
        "from the threads of a rank, as floats": lambda: written(
            "",
            "aprun_options(nodes, cores, threads_per_core, ranks_per_node)",
            "threads = float(cores * threads_per_core // ranks_per_node)",
            "return dict(j=threads_per_core, d=threads, N=ranks_per_node, n=ranks_per_node * nodes)",
        ),
        "by counting": lambda: written(
            "",
            "device_of(rank, hosts)",
            "before = 0",
            "for other, host in enumerate(hosts):",
            "    if host == hosts[rank] and other < rank:",
            "        before += 1",
            "return before",
        ),
        "by the list of the host's ranks": lambda: written(
            "",
            "device_of(rank, hosts)",
            "return [r for r, host in enumerate(hosts) if host == hosts[rank]].index(rank)",
        ),
    }
    wrong = {
        "without -j": (lambda: aprun_options(('        "j": threads_per_core,\n', "")), "it returned {"),
        "no options returned": (lambda: aprun_options(("return {", "options = {")), "`return` the options"),
        "no number returned": (lambda: device_of(("return ", "")), "`return` the number"),
        "from the other end": (
            lambda: device_of(("hosts[:rank].count(hosts[rank])", "-1 - hosts[:rank].count(hosts[rank])")),
            "it returns (-1, -2, -3, -4, -1, -2, -3, -4). How many ranks of the same host",
        ),
    }
    never_ends = {"a loop": (lambda: device_of(("return ", "while True: pass\n    return ")), "doesn't end")}
