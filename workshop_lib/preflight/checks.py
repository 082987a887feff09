"""What a pre-flight report says about an allocation, a line per check, from the report alone."""

from collections.abc import Callable, Iterator
from statistics import median

from workshop_lib.findings import Finding
from workshop_lib.machine.catalogue import Machine
from workshop_lib.preflight.reports import PreflightReport, RankReport
from workshop_lib.ranks.faults.rank_errors import grouped, named

# A bandwidth below these shares of what is expected is worth a look, or wrong.
LOOK_SHARE = 0.6
WRONG_SHARE = 0.25
SLOW_PAIR_SHARE = 0.5
SLOW_GPU_PAIR_SHARE = 0.7  # a link at half its speed shows a little more than half, and links of GPUs vary little
IDLE_CORES = 4  # with as many cores for each of its threads, a rank wastes most of them
CLOCK_LOOK_S = 0.05
CLOCK_WRONG_S = 2.0
# The newest driver that a CUDA version of PyTorch's builds needs, by CUDA's major version. Source: NVIDIA's table of
# CUDA toolkits and their minimum drivers for minor-version compatibility (CUDA release notes).
LEAST_DRIVER = {"11": 450, "12": 525, "13": 580}


def check(report: PreflightReport, machine: Machine | None = None) -> list[Finding]:
    """All lines. machine: what to compare bandwidths with."""
    lines = [*_builds(report), *_devices(report), *_transport(report, machine), *_allreduce(report, machine)]
    lines += [*_pairs(report), *_binding(report), *_clocks(report)]
    return [*lines, *_checkpoint(report)]


def _said(words: Callable[[RankReport], str], report: PreflightReport) -> list[tuple[list[int], str]]:
    """What holds for which ranks: each different text, with its ranks."""
    return grouped({rank["rank"]: words(rank) for rank in report["ranks"]})


def _in_words(said: list[tuple[list[int], str]]) -> str:
    return "; ".join(f"{named(ranks)}: {text}" for ranks, text in said)


def _builds(report: PreflightReport) -> Iterator[Finding]:
    def words(rank: RankReport) -> str:
        other = "Intel's GPUs" if rank["device_id"] else "CPUs"
        cuda = f"for CUDA {rank['cuda']}" if rank["cuda"] else f"for {other}"
        driver = f", driver {rank['driver']}" if rank["driver"] else ""
        return f"PyTorch {rank['torch']} {cuda}{driver}"

    said = _said(words, report)
    if len(said) > 1:
        seen = _in_words(said)
        yield Finding(
            "wrong", "build", seen, remedy="All ranks need one environment: give every node the same .venv and modules."
        )
    else:
        yield Finding("ok", "build", said[0][1])
    old = [rank for rank in report["ranks"] if _driver_is_too_old(rank)]
    if old:
        needed = LEAST_DRIVER[old[0]["cuda"].partition(".")[0]]
        seen = f"{named([rank['rank'] for rank in old])}: driver {old[0]['driver']}, and CUDA {old[0]['cuda']}"
        remedy = f"This build of PyTorch needs driver {needed} or newer: install a build for an older CUDA."
        yield Finding("wrong", "driver", f"{seen} needs {needed}", remedy=remedy)


def _driver_is_too_old(rank: RankReport) -> bool:
    needed = LEAST_DRIVER.get(rank["cuda"].partition(".")[0])
    version = rank["driver"].partition(".")[0]
    return needed is not None and version.isdigit() and int(version) < needed


def _devices(report: PreflightReport) -> Iterator[Finding]:
    taken: dict[tuple[str, str], list[int]] = {}
    for rank in report["ranks"]:
        if rank["device_id"]:
            taken.setdefault((rank["host"], rank["device_id"]), []).append(rank["rank"])
    shared = [(place, ranks) for place, ranks in taken.items() if len(ranks) > 1]
    idle = [rank["rank"] for rank in report["ranks"] if rank["gpus"] and not rank["device_id"]]
    if shared:
        (host, _), ranks = shared[0]
        more = f" (and {len(shared) - 1} more)" if len(shared) > 1 else ""
        remedy = "Start one rank per GPU, and let each take the GPU of its local rank."
        yield Finding("wrong", "devices", f"{named(ranks)} compute on one GPU of {host}{more}", remedy=remedy)
    elif idle:
        remedy = (
            "Start at most one rank per GPU; PyTorch needs a build for these GPUs, and a driver that is new enough."
        )
        yield Finding("look", "devices", f"on a CPU, although the host has GPUs: {named(idle)}", remedy=remedy)
    else:
        said = _said(lambda rank: rank["device"], report)
        yield Finding("ok", "devices", _in_words(said))


