"""A tiny GPT with experts. Start it with: torchrun --standalone --nproc-per-node 2 expert_parallel.py

Each rank has its own sequences and its own part of the experts, so tokens travel to their experts and back.
"""

import argparse
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy, gelu, one_hot, scaled_dot_product_attention

WIDTH = 64
HEADS = 4
BLOCKS = 2
EXPERTS = 8
TOKENS = 64  # in a sequence


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(__file__), help="the file to learn; by default, this script")
    parser.add_argument("--sequences", type=int, default=16, help="sequences in a step, on all ranks together")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--k", type=int, default=2, help="experts per token")
    parser.add_argument("--capacity", type=float, default=1.25, help="of an expert, as a multiple of an even load")
    parser.add_argument("--balance", type=float, default=0.01, help="weight of the load-balance loss")
    parser.add_argument("--out", type=Path, default=Path("experts.pt"), help="file for the checkpoint")
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


class Exchange(torch.autograd.Function):
    """Send part r of a tensor to rank r, and return the parts that arrive. Gradients go back the same way."""

    @staticmethod
    def forward(ctx, buffer):
        arrived = torch.empty_like(buffer)
        dist.all_to_all_single(arrived, buffer.contiguous())
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.forward(ctx, gradient)


def route(probabilities, k):
    """The k most probable experts of each token, their probabilities, and each token's slot in the expert's queue."""
    gates, chosen = probabilities.topk(k, dim=1)
    wants = one_hot(chosen.T.flatten(), EXPERTS)  # all first choices, then all second ones
    before = wants.cumsum(dim=0) - wants
    slots = (before * wants).sum(dim=1).view(k, -1).T
    return chosen, gates, slots


class Experts(nn.Module):
    """Takes the place of a block's MLP. Each rank has its own part of `up` and `down`, and the same router."""

    def __init__(self, k, capacity):
        super().__init__()
        self.k = k
        self.capacity = capacity
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        # All ranks draw the weights of all experts, and keep their own. So they start the same on any number of ranks.
        count = EXPERTS // dist.get_world_size()
        mine = slice(count * dist.get_rank(), count * (dist.get_rank() + 1))
        up = torch.randn(EXPERTS, WIDTH, 4 * WIDTH) / WIDTH**0.5
        down = torch.randn(EXPERTS, 4 * WIDTH, WIDTH) / (4 * WIDTH) ** 0.5
        self.up = nn.Parameter(up[mine].clone())
        self.down = nn.Parameter(down[mine].clone())
        self.balance = torch.zeros(())
        self.dropped = torch.zeros(())

    def forward(self, x):  # [n, t, w]
        tokens = x.flatten(0, 1)
        probabilities = self.router(tokens).softmax(dim=1)
        chosen, gates, slots = route(probabilities, self.k)
        size = dist.get_world_size()
        capacity = math.ceil(self.capacity * self.k * len(tokens) / EXPERTS)
        kept = slots < capacity
        token = kept.nonzero()[:, 0]

        buffer = tokens.new_zeros(EXPERTS, capacity, WIDTH)
        buffer[chosen[kept], slots[kept]] = tokens[token]
        arrived = Exchange.apply(buffer).unflatten(0, (size, -1))  # [p, E / p, C, w]
        by_expert = arrived.transpose(0, 1).flatten(1, 2)  # [E / p, p C, w]
        results = gelu(by_expert @ self.up) @ self.down
        home = Exchange.apply(results.unflatten(1, (size, -1)).transpose(0, 1).flatten(0, 1))
        outputs = home[chosen[kept], slots[kept]] * gates[kept][:, None]

        load = chosen.flatten().bincount(minlength=EXPERTS).float()
        dist.all_reduce(load)  # the balance that counts is that of all ranks together
        self.balance = EXPERTS * (load / load.sum() * probabilities.mean(dim=0)).sum()
        self.dropped = 1 - kept.float().mean()
        return torch.zeros_like(tokens).index_add(0, token, outputs).view_as(x)


class Block(nn.Module):
    def __init__(self, k, capacity):
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.experts = Experts(k, capacity)

    def forward(self, x):  # [n, t, w]
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=2)
        query, key, value = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in parts)  # [n, h, t, d]
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.experts(self.norm_2(x))


class Gpt(nn.Module):
    def __init__(self, k, capacity):
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)  # one for each value of a byte
        self.position = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block(k, capacity) for _ in range(BLOCKS))
        self.logits = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))

    def forward(self, tokens):
        x = self.embed(tokens) + self.position.weight
        for block in self.blocks:
            x = block(x)
        return self.logits(x)


def average_gradients(model):
    """The mean over the ranks. An expert's gradient already is a sum over all ranks' tokens."""
    for name, p in model.named_parameters():
        if not name.endswith((".up", ".down")):
            dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def whole_state(model):
    """The weights of all ranks' experts in one state dictionary. All ranks call it."""
    state = {}
    for name, value in model.state_dict().items():
        if name.endswith((".up", ".down")):
            parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, value)
            value = torch.cat(parts)
        state[name] = value
    return state


@record  # torchrun's report then has the traceback of the rank that failed first
def main():
    args = parse_arguments()
    device = join()
    rank = dist.get_rank()
    size = dist.get_world_size()
    torch.set_num_threads(1)  # one core per process, however many processes there are
    if EXPERTS % size or args.sequences % size:
        raise SystemExit(f"{size} ranks: their number must divide {EXPERTS} experts and {args.sequences} sequences.")
    text = args.text.read_bytes()
    if len(text) <= TOKENS:
        raise SystemExit(f"--text {args.text}: a sequence takes {TOKENS + 1} bytes, but the file has {len(text)}.")
    text = torch.tensor(list(text))

    torch.manual_seed(1)  # all ranks start with the same weights, and draw the same sequences
    model = Gpt(args.k, args.capacity).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        firsts = torch.randint(len(text) - TOKENS, (args.sequences,)).chunk(size)[rank]
        batch = torch.stack([text[first : first + TOKENS + 1] for first in firsts]).to(device)
        loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        balance = sum(block.experts.balance for block in model.blocks) / BLOCKS
        optimizer.zero_grad()
        (loss + args.balance * balance).backward()
        average_gradients(model)
        optimizer.step()
        dropped = sum(block.experts.dropped for block in model.blocks) / BLOCKS
        seen = torch.stack([loss.detach(), balance.detach(), dropped])
        dist.all_reduce(seen)
        loss, balance, dropped = (seen / size).tolist()
        if rank == 0:
            speed = args.sequences * TOKENS / (time.perf_counter() - start)
            print(f"step {step}: {speed:,.0f} tokens/s, loss {loss:.4f}, balance {balance:.2f}, {dropped:.0%} dropped")
    state = whole_state(model)
    if rank == 0:
        temporary = args.out.with_suffix(".tmp")
        torch.save({"model": state}, temporary)
        temporary.replace(args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
