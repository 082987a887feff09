"""Loss and accuracy over all samples of all ranks: sums are added, never means averaged."""

import torch
from torch import nn
from torch.nn import functional

from workshop_lib.models import torch_cnn
from workshop_lib.training.backends.base import Backend

BATCH = 500


def metric_sums(loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Summed loss, correct answers and samples: float64 [3], which counts exactly to 2**53."""
    correct = (logits.argmax(dim=1) == labels).sum()
    return torch.stack([loss.double(), correct.double(), loss.new_tensor(len(labels)).double()])


@torch.inference_mode()
def evaluate(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, total: int, backend: Backend
) -> tuple[float, float]:
    """Mean loss and accuracy over `total` samples, of which each rank holds its own rows:
    images uint8 [n, 28, 28], labels uint8 [n]. All ranks call it and get the same.

    Raises RuntimeError when the ranks' rows together are not `total`.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=images.device)
    for batch, targets in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        logits, targets = model(torch_cnn.normalise(batch)), targets.long()
        loss = functional.cross_entropy(logits, targets, reduction="sum")
        sums += metric_sums(loss, logits, targets)
    loss, correct, samples = backend.sum(sums.cpu().numpy()).tolist()
    check_all_seen("test", int(samples), total)
    return loss / samples, correct / samples


def check_all_seen(what: str, seen: int, total: int) -> None:
    """Raise RuntimeError when the ranks together saw more or fewer samples than there are."""
    if seen != total:
        raise RuntimeError(
            f"the ranks together saw {seen} {what} samples instead of {total}: the shards "
            "overlap or leave samples out"
        )
