"""Llama under FSDP2, as torchtitan trains it: what a dry run times beside torchtitan's published speeds."""

import argparse
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

# Layers, width, heads, heads of keys and values, hidden width, vocabulary (Touvron et al. 2023, arXiv:2307.09288; Llama
# Team 2024, arXiv:2407.21783, table 3).
MODELS = {
    "llama3-8b": (32, 4096, 32, 8, 14336, 128256),
    "llama3-70b": (80, 8192, 64, 8, 28672, 128256),
    "llama2-13b": (40, 5120, 40, 40, 13824, 32000),
    "llama2-70b": (80, 8192, 64, 8, 28672, 32000),
}


class Block(nn.Module):
    def __init__(self, width: int, heads: int, shared_heads: int, hidden: int):
        super().__init__()
        self.heads, self.shared_heads = heads, shared_heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width // heads * shared_heads, bias=False)
        self.value = nn.Linear(width, width // heads * shared_heads, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):  # [sequences, tokens, width]
        y = self.norm1(x)
        parts = (self.query(y), self.heads), (self.key(y), self.shared_heads), (self.value(y), self.shared_heads)
        query, key, value = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part, heads in parts)
        repeats = self.heads // self.shared_heads
        key, value = (part.repeat_interleave(repeats, 1) for part in (key, value))
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


def every_second_product():
    """Contexts of a checkpoint that keeps attention and every second product, as torchtitan's "selective op" does."""
    seen = {False: 0, True: 0}

    def policy(context, operation, *_, **__):
        if operation == torch.ops.aten.mm.default:
            seen[context.is_recompute] += 1
            keep = seen[context.is_recompute] % 2 == 1
        else:
            keep = "scaled_dot_product" in operation.name()
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Llama(nn.Module):
    def __init__(self, layers, width, heads, shared_heads, hidden, vocabulary, recompute: str):
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, heads, shared_heads, hidden) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)
        self.out = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.recompute == "none":
                x = block(x)
            elif self.recompute == "full":
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = checkpoint(block, x, use_reentrant=False, context_fn=every_second_product)
        return self.out(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--recompute", choices=("none", "selective", "full"), default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("data",))
    model = Llama(*MODELS[args.model], args.recompute)
    shard = partial(fully_shard, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    for block in model.blocks:
        shard(block)
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.ones(args.sequences, args.tokens, dtype=torch.long)
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(tokens)
        cross_entropy(logits.float().flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
