"""Scripts to take home, started with torchrun."""

import re

import torch

from workshop_lib.paths import SCRIPTS
from workshop_lib.ranks.launch import scripts
from workshop_lib.training.equivalence import largest_relative_difference


def assert_same_on_one_and_two_ranks(folder, capsys, log: str, script: str, *options) -> None:
    """Take three steps each, and compare the losses that the script prints as `log` says, and the weights it saves."""
    losses, weights = {}, {}
    for size in (1, 2):
        out = folder / f"{size}.pt"
        torchrun = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", size]
        scripts.run(*torchrun, SCRIPTS / script, "--steps", 3, "--out", out, *options)
        losses[size] = re.findall(log, capsys.readouterr().out)
        weights[size] = torch.load(out, weights_only=True)["model"]
    assert len(losses[1]) == 3 and losses[1] == losses[2]
    assert largest_relative_difference(weights[2], weights[1]) < 1e-3
