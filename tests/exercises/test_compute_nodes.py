"""The GPU of each rank in 10: the check accepts what is right, and its hint names the mistake in what is not."""

from functools import partial

from exercises.answers import variant, written
from exercises.verdicts import Verdicts

from workshop_lib.exercises import compute_nodes as check

NOTEBOOK = "10_compute_nodes"
device_of = partial(variant, NOTEBOOK, "device_of")


class TestComputeNodes(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["device_of"]
    right = {
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
        "no number returned": (lambda: device_of(("return ", "")), "`return` the number"),
        "from the other end": (
            lambda: device_of(("hosts[:rank].count(hosts[rank])", "-1 - hosts[:rank].count(hosts[rank])")),
            "it returns (-1, -2, -3, -4, -1, -2, -3, -4). How many ranks of the same host",
        ),
    }
    never_ends = {"a loop": (lambda: device_of(("return ", "while True: pass\n    return ")), "doesn't end")}
