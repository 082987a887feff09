"""What too many threads cost: 10_compute_nodes lets all ranks multiply matrices at the same time, and measures it."""

import time

from workshop_lib.ranks.launch.cluster import Ranks

SIZE = 384
PRODUCTS = 40


def seconds_of_products(team: Ranks) -> tuple[float, float]:
    """Seconds of some products of matrices on every rank at once, the best of three; prints both, and the threads.

    First each rank has one thread for each core of its share of the host, then one for every core that it may use.
    """
    hosts = team.about()
    cores = len(hosts[0]["cores"])
    of_a_host = sum(about["host"] == hosts[0]["host"] for about in hosts)
    share = max(1, cores // of_a_host)
    shared_s, all_s = (team.run(_multiply, threads, show=False)[0] for threads in (share, cores))
    print(f"threads per rank: {share} took {shared_s:.3f} s, {cores} took {all_s:.3f} s")
    return shared_s, all_s


def _multiply(threads: int) -> float:
    import torch  # on the ranks only, where it takes seconds the first time
    from mpi4py import MPI

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a = torch.ones(SIZE, SIZE)
    times = []
    for _ in range(3):
        MPI.COMM_WORLD.Barrier()
        began = time.perf_counter()
        for _ in range(PRODUCTS):
            a @ a
        MPI.COMM_WORLD.Barrier()
        times.append(time.perf_counter() - began)
    torch.set_num_threads(before)
    return min(times)
