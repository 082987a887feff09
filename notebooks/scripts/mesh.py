"""A small GPT on a mesh of ranks. Start it with: torchrun --standalone --nproc-per-node 4 mesh.py --mesh 2x2"""

import argparse
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

options = {"mesh": "1x1", "width": 64, "heads": 4, "layers": 2, "tokens": 32, "batch": 4, "steps": 20}
parser = argparse.ArgumentParser(description=__doc__)
for name, default in (options | {"text": Path(__file__), "vocabulary": 256, "dtype": "float32"}).items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
args = parser.parse_args()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(args.width, args.width, bias=False) for _ in range(4))

    def forward(self, x):  # [n, t, w], and as many heads as this rank has
        split = [f(x).unflatten(2, (-1, args.width // args.heads)) for f in (self.query, self.key, self.value)]
        y = nn.functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in split), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms, self.attention = nn.ModuleList(nn.LayerNorm(args.width) for _ in range(2)), Attention()
        self.mlp = nn.Sequential(nn.Linear(args.width, 4 * args.width), nn.GELU(), nn.Linear(4 * args.width, args.width))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


distributed.init_process_group()
shape = tuple(map(int, args.mesh.split("x")))
mesh = distributed.init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
once = {"input_layouts": (Replicate(),), "desired_input_layouts": (Replicate(),)}  # one allreduce for q, k and v
plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")} | {"mlp.0": ColwiseParallel()}
plan |= {"attention": PrepareModuleInput(**once), "attention.out": RowwiseParallel(), "mlp.2": RowwiseParallel()}
torch.manual_seed(1)
embed, blocks = nn.Embedding(args.vocabulary, args.width), [Block() for _ in range(args.layers)]
model = nn.Sequential(embed, *blocks, nn.LayerNorm(args.width), nn.Linear(args.width, args.vocabulary))
policy = MixedPrecisionPolicy(param_dtype=getattr(torch, args.dtype), reduce_dtype=torch.float32)
for block in blocks:
    fully_shard(parallelize_module(block, mesh["tensor"], plan), mesh=mesh["data"], mp_policy=policy)
fully_shard(model, mesh=mesh["data"], mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)  # weights on one mesh and on two
text = torch.tensor(list(args.text.read_bytes()))
for step in range(args.steps):
    first = (step * shape[0] + mesh["data"].get_local_rank()) * args.batch
    starts = torch.arange(first, first + args.batch) * 37 % (len(text) - args.tokens)
    window = text[starts[:, None] + torch.arange(args.tokens + 1)]  # [n, t + 1]
    logits = model(window[:, :-1]).flatten(0, 1).float()
    loss = nn.functional.cross_entropy(logits, window[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if distributed.get_rank() == 0 and step % 5 == 0:
        print(f"step {step}: loss {loss.item():.3f} on the samples of rank 0")
distributed.destroy_process_group()
