"""A small model with experts, which learns what comes next in this library's own source code."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import workshop_lib

from lessons.experts.layer import MixtureOfExperts

VOCABULARY = 256
CONTEXT = 4  # bytes that the model sees
WIDTH = 32
TOKENS = 512  # in a step, on all ranks together
CORPUS_BYTES = 400_000


class ByteModel(nn.Module):
    """Guesses a byte from the few before it: their embeddings are added, and one layer of experts looks at the sum.

    On any number of ranks, the weights start the same for a seed. route and through are the learner's functions.
    """

    def __init__(self, seed: int, hidden: int, experts: int, factor: float, comm, route: Callable, through: Callable):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(CONTEXT * VOCABULARY, WIDTH)  # a byte has another row at each place of the context
        nn.init.normal_(self.embed.weight, std=0.5)
        self.mixture = MixtureOfExperts(WIDTH, hidden, experts, 1, factor, comm, route, through)
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, context: Tensor) -> Tensor:  # [t, CONTEXT] becomes [t, VOCABULARY]
        x = self.embed(context + VOCABULARY * torch.arange(CONTEXT)).sum(dim=1)
        return self.logits(x + self.mixture(x))


class Corpus:
    """Random places in the library's source code; with `seed`, the same ones on any number of ranks."""

    def __init__(self, seed: int, comm):
        files = sorted(Path(workshop_lib.__file__).parent.rglob("*.py"))
        self.bytes = torch.tensor(list(b"".join(file.read_bytes() for file in files)[:CORPUS_BYTES]))
        self.generator = torch.Generator().manual_seed(seed)
        self.comm = comm

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """This rank's part of a step: a few bytes each [t, CONTEXT], and the byte that follows them [t]."""
        starts = torch.randint(len(self.bytes) - CONTEXT, (TOKENS,), generator=self.generator)
        mine = starts.chunk(self.comm.size)[self.comm.rank]
        pieces = self.bytes[mine[:, None] + torch.arange(CONTEXT + 1)]
        return pieces[:, :-1], pieces[:, -1]
