"""Run a learner's ring on emulated GPUs: the messages are real, and the clock is charged for a layer of Llama 3 8B."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from workshop_lib.machine import catalogue
from workshop_lib.machine.emulation import session
from workshop_lib.machine.emulation.clock import CLOCK

from lessons.context_parallelism.blocks import BlockAttention, Partial

WIDTH, KV_WIDTH = 4096, 1024  # of all query heads, and of all key heads
REAL_TOKENS = 16  # per rank, in the tensors that are really computed and sent
REAL_WIDTH = 4


class RingRun(NamedTuple):
    """What one rank did in a forward pass of the ring, in emulated milliseconds since all ranks began."""

    computing: list[tuple[float, float]]  # when each call of `attend` began and ended
    end_ms: float

    @property
    def waits(self) -> float:
        """The share of the time in which this rank doesn't compute."""
        return 1 - sum(end - begin for begin, end in self.computing) / self.end_ms


class ChargedAttention(BlockAttention):
    """Attention that moves the emulated clock: each score that is computed takes `score_s` seconds."""

    def __init__(self, positions: list[Tensor], rank: int, score_s: float):
        super().__init__(positions, rank)
        self.score_s = score_s
        self.computing: list[tuple[float, float]] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, source: int) -> Partial:
        begin_s = CLOCK.now_s
        before = self.scores
        part = super().__call__(query, key, value, source)
        CLOCK.compute(self.score_s * (self.scores - before))
        self.computing.append((1e3 * begin_s, 1e3 * CLOCK.now_s))
        return part


def run(
    ring: Callable, merge: Callable, order: Callable, tokens: int, flop_per_s: float, bytes_per_s: float
) -> RingRun:
    """Run a ring's forward pass for this many tokens per rank in bfloat16. All ranks call it, and it blocks.

    The tensors are small. Computing takes 4 * WIDTH operations per score of the declared tokens, and messages have
    their bytes. Every GPU has a node of its own. The ranks emulate nothing before and after.
    """
    h100 = catalogue.machine("h100")
    link = replace(h100.between, s_per_byte=1 / bytes_per_s)
    machine = replace(h100, devices_a_node=1, adapters=1, lateness=0.0, between=link)
    emulation = session.start(machine)
    try:
        CLOCK.profiled = True  # only `attend` is charged
        comm = emulation.comm
        emulation.places.scale = 2 * KV_WIDTH * tokens / (4 * REAL_WIDTH * REAL_TOKENS)
        positions = [order(REAL_TOKENS * comm.size, rank, comm.size) for rank in range(comm.size)]
        score_s = 4 * WIDTH * (tokens / REAL_TOKENS) ** 2 / flop_per_s
        attend = ChargedAttention(positions, comm.rank, score_s)
        ring(*torch.randn(3, 1, 1, REAL_TOKENS, REAL_WIDTH), attend, merge, comm)
        return RingRun(attend.computing, 1e3 * CLOCK.now_s)
    finally:
        session.stop()
