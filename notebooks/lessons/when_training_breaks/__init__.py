"""What 13_when_training_breaks uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    fault_catalogue=".fault_catalogue",
    hung_jobs=".hung_jobs",
    hung_ranks=".hung_ranks",
    launchers=".launchers",
    loss_spikes=".loss_spikes",
)
