"""Inside a job: ranks without a number, then a notebook; writes what came of them to a folder.

python inside.py FOLDER NOTEBOOK
"""

import json
import os
import socket
import sys
from pathlib import Path

from workshop_lib import ranks
from workshop_lib.maintain.execute import run_notebook


def place() -> dict:
    """Which node this rank is on, by name and by what Slurm says."""
    from workshop_lib.training.world import detect

    world = detect()
    node = os.environ.get("SLURMD_NODENAME")
    return {"rank": world.rank, "local_rank": world.local_rank, "host": socket.gethostname(), "node": node}


def main(folder: Path, notebook: Path) -> None:
    places = ranks.start().run(place, show=False)
    ranks.stop()
    (folder / "places.json").write_text(json.dumps(places))
    outcome = run_notebook(notebook, folder / "inside.ipynb", cell_timeout_s=180)
    (folder / "outcome.txt").write_text(str(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
