"""Run on two or four ranks: runs of trainer.py in one process, so that PyTorch is imported once.

    trainer_in_turn.py FOLDER    with the documents in FOLDER/text

What each rank prints goes into FOLDER/<rank>.txt on two ranks, and into FOLDER/four/<rank>.txt on four.
"""

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

from resume_in_turn import started
from scripts_in_turn import SCRIPTS, one_process_group

TINY = ("--tokens", 64, "--width", 32, "--heads", 2, "--layers", 2, "--batch", 7, "--micro-batch", 2, "--log-every", 1)
STEPS = 12
FEW = ("--steps", 4, "--schedule-steps", STEPS)
NOISY = ("--dropout", 0.3, "--schedule-steps", STEPS)


def with_few_logits(folder: Path) -> None:
    """Train with layers that are cut, and at most 16 tokens' logits at a time; print how many of them a rank has."""
    spec = importlib.util.spec_from_file_location("trainer", SCRIPTS / "trainer.py")
    trainer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trainer)
    trainer.LOGITS = 16 * 320
    loss = trainer.cross_entropy
    shapes = set()

    def noted(logits, *args, **options):
        shapes.add(tuple(logits.to_local().shape))
        return loss(logits, *args, **options)

    trainer.cross_entropy = noted
    print("--- chunks", flush=True)
    words = "--text", folder / "text", *TINY, *FEW, "--mesh", "1x2", "--out", folder / "chunks"
    sys.argv = ["trainer.py", *map(str, words)]
    trainer.main()
    print(f"logits {shapes}", flush=True)


def main(folder: Path) -> None:
    destroy = one_process_group()
    ranks = os.environ["WORLD_SIZE"]
    place = folder if ranks == "2" else folder / "four"
    place.mkdir(exist_ok=True)

    def train(title: str, *options: object, out: str = "") -> None:
        started("trainer.py", title, "--text", folder / "text", *TINY, *options, "--out", place / (out or title))

    with open(place / f"{os.environ['RANK']}.txt", "w") as file, contextlib.redirect_stdout(file):
        if ranks == "4":
            train("replicas", *FEW, "--mesh", "2x2x1")
            train("cut", *FEW, "--mesh", "2x1x2")
        else:
            train("plain", "--steps", STEPS, "--save-every", 5)
            train("layers", *FEW, "--mesh", "1x2")
            train("recomputed", "--steps", 7, "--schedule-steps", STEPS, "--recompute", "blocks", "--profile")
            with_few_logits(folder)
            train("bf16", "--steps", STEPS, "--dtype", "bf16")
            train("noisy", "--steps", STEPS, *NOISY)
            train("noise", "--steps", STEPS // 2, *NOISY)
            train("again", "--steps", STEPS, *NOISY, out="noise")
            train("learned", "--steps", 60, "--lr", 0.01)
            train("diverged", "--lr", 1e38, "--save-every", 3, "--log-every", 50)
            train("seed", "--seed", 2, out="plain")
    destroy()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
