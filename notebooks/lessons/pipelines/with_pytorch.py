"""PyTorch's pipelines in 11b_pipelines: a stage that notes what a schedule does with it."""

import torch
from torch.distributed.pipelining import PipelineStage

from workshop_lib.machine import world
from workshop_lib.training import rendezvous


def join() -> None:
    """Make the notebook's ranks PyTorch's ranks, too. Every rank must call it."""
    rendezvous.join_process_group(world.detect(), torch.device("cpu"))


class RecordedStage(PipelineStage):
    """A PipelineStage that appends to `done` what PyTorch does with it, in the words of the learner's schedules.

    chunk: the number of this rank's chunk, if the rank has several.
    """

    def __init__(self, layers: torch.nn.Module, number: int, stages: int, done: list[tuple], *chunk: int):
        super().__init__(layers, number, stages, torch.device("cpu"))
        self.done = done
        self.chunk = chunk

    def forward_one_chunk(self, i, *rest, **options):  # type: ignore[override]
        self.done.append(("F", i, *self.chunk))
        return super().forward_one_chunk(i, *rest, **options)

    def backward_one_chunk(self, i, *rest, **options):  # type: ignore[override]
        self.done.append(("B", i, *self.chunk))
        return super().backward_one_chunk(i, *rest, **options)
