"""A small GPT on a mesh of ranks. Start it with: torchrun --standalone --nproc-per-node 4 mesh.py --mesh 2x2"""

import argparse
import os
import re
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", help="ranks that share out samples x ranks that share a layer, such as 2x2")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32, help="tokens per sample")
    parser.add_argument("--batch", type=int, default=8, help="samples of all ranks per step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--text", type=Path, default=Path(__file__), help="file whose bytes are the tokens")
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--dtype", default="float32", help="type in which it computes, such as bfloat16")
    parser.add_argument("--clip", type=float, help="largest norm of the gradient; by default, it isn't clipped")
    return parser.parse_args()


def mesh_shape(args, size):
    """Return the two sizes of the mesh, or end with a sentence if the model can't be cut this way."""
    mesh = args.mesh or f"{size}x1"
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", mesh):
        raise SystemExit(f"--mesh {mesh}: give two whole numbers with an x between them, such as 2x2.")
    rows, columns = map(int, mesh.split("x"))
    if rows * columns != size:
        raise SystemExit(f"--mesh {mesh}: {rows} times {columns} isn't the number of ranks, which is {size}.")
    if args.batch % rows or args.heads % columns:
        shares = f"--batch {args.batch} among {rows} and --heads {args.heads} among {columns}"
        raise SystemExit(f"--mesh {mesh} can't share out {shares}: give multiples of {rows} and {columns}.")
    if args.width % args.heads:
        raise SystemExit(f"--width {args.width} isn't a multiple of --heads {args.heads}: give one that is.")
    return rows, columns


def join():
    """Join the other ranks, and return this rank's own device: a GPU of its node, or the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":  # Apple's GPUs have no collectives
        dist.init_process_group("gloo")
        return torch.device("cpu")
    # torchrun sets LOCAL_RANK. mpiexec and srun don't, but they usually number the ranks of a node consecutively.
    local_rank = dist.get_node_local_rank(fallback_rank=int(os.environ["RANK"]))
    # Some launchers show each rank one GPU only, which is number 0 on all ranks.
    device = torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    # The device comes first: NCCL takes the current one, and would start all ranks on GPU 0.
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group(device_id=device)
    return device


class Block(nn.Module):
    """A layer of a transformer. Its attention has as many heads as its weights on this rank have."""

    def __init__(self, width, heads):
        super().__init__()
        self.head_width = width // heads
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):  # [samples, tokens, width]
        by_head = self.qkv(self.norm1(x)).unflatten(2, (-1, 3, self.head_width))
        query, key, value = by_head.transpose(1, 2).unbind(3)  # [samples, heads, tokens, head_width] each
        heads = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


def build(args, mesh, device):
    """Return a GPT whose blocks are cut along one dimension of the mesh, and all of whose weights along the other."""
    plan = {"qkv": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, args.dtype), reduce_dtype=torch.float32)
    with torch.device("meta"):  # shapes without memory: no rank could hold the whole of a large model
        blocks = [parallelize_module(Block(args.width, args.heads), mesh["tensor"], plan) for _ in range(args.layers)]
        embedding = nn.Embedding(args.vocabulary, args.width)
        model = nn.Sequential(embedding, *blocks, nn.LayerNorm(args.width), nn.Linear(args.width, args.vocabulary))
    for unit in (*blocks, model):
        fully_shard(unit, mesh=mesh["data"], mp_policy=policy)
    model.to_empty(device=device)  # memory for this rank's shards, with nothing in it yet
    initialize(model)
    return model


def initialize(model):
    """Draw the weights. Each rank draws the same whole tensors, one at a time, and keeps its shard of each.

    So the model starts with the same weights on any mesh, on CPUs and on GPUs.
    """
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        whole = torch.empty(weight.shape, device=weight.device)
        if weight.dim() > 1:
            whole.normal_(std=0.02)
        else:
            whole.fill_(0 if name.endswith("bias") else 1)  # the others are the norms' factors
        shards = distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)
        weight.detach().to_local().copy_(shards.to_local())


def clip(parameters, largest):
    """Scale all gradients by one factor, so that their norm is at most `largest`.

    Blocks are on both dimensions of the mesh, and the other weights on one. A norm is computed on one mesh at a time.
    """
    on_mesh = {}
    for parameter in parameters:
        on_mesh.setdefault(parameter.device_mesh, []).append(parameter)
    norms = [get_total_norm([parameter.grad for parameter in each]) for each in on_mesh.values()]
    whole_norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total = torch.stack(whole_norms).norm()
    for each in on_mesh.values():
        clip_grads_with_norm_(each, largest, total)


@record  # torchrun's report then has the traceback of the rank that failed first
def main():
    args = parse_arguments()
    device = join()
    rows, columns = mesh_shape(args, dist.get_world_size())
    mesh = init_device_mesh(device.type, (rows, columns), mesh_dim_names=("data", "tensor"))
    model = build(args, mesh, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    text = torch.tensor(list(args.text.read_bytes()), device=device)

    share = args.batch // rows
    for step in range(args.steps):
        # The ranks of a row have the same samples, because together they are one network.
        first = step * args.batch + mesh["data"].get_local_rank() * share
        starts = torch.arange(first, first + share, device=device) * 37 % (len(text) - args.tokens)
        window = text[starts[:, None] + torch.arange(args.tokens + 1, device=device)]  # [samples, tokens + 1]
        logits = model(window[:, :-1]).float()
        loss = cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if args.clip is not None:
            clip(model.parameters(), args.clip)
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.3f} on the samples of rank 0")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
