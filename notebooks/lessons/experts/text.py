"""A small GPT with experts in its last block, which reads the bytes of this library's own source code."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import workshop_lib

from lessons.context_parallelism.gpt import WIDTH, TinyGpt
from lessons.experts.layer import MixtureOfExperts

EXPERTS = 8
SEQUENCES = 16  # in a step, on all ranks together
TOKENS = 64  # in a sequence
CORPUS_BYTES = 400_000
LR = 0.003
ROUTER_LR = 0.03


class ExpertGpt(TinyGpt):
    """Two blocks; in the second one, experts take the place of the MLP.

    make_experts(width, experts) returns them. On any number of ranks, the weights start the same for a seed.
    """

    def __init__(self, seed: int, make_experts: Callable[[int, int], MixtureOfExperts]):
        super().__init__(TOKENS, partial(scaled_dot_product_attention, is_causal=True), seed)
        nn.init.normal_(self.embed.weight, std=0.5)
        nn.init.normal_(self.position.weight, std=0.1)
        self.mixture = make_experts(WIDTH, EXPERTS)
        self.blocks[1].mlp = self.mixture

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]  # [n, t] becomes [n, t, VOCABULARY]
        return super().forward(tokens, torch.arange(TOKENS))

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW, with a router that learns ten times as fast as everything else."""
        router = self.mixture.router.weight
        others = [p for p in self.parameters() if p is not router]
        groups: list[dict] = [{"params": others}, {"params": [router], "lr": ROUTER_LR}]
        return torch.optim.AdamW(groups, lr=LR)


class Corpus:
    """Random pieces of the library's source code; with `seed`, the same ones on any number of ranks."""

    def __init__(self, seed: int, comm):
        files = sorted(Path(workshop_lib.__file__).parent.rglob("*.py"))
        self.bytes = torch.tensor(list(b"".join(file.read_bytes() for file in files)[:CORPUS_BYTES]))
        self.generator = torch.Generator().manual_seed(seed)
        self.comm = comm

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """This rank's sequences of a step, and for each byte the one that follows it: [n, t] each."""
        starts = torch.randint(len(self.bytes) - TOKENS, (SEQUENCES,), generator=self.generator)
        mine = starts.chunk(self.comm.size)[self.comm.rank]
        pieces = torch.stack([self.bytes[start : start + TOKENS + 1] for start in mine])
        return pieces[:, :-1], pieces[:, 1:]