def _hosts(report: PreflightReport) -> int:
    return len({rank["host"] for rank in report["ranks"]})


def _transport(report: PreflightReport, machine: Machine | None) -> Iterator[Finding]:
    said = _said(lambda rank: rank["transport"], report)
    seen = _in_words(said)
    networks = {rank["transport"].removeprefix("NCCL over ") for rank in report["ranks"]}
    expected = machine.network if machine else ()
    if expected and "Socket" in networks and _hosts(report) > 1:
        remedy = (
            "NCCL lacks its plug-in, so you'd measure TCP. Load its module or set its path: see the machine's page."
        )
        yield Finding("wrong", "transport", f"{seen}, but this machine has {expected[0]}", remedy=remedy)
    elif "Socket" in networks and _hosts(report) > 1:
        remedy = "If this machine has InfiniBand or Slingshot, NCCL lacks its plug-in: see the machine's page."
        yield Finding("look", "transport", seen, remedy=remedy)
    elif len(said) > 1:
        yield Finding("wrong", "transport", seen, remedy="All ranks need the same: look for a node with other modules.")
    else:
        yield Finding("ok", "transport", seen)


def _allreduce(report: PreflightReport, machine: Machine | None) -> Iterator[Finding]:
    if len(report["ranks"]) < 2:
        return
    speeds = ", ".join(
        f"{row['bus_bytes_per_s'] / 1e9:.3g} GB/s with {_size(row['message_bytes'])}" for row in report["allreduces"]
    )
    large = report["allreduces"][-1]
    if machine is None:
        yield Finding("ok", "allreduce", f"bus bandwidth {speeds}")
        return
    expected_s = machine.allreduce_s(large["ranks"], large["message_bytes"])
    share = expected_s / large["median_s"]
    level = "wrong" if share < WRONG_SHARE else "look" if share < LOOK_SHARE else "ok"
    remedy = ""
    if level != "ok":
        remedy = "Look at the transport above and the slowest pair below, and whether another job shares the network."
    seen = f"bus bandwidth {speeds}: {share:.0%} of what {machine.name} is expected to do"
    yield Finding(level, "allreduce", seen, remedy=remedy)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:g} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:g} KiB"


def _pairs(report: PreflightReport) -> Iterator[Finding]:
    if not report["pairs"]:
        return
    hosts = {rank["rank"]: rank["host"] for rank in report["ranks"]}
    slowest = min(report["pairs"], key=lambda row: row["bytes_per_s"])
    a, b = slowest["ranks"]
    # Pairs on one host are compared with each other, and so are pairs on two hosts.
    across = hosts[a] != hosts[b]
    alike = [row for row in report["pairs"] if (hosts[row["ranks"][0]] != hosts[row["ranks"][1]]) == across]
    middle = median(row["bytes_per_s"] for row in alike)
    place = f"{hosts[a]} and {hosts[b]}" if across else hosts[a]
    seen = f"slowest: ranks {a}, {b} ({place}) with {slowest['bytes_per_s'] / 1e9:.3g} GB/s"
    seen += f"; the median of {len(alike)} such pairs is {middle / 1e9:.3g} GB/s"
    on_gpus = any(rank["device_id"] for rank in report["ranks"])
    if slowest["bytes_per_s"] < (SLOW_GPU_PAIR_SHARE if on_gpus else SLOW_PAIR_SHARE) * middle:
        remedy = "Every collective waits for this pair: ask for other nodes, or tell the machine's support."
        yield Finding("look", "pairs", seen, remedy=remedy)
    else:
        yield Finding("ok", "pairs", seen)


