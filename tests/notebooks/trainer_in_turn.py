"""Run on two ranks: trainings of trainer.py in one process, so that PyTorch is imported once.

    trainer_in_turn.py FOLDER    with the documents in FOLDER/text

What each rank prints goes into FOLDER/<rank>.txt.
"""

import contextlib
import os
import sys
from pathlib import Path

from resume_in_turn import started
from scripts_in_turn import one_process_group

TINY = ("--tokens", 64, "--width", 32, "--heads", 2, "--layers", 2, "--batch", 7, "--micro-batch", 2, "--log-every", 1)
STEPS = 12
NOISY = ("--dropout", 0.3, "--schedule-steps", STEPS)


def main(folder: Path) -> None:
    destroy = one_process_group()

    def train(title: str, *options: object, out: str = "") -> None:
        started("trainer.py", title, "--text", folder / "text", *TINY, *options, "--out", folder / (out or title))

    with open(folder / f"{os.environ['RANK']}.txt", "w") as file, contextlib.redirect_stdout(file):
        train("plain", "--steps", STEPS, "--save-every", 5)
        train("layers", "--steps", STEPS, "--mesh", "1x2")
        train("bf16", "--steps", STEPS, "--dtype", "bf16")
        train("noisy", "--steps", STEPS, *NOISY)
        train("noise", "--steps", STEPS // 2, *NOISY)
        train("again", "--steps", STEPS, *NOISY, out="noise")
        train("learned", "--steps", 60, "--lr", 0.01)
        train("diverged", "--lr", 1e38, "--save-every", 3, "--log-every", 50)
        train("seed", "--seed", 2, out="plain")
        started("trainer.py", "text", "--text", folder / "nothing")
    destroy()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
