"""Start ranks here, and all of them again when one is lost. Start it with: python survive.py 2 elastic.py --steps 200

It imports the script and calls its prepare(), once. From there it forks the ranks, so they have every import and all
the data in memory already, and each calls the script's train() with what prepare() has returned.

A fork copies memory, but neither threads nor a GPU's state. So prepare() may import and read, but it must not use a GPU
or compute with several threads: the ranks could fail or hang. On macOS, the system's libraries may not survive a fork.
"""

import os
import runpy
import signal
import socket
import sys
import traceback


def supervise(start, ranks, restarts):
    """Start all ranks. Once one is lost, end the others and start all again, until all end well."""
    for attempt in range(restarts + 1):
        running = {start(rank, attempt) for rank in range(ranks)}
        lost = False
        while running and not lost:
            pid, status = os.waitpid(-1, os.WUNTRACED)  # the next one to end, or to be stopped
            lost = status != 0
            if not os.WIFSTOPPED(status):
                running.remove(pid)
        if not lost:
            return
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    raise SystemExit(f"given up after {restarts} restarts")


def choose_meeting_point():
    """Put a free port of this machine where init_process_group looks for the place at which the ranks meet."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        host, port = free.getsockname()
    os.environ["MASTER_ADDR"] = host
    os.environ["MASTER_PORT"] = str(port)


def fork(train, rank, size):
    """Fork a rank that calls train(), and return its process number."""
    if pid := os.fork():
        print(f"rank {rank} is process {pid}", flush=True)
        return pid
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(size)
    status = 1
    try:
        train()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # even if a second error comes meanwhile: a rank must never go on as a second supervisor


def main():
    if len(sys.argv) < 3:
        raise SystemExit("Give the number of ranks and a script, such as: python survive.py 2 elastic.py")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core per rank, however many ranks there are
    size = int(sys.argv[1])
    sys.argv = sys.argv[2:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))  # where the script looks for its imports
    script = runpy.run_path(sys.argv[0], run_name="script")
    prepared = script["prepare"]()

    def start(rank, attempt):
        if rank == 0:
            choose_meeting_point()
        return fork(lambda: script["train"](*prepared), rank, size)

    supervise(start, size, restarts=100)


if __name__ == "__main__":
    main()
