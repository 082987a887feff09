"""A small vision transformer, written to be read from top to bottom (Dosovitskiy et al. 2021, arXiv:2010.11929).

    an image        is cut into patches, as a text is cut into words; each patch becomes a vector, a token
    each block      lets every token look at all others (attention), and then works on each token alone (MLP)
    the mean token  gives one logit per class

The blocks are GPT-2's (Radford et al. 2019): each one normalizes what it reads, and adds its result to its input. With
`causal`, a token sees only itself and the tokens before it. That is the only other thing that a language model needs.

Shapes in comments: n images, t tokens, w numbers per token (the width), h heads with d = w / h numbers each.
There is no dropout, for the reason given in torch_cnn.py.
"""

import math

import torch
from torch import nn

MNIST = (28, 28)  # height and width of MNIST's images, in pixels
# Pixels; a 28 x 28 image has 5 x 5 patches, and neighboring patches overlap by 3 pixels.
PATCH = 8
STRIDE = 5
WIDTH = 64
HEADS = 4
DEPTH = 3


class Tokens(nn.Module):
    """Cuts images into square patches and turns each patch into a token that knows where it was."""

    def __init__(self, width: int, shape: tuple[int, int] = MNIST):
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, width)
        # The position tells one place from another. Without it, shuffled patches would be the same image. It starts as
        # large as the rest of the token. At the usual 0.02, learning which place is which would take the first epoch.
        rows, columns = ((side - PATCH) // STRIDE + 1 for side in shape)
        self.position = nn.Parameter(torch.randn(rows * columns, width))  # [t, w]

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # [n, 1, 28, 28]
        patches = images.unfold(2, PATCH, STRIDE).unfold(3, PATCH, STRIDE)  # [n, 1, 5, 5, 8, 8]
        return self.embed(patches.flatten(4).flatten(1, 3)) + self.position  # [n, 25, 64] becomes [n, t, w]


class Attention(nn.Module):
    """Every token queries all tokens, and takes the mean of their values, weighted by how well their keys match.

    Each head has its own queries, keys and values, and needs nothing from the other heads, so the heads can be split
    among ranks. That is why `by_head` takes the number of heads from the shape and not from the constructor.
    """

    def __init__(self, width: int, heads: int, causal: bool = False):
        super().__init__()
        self.head_width = width // heads
        self.causal = causal
        self.query = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        # A bias would add the same number to all scores of a query, which softmax ignores. Its gradient would be pure
        # rounding error, and Adam would turn this error into steps that differ with the number of ranks.
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
    """Two linear layers that work on each token alone, with four times the width between them."""

    def __init__(self, width: int):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [n, t, w]
        return self.down(nn.functional.gelu(self.up(x)))  # [n, t, 4w] in between, then [n, t, w]


class Block(nn.Module):
    """Attention, then the MLP. Both add to their input, so that gradients have a straight path back."""

    def __init__(self, width: int, heads: int, causal: bool = False):
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [n, t, w]
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Head(nn.Module):
    """Computes the logits from the mean of all tokens."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.classes = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [n, t, w]
        return self.classes(self.norm(x).mean(dim=1))  # [n, classes]


def vit(classes: int, shape: tuple[int, int] = MNIST, depth: int = DEPTH) -> nn.Sequential:
    """Return the network from images [n, 1, 28, 28] to logits [n, classes], with 156,298 parameters for 10 classes.

    Its parts follow one another in a list. FSDP can gather these parts one by one, and a pipeline can cut the list
    anywhere. In images of another shape, the last rows and columns that do not fill a patch are left out.
    """
    blocks = (Block(WIDTH, HEADS) for _ in range(depth))
    model = nn.Sequential(Tokens(WIDTH, shape), *blocks, Head(WIDTH, classes))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model
