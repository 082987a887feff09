"""A small GPT on a mesh of ranks. Start it with: torchrun --standalone --nproc-per-node 4 mesh.py --mesh 2x2"""

import argparse
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

options = {"mesh": "", "width": 64, "heads": 4, "layers": 2, "tokens": 32, "batch": 8, "steps": 20}
parser = argparse.ArgumentParser(description=__doc__)
for name, default in (options | {"text": Path(__file__), "vocabulary": 256, "dtype": "float32"}).items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):  # [n, t, w]
        by_head = self.qkv(self.norm1(x)).unflatten(2, (-1, 3, args.width // args.heads))  # the heads of this rank
        query, key, value = by_head.transpose(1, 2).unbind(3)  # [n, h, t, w / heads] each
        heads = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


distributed.init_process_group()
size = distributed.get_world_size()
args.mesh = args.mesh or f"{size}x1"  # without the option, FSDP alone
rows, columns = map(int, args.mesh.split("x"))
if rows * columns != size:
    raise SystemExit(f"--mesh {args.mesh}: {rows} times {columns} isn't the number of ranks, which is {size}.")
if args.batch % rows or args.heads % columns:
    shares = f"--batch {args.batch} among {rows} and --heads {args.heads} among {columns}"
    raise SystemExit(f"--mesh {args.mesh} can't share out {shares}: give multiples of {rows} and {columns}.")
if args.width % args.heads:
    raise SystemExit(f"--width {args.width} can't be cut into --heads {args.heads}: give a multiple of {args.heads}.")
mesh = distributed.init_device_mesh("cpu", (rows, columns), mesh_dim_names=("data", "tensor"))
plan = {"qkv": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
torch.manual_seed(1)
blocks = [parallelize_module(Block(args.width), mesh["tensor"], plan) for _ in range(args.layers)]
ends = nn.LayerNorm(args.width), nn.Linear(args.width, args.vocabulary)
model = nn.Sequential(nn.Embedding(args.vocabulary, args.width), *blocks, *ends)
policy = MixedPrecisionPolicy(param_dtype=getattr(torch, args.dtype), reduce_dtype=torch.float32)
for unit in (*blocks, model):
    fully_shard(unit, mesh=mesh["data"], mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)  # weights on one mesh and on two
text, share = torch.tensor(list(args.text.read_bytes())), args.batch // rows
for step in range(args.steps):
    first = step * args.batch + mesh["data"].get_local_rank() * share  # this rank's share of the samples
    starts = torch.arange(first, first + share) * 37 % (len(text) - args.tokens)
    window = text[starts[:, None] + torch.arange(args.tokens + 1)]  # [n, t + 1]
    logits = model(window[:, :-1]).flatten(0, 1).float()
    loss = nn.functional.cross_entropy(logits, window[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if distributed.get_rank() == 0 and step % 5 == 4:
        print(f"step {step + 1}: loss {loss.item():.3f} on the samples of rank 0")
distributed.destroy_process_group()
