"""A small vision transformer, to be read from top to bottom (Dosovitskiy et al. 2021, arXiv:2010.11929).

    an image            cut into patches, as a text into words; each becomes a vector, a token
    each of the blocks  attention lets every token look at all others, then an MLP works on each token alone
    the mean token      one logit per class

The blocks are those of GPT-2 (Radford et al. 2019): each adds to its input, and normalises what it reads. With
`causal` a token sees only itself and those before it, which is all that a language model needs besides.

Shapes in comments: n images, t tokens, w numbers per token (the width), h heads with d = w / h numbers each.
There is no dropout, for the reason given in torch_cnn.py.
"""

import math

import torch
from torch import nn

MNIST = (28, 28)  # height and width of its images, in pixels
PATCH, STRIDE = 8, 5  # pixels: 5 x 5 patches of 28 x 28, and each shares a border 3 wide with its neighbours
WIDTH, HEADS, DEPTH = 64, 4, 3


class Tokens(nn.Module):
    """Cuts images into square patches and makes each a token that knows where it was."""

    def __init__(self, width: int, shape: tuple[int, int] = MNIST):
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, width)
        # What tells one place from another: without it, shuffled patches would be the same image. It starts as
        # large as the rest of the token; at the usual 0.02, the first epoch would go into finding out where is where.
        rows, columns = ((side - PATCH) // STRIDE + 1 for side in shape)
        self.position = nn.Parameter(torch.randn(rows * columns, width))  # [t, w]

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # [n, 1, 28, 28]
        patches = images.unfold(2, PATCH, STRIDE).unfold(3, PATCH, STRIDE)  # [n, 1, 5, 5, 8, 8]
        return self.embed(patches.flatten(4).flatten(1, 3)) + self.position  # [n, 25, 64], then [n, t, w]


class Attention(nn.Module):
    """Every token asks all tokens, and takes a mean of their values, weighted by how well their keys fit.

    Each head has its own queries, keys and values, and needs nothing of the other heads: heads can be shared out
    among ranks. That's why their number is taken from the shape and not from the constructor.
    """

    def __init__(self, width: int, heads: int, causal: bool = False):
        super().__init__()
        self.head_width, self.causal = width // heads, causal
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        # A bias would add the same to all scores of a query, which softmax does not see: its gradient would be
        # nothing but rounding, and Adam would make steps of that, other ones on every number of ranks.
        self.key = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [n, t, w]
        query, key, value = (self.by_head(layer(x)) for layer in (self.query, self.key, self.value))  # [n, h, t, d]
        scores = query @ key.transpose(2, 3) / math.sqrt(self.head_width)  # [n, h, t, t]
        if self.causal:
            later = torch.ones(scores.shape[2:], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        mixed = scores.softmax(dim=3) @ value  # [n, h, t, d]
        return self.out(mixed.transpose(1, 2).flatten(2))  # [n, t, w]

    def by_head(self, x: torch.Tensor) -> torch.Tensor:  # [n, t, w]
        return x.unflatten(2, (-1, self.head_width)).transpose(1, 2)  # [n, h, t, d]


class Mlp(nn.Module):
    """Two linear layers on each token alone; between them it is four times as wide."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [n, t, w]
        return self.down(nn.functional.gelu(self.up(x)))  # [n, t, w], and [n, t, 4w] on the way


class Block(nn.Module):
    """Attention, then the MLP. Both add to their input, so that a gradient finds a straight way back."""

    def __init__(self, width: int, heads: int, causal: bool = False):
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.norm_2, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [n, t, w]
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Head(nn.Module):
    """The mean of all tokens, and from it the logits."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.norm, self.classes = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [n, t, w]
        return self.classes(self.norm(x).mean(dim=1))  # [n, classes]


def vit(
    classes: int, shape: tuple[int, int] = MNIST, width: int = WIDTH, heads: int = HEADS, depth: int = DEPTH
) -> nn.Sequential:
    """The network, images [n, 1, 28, 28] to logits [n, classes]: 156,298 parameters as it is. Its parts follow one
    another in a list, which FSDP gathers one by one, and a pipeline can cut anywhere.

    Of images of another shape, the last rows and columns that don't fill a patch are left out."""
    blocks = (Block(width, heads) for _ in range(depth))
    model = nn.Sequential(Tokens(width, shape), *blocks, Head(width, classes))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model
