"""A tiny GPT that reads bytes, for 11c_context_parallelism: each byte of a text predicts the next one."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from workshop_lib.training.models import vit

VOCABULARY = 256  # every value that a byte can have
WIDTH = 64
HEADS = 4
DEPTH = 2
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]


def text(tokens: int) -> Tensor:
    """The first bytes of the vision transformer's own source, and one more than `tokens`: [tokens + 1]."""
    return torch.tensor(list(Path(vit.__file__).read_bytes()[: tokens + 1]))


class MixingAttention(vit.Attention):
    """A block's attention, in which mix(query, key, value) takes the place of everything between tokens."""

    def __init__(self, mix: Mix):
        super().__init__(WIDTH, HEADS)
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:  # [n, t, w]
        query, key, value = (self.by_head(layer(x)) for layer in (self.query, self.key, self.value))  # [n, h, t, d]
        return self.out(self.mix(query, key, value).transpose(1, 2).flatten(2))  # [n, t, w]


class TinyGpt(nn.Module):
    """Tokens and their positions become logits for the token that follows each.

    mix(query, key, value) is the attention between tokens. It's the only part that looks at more than one token.
    """

    def __init__(self, longest: int, mix: Mix, seed: int = 1):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(longest, WIDTH)
        self.blocks = nn.Sequential(*(vit.Block(WIDTH, HEADS) for _ in range(DEPTH)))
        for block in self.blocks:
            block.attention = MixingAttention(mix)
        self.norm = nn.LayerNorm(WIDTH)
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:  # [n, t] and [t]
        x = self.embed(tokens) + self.position(positions)  # [n, t, w]
        return self.logits(self.norm(self.blocks(x)))  # [n, t, VOCABULARY]
