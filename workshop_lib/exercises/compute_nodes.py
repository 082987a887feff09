"""The exercises of 10_compute_nodes: aprun's options for a job, and the GPU of each rank."""

from collections.abc import Callable, Iterator

from workshop_lib.exercises import ENDLESS_HINT, Exercise, Mistake, Property, is_number, shown

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


def _option(key: str, value: Callable) -> Callable:
    """A wrong `aprun_options`: right but for one option, which is `value` of what is given."""

    def aprun_options(nodes: int, cores: int, threads_per_core: int, ranks_per_node: int) -> dict:
        given = (nodes, cores, threads_per_core, ranks_per_node)
        return _right_options(*given) | {key: value(*given)}

    return aprun_options


_IDLE = "Where the CPUs cannot be shared out evenly, some stay idle: round down, with `//`."

aprun_options = Exercise(
    "aprun_options",
    observe_options,
    options_properties,
    [
        Mistake(
            _option("n", lambda nodes, cores, threads, ranks: ranks),
            "`-n` counts the ranks of the whole job, not those of a node.",
        ),
        Mistake(
            _option("n", lambda nodes, cores, threads, ranks: nodes),
            "`-n` counts the ranks of the whole job, not its nodes.",
        ),
        Mistake(
            _option("n", lambda nodes, cores, threads, ranks: nodes * cores * threads),
            "`-n` counts ranks, not CPUs: how many CPUs a rank gets is `-d`.",
        ),
        Mistake(
            _option("n", lambda nodes, cores, threads, ranks: nodes * ranks * threads),
            "`-n` counts ranks; using several threads per core does not make more of them.",
        ),
        Mistake(
            _option("N", lambda nodes, cores, threads, ranks: nodes * ranks),
            "`-N` counts the ranks of one node; those of the whole job are in `-n`.",
        ),
        Mistake(
            _option("N", lambda nodes, cores, threads, ranks: 1),
            "`-N` counts the ranks of one node, which you are given.",
        ),
        Mistake(
            _option("d", lambda nodes, cores, threads, ranks: cores // ranks),
            "Each core counts as `threads_per_core` CPUs, so a rank has more CPUs than cores.",
        ),
        Mistake(
            _option("d", lambda nodes, cores, threads, ranks: cores * threads // (nodes * ranks)),
            "A node's CPUs are shared by the ranks of that node, not by those of the whole job.",
        ),
        Mistake(
            _option("d", lambda nodes, cores, threads, ranks: cores * threads),
            "Those are the CPUs of the whole node: its ranks share them.",
        ),
        Mistake(
            _option("d", lambda nodes, cores, threads, ranks: cores),
            "Those are the cores of the whole node: its ranks share its CPUs.",
        ),
        Mistake(
            _option("d", lambda nodes, cores, threads, ranks: threads),
            "`-d` is how many CPUs a rank gets; how many threads of each core are used is `-j`.",
        ),
        Mistake(
            _option("d", lambda nodes, cores, threads, ranks: ranks),
            "`-d` is how many CPUs a rank gets, not how many ranks there are.",
        ),
        Mistake(_option("d", lambda nodes, cores, threads, ranks: -(-cores * threads // ranks)), _IDLE),
        Mistake(_option("d", lambda nodes, cores, threads, ranks: cores * threads / ranks), _IDLE),
        Mistake(
            _option("j", lambda nodes, cores, threads, ranks: 1),
            "`-j` is how many threads of each core are used, which you are given.",
        ),
        Mistake(
            _option("j", lambda nodes, cores, threads, ranks: 2),
            "`-j` isn't always 2: it is how many threads of each core are used, which you are given.",
        ),
        Mistake(
            _option("j", lambda nodes, cores, threads, ranks: cores * threads // ranks),
            "`-j` is how many threads of each core are used; how many CPUs a rank gets is `-d`.",
        ),
    ],
    communicates=False,
    stuck=ENDLESS_HINT,
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


_NODE = "That is the number of the node: its ranks would share one GPU."
_IN_TURN = (
    "A remainder is right only if nodes are filled one after the other. Here ranks are dealt out in turn, and half of "
    "the GPUs get two ranks: look at `hosts`."
)

device_of = Exercise(
    "device_of",
    observe_device,
    device_properties,
    [
        Mistake(
            lambda rank, hosts: rank,
            "That is the rank in the whole job, but the second node has no GPU 4: count the ranks of the same host "
            "only.",
        ),
        Mistake(lambda rank, hosts: 0, "Every rank takes GPU 0, and the other GPUs stay idle."),
        Mistake(lambda rank, hosts: sorted(set(hosts)).index(hosts[rank]), _NODE),
        Mistake(
            lambda rank, hosts: hosts[: rank + 1].count(hosts[rank]),
            "GPUs are numbered from 0: count the ranks *before* this one.",
        ),
        Mistake(
            lambda rank, hosts: hosts[rank + 1 :].count(hosts[rank]),
            "You count the ranks after this one; count those before it.",
        ),
        Mistake(
            lambda rank, hosts: hosts.count(hosts[rank]),
            "That is how many ranks the host has, but which of them is this one?",
        ),
        Mistake(lambda rank, hosts: rank % hosts.count(hosts[rank]), _IN_TURN),
        Mistake(lambda rank, hosts: rank % hosts.count(hosts[0]), _IN_TURN),
        Mistake(
            lambda rank, hosts: rank - hosts.index(hosts[rank]),
            "The distance to the host's first rank is right only if nodes are filled one after the other: count the "
            "ranks of the same host before this one.",
        ),
        Mistake(
            lambda rank, hosts: (
                hosts[:rank].count(hosts[rank]) % 2 if len(set(hosts)) > 2 else hosts[:rank].count(hosts[rank])
            ),
            "Nodes can have different numbers of ranks: how many ranks of the same host come before this one?",
        ),
    ],
    communicates=False,
    stuck=ENDLESS_HINT,
    unknown="How many ranks of the same host come before this one?",
)
