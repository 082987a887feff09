"""Judges `device_of`, the second exercise of 10_compute_nodes: which GPU does each rank use?

The first exercise, a job script, is judged in judge_job_script.py.
"""

from collections.abc import Callable, Iterator

from workshop_lib.judge import Exercise, Mistake, Property, is_number, shown
from workshop_lib.lessons.compute_nodes.judge_job_script import job, on_this_machine

__all__ = ["device_of", "job", "on_this_machine"]

# Each letter is the host of one rank, in rank order: nodes filled one after the other, ranks dealt out to the nodes in
# turn, and nodes with different numbers of ranks.
FILLED = "aaaabbbb"
DEALT_OUT = "abababab"
UNEQUAL = "aaabbccc"


def observe_device(comm, function: Callable) -> dict[str, list]:
    """What `function` returns for every rank of each list of hosts."""
    return {
        hosts: [function(rank, list(hosts)) for rank in range(len(hosts))] for hosts in (FILLED, DEALT_OUT, UNEQUAL)
    }


def device_properties(observations: list[dict]) -> Iterator[Property]:
    devices = observations[0]
    first = devices[FILLED][0]
    hint = "it returned nothing: `return` the number." if first is None else f"for rank 0 it returned {shown(first)}."
    yield Property("it returns a number", all(is_number(device) for of in devices.values() for device in of), hint)
    for hosts, text in (
        (FILLED, "every rank of a host has its own GPU, where nodes are filled one after the other"),
        (DEALT_OUT, "also where ranks are dealt out to the nodes in turn"),
        (UNEQUAL, "also where nodes have different numbers of ranks"),
    ):
        right = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        observed = f"on the hosts {' '.join(hosts)} it returns {tuple(devices[hosts])}."
        yield Property(text, devices[hosts] == right, evidence=devices[hosts], observed=observed)


_IN_TURN = "A remainder is right only if nodes are filled one after the other, not in turn: look at `hosts`."


def _before(rank: int, hosts: list) -> int:
    """The right answer: the number of earlier ranks on the same host."""
    return hosts[:rank].count(hosts[rank])


device_of = Exercise(
    "device_of",
    observe_device,
    device_properties,
    [
        Mistake(lambda rank, hosts: rank, "That is the rank in the whole job: count only the ranks of the same host."),
        Mistake(lambda rank, hosts: 0, "Every rank takes GPU 0, and the other GPUs stay idle."),
        Mistake(
            lambda rank, hosts: sorted(set(hosts)).index(hosts[rank]),
            "That is the number of the node: its ranks would share one GPU.",
        ),
        Mistake(lambda r, hosts: _before(r, hosts) + 1, "GPUs are numbered from 0: count the ranks *before* this one."),
        Mistake(
            lambda rank, hosts: hosts[rank + 1 :].count(hosts[rank]),
            "You count the ranks after this one; count those before it.",
        ),
        Mistake(lambda r, hosts: hosts.count(hosts[r]), "That is how many ranks the host has, but which is this one?"),
        Mistake(lambda rank, hosts: rank % hosts.count(hosts[rank]), _IN_TURN),
        Mistake(lambda rank, hosts: rank % hosts.count(hosts[0]), _IN_TURN),
        Mistake(
            lambda rank, hosts: rank - hosts.index(hosts[rank]),
            "The distance to the host's first rank is right only if nodes are filled one after the other.",
        ),
        Mistake(
            lambda rank, hosts: _before(rank, hosts) % (2 if len(set(hosts)) > 2 else len(hosts)),
            "Nodes can have different numbers of ranks: how many ranks of the same host come before this one?",
        ),
    ],
    communicates=False,
    unknown="How many ranks of the same host come before this one?",
)
