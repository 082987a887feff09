"""A tiny GPT with context parallelism. Start it with: torchrun --standalone --nproc-per-node 2 context_parallel.py

All ranks share one sequence of bytes, and every rank gathers the keys and values of all of them, as Llama 3 did.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

WIDTH = 64
HEADS = 4
BLOCKS = 2


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(__file__), help="the file to learn; by default, this script")
    parser.add_argument("--tokens", type=int, default=2048, help="bytes in the sequence")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("gpt.pt"), help="file for the checkpoint")
    return parser.parse_args()


def join():
    """Join the other ranks, and return this rank's own device: a GPU of its node, or the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":  # Apple's GPUs have no collectives
        dist.init_process_group("gloo")
        return torch.device("cpu")
    local_rank = dist.get_node_local_rank(fallback_rank=int(os.environ["RANK"]))
    # Some launchers show each rank one GPU only, which is number 0 on all ranks.
    device = torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group(device_id=device)
    return device


def zigzag(tokens, rank, size):
    """The positions of a rank's tokens: an early and a late chunk, so that all ranks have as much to compute."""
    chunks = torch.arange(tokens).chunk(2 * size)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])


class Gather(torch.autograd.Function):
    """All ranks' parts [n, h, t / p, d] as one tensor [n, h, t, d], in the order of the ranks."""

    @staticmethod
    def forward(ctx, part):
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=2)

    @staticmethod
    def backward(ctx, gradient):
        parts = [part.contiguous() for part in gradient.chunk(dist.get_world_size(), dim=2)]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts)  # each rank has found a part of each key's gradient
        return mine


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, in_order, ends):  # [n, t / p, w]
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=2)
        query, key, value = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in parts)  # [n, h, t / p, d]
        key = Gather.apply(key)[:, :, in_order]
        value = Gather.apply(value)[:, :, in_order]
        mixed = []
        for chunk, end in zip(query.chunk(2, dim=2), ends, strict=True):  # the early chunk, then the late one
            bias = causal_lower_right(chunk.shape[2], end)  # its last token sees all keys up to `end`
            mixed.append(scaled_dot_product_attention(chunk, key[:, :, :end], value[:, :, :end], bias))
        mixed = torch.cat(mixed, dim=2)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class Gpt(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)  # one for each value of a byte
        self.position = nn.Embedding(tokens, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.logits = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))

    def forward(self, tokens, positions, in_order, ends):
        x = self.embed(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x, in_order, ends)
        return self.logits(x)


@record  # torchrun's report then has the traceback of the rank that failed first
def main():
    args = parse_arguments()
    device = join()
    rank = dist.get_rank()
    size = dist.get_world_size()
    torch.set_num_threads(1)  # one core per process, however many processes there are
    text = args.text.read_bytes()
    if args.tokens % (2 * size) or len(text) <= args.tokens:
        raise SystemExit(f"--tokens {args.tokens}: give a multiple of {2 * size} below the text's {len(text)} bytes.")

    positions = [zigzag(args.tokens, each, size).to(device) for each in range(size)]
    mine = positions[rank]
    in_order = torch.cat(positions).argsort()  # of what is gathered, so that the keys are in the sequence's order
    ends = [int(chunk[-1]) + 1 for chunk in mine.chunk(2)]  # each chunk sees the keys up to its own last token
    text = torch.tensor(list(text), device=device)

    torch.manual_seed(1)  # all ranks start with the same weights
    model = Gpt(args.tokens).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        first = (step - 1) * args.tokens % (len(text) - args.tokens)  # each step has the sequence after the last one
        sequence = text[first : first + args.tokens + 1]
        tokens = sequence[:-1][mine]
        targets = sequence[1:][mine]  # shifted before it's cut: the next token may be another rank's
        logits = model(tokens[None], mine, in_order, ends)[0]
        loss = cross_entropy(logits, targets, reduction="sum") / args.tokens  # of all ranks, not of this one
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            speed = args.tokens / (time.perf_counter() - start)
            print(f"step {step}: {speed:,.0f} tokens/s, loss {total.item():.4f}")
    if rank == 0:
        temporary = args.out.with_suffix(".tmp")
        torch.save({"model": model.state_dict()}, temporary)
        temporary.replace(args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
