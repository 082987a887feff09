"""A tiny GPT that writes digits, and mail for tensors, for the trainer and the generators of 07f."""

import torch
from torch import Tensor, nn

from workshop_lib.training.models.vit import Block

from lessons.waiting_less.staleness import complete

DIGITS = 10
ANSWER = 3  # digits per answer
SUMS = 28  # prompts: all sums that an answer can have
WIDTH = 32
HEADS = 2


class Policy(nn.Module):
    """A GPT with one block. A text [1 + ANSWER] is a number, the prompt, and then the digits that the GPT writes.

    Before training, all digits are equally likely.
    """

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(SUMS, WIDTH)
        self.position = nn.Embedding(ANSWER, WIDTH)
        self.block = Block(WIDTH, HEADS, causal=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.logits = nn.Linear(WIDTH, DIGITS)
        nn.init.zeros_(self.logits.weight)
        nn.init.zeros_(self.logits.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [n, t, DIGITS] of the digit that follows each token of the texts' beginnings [n, t]."""
        x = self.embed(tokens) + self.position.weight[: tokens.shape[1]]  # [n, t, w]
        return self.logits(self.norm(self.block(x)))

    def log_probabilities(self, texts: Tensor) -> Tensor:
        """The logarithm of the probability of each written digit, [n, ANSWER], in texts [n, 1 + ANSWER]."""
        return self(texts[:, :-1]).log_softmax(dim=2).gather(2, texts[:, 1:, None])[:, :, 0]

    @torch.no_grad()
    def write(self, prompts: Tensor, random: torch.Generator) -> Tensor:
        """Texts [n, 1 + ANSWER] that begin with these prompts [n]."""
        texts = prompts[:, None]
        for _ in range(ANSWER):
            likely = self(texts)[:, -1].softmax(dim=1)
            texts = torch.cat([texts, torch.multinomial(likely, 1, generator=random)], dim=1)
        return texts


class Mail:
    """Sends tensors to other ranks without waiting for them. The tensors between two ranks arrive in order.

    The time limit of the call on the ranks ends what waits forever.
    """

    def __init__(self, comm):
        self.comm = comm
        self.sent: list = []

    def send(self, tensor: Tensor, rank: int) -> None:
        """Begin to send a tensor, and return at once. One message of its bytes. Leave the tensor's values alone."""
        self.sent.append(self.comm.Isend(tensor.detach().view(torch.uint8).numpy(), rank))

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, rank: int) -> Tensor:
        """Block until the next tensor from a rank has arrived, and return it."""
        tensor = torch.empty(shape, dtype=dtype)
        complete(self.comm.Irecv(tensor.view(torch.uint8).numpy(), rank))
        return tensor

    def close(self) -> None:
        """Block until all tensors have been received."""
        for request in self.sent:
            complete(request)
