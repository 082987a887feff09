"""The exercises of 10_compute_nodes: aprun's options for a job, and the GPU of each rank."""

from collections.abc import Callable, Iterator

from workshop_lib.exercises import Exercise, Mistake, Property, is_number, shown

GIVEN = ("nodes", "cores", "threads_per_core", "ranks_per_node")
KEYS = ("n", "N", "d", "j")
JOB, ONE_PER_NODE, UNEVEN = (3, 64, 2, 4), (128, 64, 1, 1), (3, 36, 2, 5)
# The hosts of all ranks, in rank order.
FILLED, DEALT_OUT, UNEQUAL = "aaaabbbb", "abababab", "aaabbccc"


def _right_options(nodes: int, cores: int, threads_per_core: int, ranks_per_node: int) -> dict[str, int]:
    per_rank = cores * threads_per_core // ranks_per_node
    return dict(zip(KEYS, (nodes * ranks_per_node, ranks_per_node, per_rank, threads_per_core), strict=True))


def observe_options(comm, function: Callable) -> dict[tuple, dict]:
    """What `function` returns for each job."""
    return {job: function(**dict(zip(GIVEN, job, strict=True))) for job in (JOB, ONE_PER_NODE, UNEVEN)}


def options_properties(observations: list[dict]) -> Iterator[Property]:
    returned = observations[0]
    options = returned[JOB]
    shaped = all(isinstance(value, dict) and set(value) == set(KEYS) for value in returned.values())
    hint = "it returned nothing: `return` the options." if options is None else f"it returned {shown(options)}."
    yield Property("it returns a dictionary of n, N, d and j", shaped, hint)
    numbers = all(is_number(value) for of_job in returned.values() for value in of_job.values())
    yield Property("all of them numbers", numbers, f"it returned {shown(options)}: whole numbers, with `//`.")
    for key, right in _right_options(*JOB).items():
        observed = f"for {_described(JOB)} it should be {right}, not {options[key]:g}."
        yield Property(f"-{key} is right", options[key] == right, evidence=options[key], observed=observed)
    for job, text in (
        (ONE_PER_NODE, "also with one rank per node and one thread per core"),
        (UNEVEN, "also where the cores cannot be shared out evenly"),
    ):
        observed = f"for {_described(job)} it should be {_right_options(*job)}, not {shown(returned[job])}."
        yield Property(text, returned[job] == _right_options(*job), evidence=returned[job], observed=observed)


def _described(job: tuple) -> str:
    return "{} nodes of {} cores, {} threads per core, {} ranks per node".format(*job)


def _option(key: str, value: Callable, hint: str) -> Mistake:
    """A wrong `aprun_options`: right but for one option, which is `value` of nodes, cores, threads and ranks."""
    return Mistake(lambda **job: _right_options(**job) | {key: value(*job.values())}, hint)


_IDLE = "Where the CPUs cannot be shared out evenly, some stay idle: round down, with `//`."

aprun_options = Exercise(
    "aprun_options",
    observe_options,
    options_properties,
    [
        _option("n", lambda n, c, t, r: r, "`-n` counts the ranks of the whole job, not those of a node."),
        _option("n", lambda n, c, t, r: n, "`-n` counts the ranks of the whole job, not its nodes."),
        _option("n", lambda n, c, t, r: n * c * t, "`-n` counts ranks, not CPUs: how many CPUs a rank gets is `-d`."),
        _option(
            "n", lambda n, c, t, r: n * r * t, "`-n` counts ranks, and more threads per core make no more of them."
        ),
        _option(
            "N", lambda n, c, t, r: n * r, "`-N` counts the ranks of one node; those of the whole job are in `-n`."
        ),
        _option("N", lambda n, c, t, r: 1, "`-N` counts the ranks of one node, which you are given."),
        _option("d", lambda n, c, t, r: c // r, "Each core counts as `threads_per_core` CPUs: share out all of them."),
        _option("d", lambda n, c, t, r: c * t // (n * r), "A node's CPUs are shared by that node's ranks alone."),
        _option("d", lambda n, c, t, r: c * t, "Those are the CPUs of the whole node: its ranks share them."),
        _option("d", lambda n, c, t, r: c, "Those are the cores of the whole node: its ranks share its CPUs."),
        _option("d", lambda n, c, t, r: t, "`-d` is how many CPUs a rank gets; the threads of each core are `-j`."),
        _option("d", lambda n, c, t, r: r, "`-d` is how many CPUs a rank gets, not how many ranks there are."),
        _option("d", lambda n, c, t, r: -(-c * t // r), _IDLE),
        _option("d", lambda n, c, t, r: c * t / r, _IDLE),
        _option("j", lambda n, c, t, r: 1, "`-j` is how many threads of each core are used, which you are given."),
        _option(
            "j", lambda n, c, t, r: 2, "`-j` isn't always 2: it is the number of threads per core that you are given."
        ),
        _option("j", lambda n, c, t, r: c * t // r, "`-j` is the threads used of each core; a rank's CPUs are `-d`."),
    ],
    communicates=False,
    unknown="`-n` is for the whole job, `-N` for a node, `-d` for a rank, `-j` for a core.",
)


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
        (FILLED, "every rank of a host has a GPU of its own, where nodes are filled one after the other"),
        (DEALT_OUT, "also where ranks are dealt out to the nodes in turn"),
        (UNEQUAL, "also where nodes have different numbers of ranks"),
    ):
        right = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        observed = f"on the hosts {' '.join(hosts)} it returns {tuple(devices[hosts])}."
        yield Property(text, devices[hosts] == right, evidence=devices[hosts], observed=observed)


_IN_TURN = "A remainder is right only if nodes are filled one after the other, not in turn: look at `hosts`."


def _before(rank: int, hosts: list) -> int:
    """Right: the ranks of the same host before this one."""
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
