"""Training on a notebook's ranks."""

from workshop_lib.ranks import Ranks
from workshop_lib.ranks.call.engine import stop_asked
from workshop_lib.ranks.call.view import TextView
from workshop_lib.training.options import TrainOptions
from workshop_lib.training.publisher import train_here
from workshop_lib.training.record import Epochs

from .training_text import TrainingText


def train_on(team: Ranks, options: TrainOptions, timeout: float = 600.0, show: bool | TextView = True) -> dict:
    """Train on these ranks, as `team.train` promises; returns the run record."""
    if show is True:
        show = (team.view or TrainingText)(team.n, trains=True)
    record = team.run(train_here, options, stop_asked, timeout=timeout, show=show)[0]
    record["epochs"] = Epochs(record["epochs"])
    return record