def _binding(report: PreflightReport) -> Iterator[Finding]:
    clash = _sharing_cores(report)
    crowded = [rank["rank"] for rank in report["ranks"] if rank["threads"] > len(rank["cores"])]
    idle = [rank["rank"] for rank in report["ranks"] if _share_of_cores(rank, report) >= IDLE_CORES * rank["threads"]]
    if clash:
        remedy = "Bind each rank to cores of its own: --bind core, or the launcher's own option."
        yield Finding("wrong", "binding", clash, remedy=remedy)
    elif crowded:
        remedy = "Set OMP_NUM_THREADS to the number of cores that a rank has."
        yield Finding("wrong", "binding", f"{named(crowded)}: more threads than cores", remedy=remedy)
    elif idle:
        threads = report["ranks"][idle[0]]["threads"]
        cores = int(_share_of_cores(report["ranks"][idle[0]], report))
        seen = f"{threads} of {cores} cores are used by {named(idle)}"
        yield Finding(
            "look", "binding", seen, remedy="On CPUs, use them: --threads; on GPUs, the loader's workers need them."
        )
    else:
        said = _said(lambda rank: f"{len(rank['cores'])} cores, threads: {rank['threads']}", report)
        yield Finding("ok", "binding", _in_words(said))


def _sharing_cores(report: PreflightReport) -> str:
    """Which ranks were bound to the same cores, although their host has more; empty if none were."""
    bound = [rank for rank in report["ranks"] if len(rank["cores"]) < rank["host_cores"]]
    owner: dict[tuple[str, int], int] = {}
    for rank in bound:
        of_host = [other for other in bound if other["host"] == rank["host"]]
        everybody_alike = len({tuple(other["cores"]) for other in of_host}) == 1
        enough = len(rank["cores"]) >= sum(other["threads"] for other in of_host)
        if everybody_alike and enough:
            continue  # the job has only these cores, and its ranks share them without a binding
        for core in rank["cores"]:
            other = owner.setdefault((rank["host"], core), rank["rank"])
            if other != rank["rank"]:
                return f"ranks {other}, {rank['rank']} are bound to the same core {core} of {rank['host']}"
    return ""


def _share_of_cores(rank: RankReport, report: PreflightReport) -> float:
    """How many cores a rank can have to itself."""
    alike = [other for other in report["ranks"] if other["host"] == rank["host"] and other["cores"] == rank["cores"]]
    return len(rank["cores"]) / len(alike)


def _clocks(report: PreflightReport) -> Iterator[Finding]:
    ahead_s = {rank["host"]: rank["clock_ahead_s"] for rank in report["ranks"]}
    host = max(ahead_s, key=lambda name: abs(ahead_s[name]))
    apart_s = abs(ahead_s[host])
    level = "wrong" if apart_s > CLOCK_WRONG_S else "look" if apart_s > CLOCK_LOOK_S else "ok"
    if level == "ok":
        yield Finding("ok", "clocks", f"they agree within {max(apart_s * 1e3, 0.01):.2g} ms")
        return
    direction = "ahead of" if ahead_s[host] > 0 else "behind"
    seen = f"{host} is {apart_s:.2g} s {direction} rank 0's host"
    yield Finding(
        level, "clocks", seen, remedy="Don't compare times in logs of different hosts; its time service needs a look."
    )


def _checkpoint(report: PreflightReport) -> Iterator[Finding]:
    found = report["checkpoint"]
    size = _size(found["bytes"])
    if found["error"]:
        remedy = "Make room there, or write checkpoints elsewhere (--folder)."
        yield Finding("wrong", "checkpoint", f"{size} in {found['folder']}: {found['error']}", remedy=remedy)
        return
    write = f"written at {found['bytes'] / found['write_s'] / 1e9:.2g} GB/s"
    read = f"read at {found['bytes'] / found['read_s'] / 1e9:.2g} GB/s (perhaps from memory)"
    seen = f"{size} in {found['folder']}: {write}, {read}; {found['free_bytes'] / 1e9:.0f} GB free"
    yield Finding("ok", "checkpoint", seen)
