"""Checks of the exercises in 10_compute_nodes."""

from workshop_lib.notebook.checks import ENDLESS_HINT, Verdict, is_number, judged, shown
from workshop_lib.probes import compute_nodes as probes

KEYS = ("n", "N", "d", "j")
RIGHT = {
    "theta": {"n": 16, "N": 4, "d": 32, "j": 2},
    "one a node": {"n": 128, "N": 1, "d": 64, "j": 1},
    "uneven": {"n": 15, "N": 5, "d": 14, "j": 2},
}
# For 4 nodes of 64 cores with 2 threads each and 4 ranks a node.
MISTAKES = {
    ("n", 4): "`-n` counts the ranks of the whole job, not those of a node, and not nodes.",
    ("n", 512): "`-n` counts ranks; their threads are in `-d`.",
    ("n", 32): "`-n` counts ranks; the threads of a core do not make more of them.",
    ("N", 16): "`-N` counts the ranks of one node: those of the whole job are in `-n`.",
    ("N", 1): "`-N` counts the ranks of one node, which are given.",
    ("d", 16): "with 2 threads of every core in use, a rank has twice as many CPUs as cores.",
    ("d", 8): "a node's CPUs are shared by the ranks of that node, not by those of the whole job.",
    ("d", 128): "those are the CPUs of the whole node: its ranks share them.",
    ("d", 64): "those are the cores of the whole node: its ranks share what they have of CPUs.",
    ("d", 2): "`-d` is how many CPUs a rank gets; how many threads of each core are used is `-j`.",
    ("d", 4): "`-d` is how many CPUs a rank gets, not how many ranks there are.",
    ("j", 1): "`-j` is how many threads of each core are used: 2 here.",
    ("j", 32): "`-j` is how many threads of each core are used; those of a rank are in `-d`.",
}
PLACED = {"filled": [0, 1, 2, 3, 0, 1, 2, 3], "dealt out": [0, 0, 1, 1, 2, 2, 3, 3], "uneven": [0, 1, 2, 0, 1, 0, 1, 2]}
GPU_MISTAKES = {
    ("filled", (0, 1, 2, 3, 4, 5, 6, 7)): "that is the rank in the whole job. The second node has no GPU 4: "
    "count the ranks of the same host only.",
    ("filled", (0, 0, 0, 0, 0, 0, 0, 0)): "every rank takes GPU 0, and the others stay idle.",
    ("filled", (0, 0, 0, 0, 1, 1, 1, 1)): "that is the number of the node: its ranks would share one GPU.",
    ("filled", (1, 2, 3, 4, 1, 2, 3, 4)): "GPUs are numbered from 0: count the ranks *before* this one.",
    ("filled", (3, 2, 1, 0, 3, 2, 1, 0)): "it counts the ranks after this one; count those before.",
    ("filled", (4, 4, 4, 4, 4, 4, 4, 4)): "that is how many ranks the host has; which of them is this one?",
    ("dealt out", (0, 1, 2, 3, 0, 1, 2, 3)): "a remainder is right only if nodes are filled one after the "
    "other. Here ranks are dealt out in turn, and half of the GPUs get two ranks: look at `hosts`.",
    ("dealt out", (0, 1, 0, 1, 0, 1, 0, 1)): "that is the number of the node: its ranks would share one GPU.",
    ("dealt out", (0, -1, 2, 1, 4, 3, 6, 5)): "the distance to the host's first rank is right only if "
    "nodes are filled one after the other: count the ranks of the same host before this one.",
    ("dealt out", (0, 0, 2, 2, 4, 4, 6, 6)): "the distance to the host's first rank is right only if "
    "nodes are filled one after the other: count the ranks of the same host before this one.",
    ("uneven", (0, 1, 2, 1, 2, 1, 2, 3)): "here the nodes have different numbers of ranks: count them.",
}


def aprun_options(function) -> Verdict:
    """`aprun_options(nodes, cores, threads_per_core, ranks_per_node)` returns {"n", "N", "d", "j"}."""
    return judged(function, probes.aprun_options, _judge_options, stuck=ENDLESS_HINT)


def device_of(function) -> Verdict:
    """`device_of(rank, hosts)` returns the number of the GPU that this rank takes on its host."""
    return judged(function, probes.device_of, _judge_device, stuck=ENDLESS_HINT)


def _judge_options(facts: list[dict]):
    found = facts[0]
    shaped = all(isinstance(options, dict) and set(options) == set(KEYS) for options in found.values())
    theta = found["theta"]
    hint = "it returned nothing: `return` the options." if theta is None else f"it returned {shown(theta)}."
    yield "it returns a dictionary of n, N, d and j", shaped, hint
    numbers = all(is_number(value) for options in found.values() for value in options.values())
    yield "all of them numbers", numbers, f"it returned {shown(theta)}: whole numbers, with `//`."
    for key in KEYS:
        got, right = theta[key], RIGHT["theta"][key]
        more = MISTAKES.get((key, got), "")
        yield f"-{key} is right", got == right, f"for {_told('theta')} it is {right}, not {got:g}. {more}"
    yield "also with one rank a node, one thread a core", *_same("one a node", found, "")
    more = "Where CPUs cannot be shared out evenly, some stay idle: round down."
    yield "also where the cores cannot be shared out evenly", *_same("uneven", found, more)


def _same(name: str, found: dict, more: str) -> tuple[bool, str]:
    hint = f"for {_told(name)} it is {RIGHT[name]}, not {shown(found[name])}. {more}"
    return found[name] == RIGHT[name], hint


def _told(name: str) -> str:
    job = probes.JOBS[name]
    return "{nodes} nodes of {cores} cores, {threads_per_core} a core, {ranks_per_node} ranks a node".format(**job)


def _judge_device(facts: list[dict]):
    found = facts[0]
    numbers = all(is_number(value) for places in found.values() for value in places)
    first = found["filled"][0]
    hint = "it returned nothing: `return` the number." if first is None else f"for rank 0 it returned {shown(first)}."
    yield "it returns a number", numbers, hint
    for name, text in (
        ("filled", "every rank of a host has a GPU of its own, where nodes are filled one after the other"),
        ("dealt out", "also where ranks are dealt out to the nodes in turn"),
        ("uneven", "also where nodes have different numbers of ranks"),
    ):
        got = tuple(found[name])
        more = GPU_MISTAKES.get((name, got), "How many ranks of the same host come before this one?")
        yield (text, list(got) == PLACED[name], f"on the hosts {' '.join(probes.PLACES[name])} it says {got}. {more}")
