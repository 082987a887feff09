"""A run's progress as text: what a terminal, or a notebook without widgets, shows."""

import sys

from tqdm import tqdm


class TextView:
    """One progress line while training; the ranks' output above it. Also the shape of any other view."""

    def __init__(self, n: int):
        self.n, self.bar, self.epochs_shown = n, None, 0
        self.stop_requested = False

    def output(self, lines: list[str]) -> None:
        """Show lines that ranks printed."""
        for line in lines:
            tqdm.write(line, file=sys.stdout) if self.bar else print(line, flush=True)

    def update(self, data: list[dict], elapsed_s: float, running: list[int]) -> None:
        """Called about ten times a second: what each rank published last, and who still runs."""
        lead = data[0]
        if "info" in lead and self.bar is None:
            total = lead["info"]["epochs"] * lead["info"]["steps_per_epoch"]
            self.bar = tqdm(total=total, unit="step", file=sys.stdout, leave=False, mininterval=0.5)
        if self.bar is not None and "step" in lead:
            self._step(lead["step"])
        for row in lead.get("epochs", [])[self.epochs_shown :]:
            self.output([epoch_line(row)])
            self.epochs_shown += 1

    def _step(self, step: dict) -> None:
        self.bar.set_postfix_str(f"loss {step['loss']:.3f}, {step['samples_per_s']:,.0f} samples/s", False)
        done = (step["epoch"] - 1) * step["steps_per_epoch"] + step["step"]
        self.bar.update(done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def epoch_line(row: dict) -> str:
    """One epoch's result in a line."""
    return (
        f"epoch {row['epoch']}: train loss {row['train_loss']:.4f}, test accuracy "
        f"{row['test_accuracy']:.2%}, {row['seconds']:.1f} s, {row['samples_per_s']:,.0f} samples/s"
    )
