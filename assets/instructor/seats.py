"""JupyterLab for a class on the nodes of one job: who sits where, and a server for each seat of a node.

python assets/instructor/seats.py plan --seats 40 --per-node 10 > class/seats.tsv  (has the tokens: keep it to yourself)
python assets/instructor/seats.py serve class/seats.tsv --node 1                   (on the first node, until Ctrl-C)

Seat 7's checkout is class/seat-07, beside seats.tsv, and its Python the .venv in there, which may be a link to one that
all seats share. Each seat has a port, a token and cores of its own. It knows nothing of the job's other nodes, so its
ranks run beside it. Needs Linux, and nothing but Python.
"""

import argparse
import csv
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

FIRST_PORT = 8800
FIELDS = ("seat", "node", "port", "cores", "token")
OF_A_JOB = re.compile(r"(SLURM|SBATCH|PBS|COBALT|PMI|PMIX|PALS|OMPI|PRTE|WORKSHOP)_?")  # what tells of the whole job
KEPT = ("WORKSHOP_PROFILE",)


def plan(seats: int, per_node: int, cores: int) -> list[dict]:
    """A row for each seat: its node, counted from 1, its port, and which of the node's cores it has."""
    rows = []
    for seat in range(1, seats + 1):
        node, place = divmod(seat - 1, per_node)
        mine = ",".join(str(core) for core in range(place * cores, (place + 1) * cores))
        values = (seat, node + 1, FIRST_PORT + seat, mine, secrets.token_urlsafe(12))
        rows.append(dict(zip(FIELDS, values, strict=True)))
    return rows


def start(row: dict, checkout: Path) -> subprocess.Popen:
    """The server of one seat, which lives as long as its process."""
    settings, jupyter = checkout / "workshop_lib" / "notebook" / "jupyter", checkout / "build" / "jupyter"
    here = {name: value for name, value in os.environ.items() if name in KEPT or not OF_A_JOB.match(name)}
    here |= {f"JUPYTER_{kind.upper()}_DIR": str(jupyter / kind) for kind in ("config", "data", "runtime")}
    here |= {"JUPYTER_CONFIG_PATH": str(settings), "JUPYTER_PATH": str(settings), "PYTHONPATH": str(checkout)}
    here |= {"IPYTHONDIR": str(checkout / "build" / "ipython"), "MPLCONFIGDIR": str(checkout / "build" / "matplotlib")}
    here["JUPYTER_TOKEN"] = row["token"]  # not among the arguments, which every user of the node can list
    allowed = sorted(os.sched_getaffinity(0))
    cores = {allowed[int(core)] for core in row["cores"].split(",")}
    root = ["--allow-root"] if os.geteuid() == 0 else []
    words = ["-m", "jupyterlab", "--no-browser", "--ip=*", f"--port={row['port']}", "--ServerApp.port_retries=0", *root]
    os.sched_setaffinity(0, cores)  # what is started next inherits it
    try:
        with open(checkout / "build" / "seat.log", "wb") as log:
            command = [checkout / ".venv" / "bin" / "python", *words]
            return subprocess.Popen(command, cwd=checkout, env=here, stdout=log, stderr=log)
    finally:
        os.sched_setaffinity(0, allowed)


def is_taken(port: int) -> bool:
    """Whether another program has this port of this node. Its server would get the seat's token."""
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return True
    return False


def serve(file: Path, node: int) -> None:
    """Start the seats of a node and wait for Ctrl-C, or the end of the job."""
    rows = [row for row in csv.DictReader(file.open(), delimiter="\t") if int(row["node"]) == node]
    if not rows:
        sys.exit(f"seats: {file} has no seat on node {node}.")
    needed = 1 + max(int(core) for row in rows for core in row["cores"].split(","))
    here = len(os.sched_getaffinity(0))
    if here < needed:
        sys.exit(f"seats: the seats of node {node} need {needed} cores, but only {here} may be used here.")
    servers = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for row in rows:
            checkout = file.resolve().parent / f"seat-{int(row['seat']):02}"
            if not (checkout / ".venv" / "bin" / "python").exists():
                seat = f"make a checkout for seat {row['seat']}, with a link to a .venv"
                sys.exit(f"seats: {checkout}/.venv is missing: {seat}.")
            if is_taken(int(row["port"])):
                taken = f"port {row['port']} is taken on this node: write another one into {file}, and start again"
                print(f"seat {row['seat']}: {taken}", flush=True)
                continue
            (checkout / "build").mkdir(exist_ok=True)
            servers.append(start(row, checkout))
            print(f"seat {row['seat']}: http://{socket.gethostname()}:{row['port']}, cores {row['cores']}", flush=True)
        for server in servers:
            server.wait()
    except KeyboardInterrupt:
        pass
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    planned = commands.add_parser("plan", help="print a table of the seats")
    planned.add_argument("--seats", type=int, default=40)
    planned.add_argument("--per-node", type=int, default=10)
    planned.add_argument("--cores", type=int, default=3, help="of each seat: two ranks and a kernel")
    served = commands.add_parser("serve", help="start the seats of this node")
    served.add_argument("file", type=Path)
    served.add_argument("--node", type=int, default=1)
    given = parser.parse_args()
    if given.command == "serve":
        serve(given.file, given.node)
        return
    if min(given.seats, given.per_node, given.cores) < 1:
        parser.error("--seats, --per-node and --cores are whole numbers of at least 1.")
    writer = csv.DictWriter(sys.stdout, FIELDS, delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(plan(given.seats, given.per_node, given.cores))


if __name__ == "__main__":
    main()
