"""Train a small GPT as real projects do. Start it with: torchrun --standalone --nproc-per-node 2 trainer.py

The ranks form a mesh, data-parallel x tensor-parallel: --mesh 8x2 shares out sequences and weights among 8 (FSDP), and
cuts each layer in 2. Start it again with the same --out, on any number of ranks, and it continues.
"""

import argparse
import functools
import hashlib
import math
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

END = 256  # the token before and after each document; the others are its bytes
VOCABULARY = 320  # rounded up, so that tensor parallelism can cut it
NO_TARGET = -100  # cross_entropy leaves these out
CLIP = 1.0  # largest norm of the gradient
DECAY = 0.1  # of matrices
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PEAK_FLOPS = 989e12  # per second and device, for the MFU: an H100's in bf16


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} isn't at least 1")
    return value


def mesh(text):
    data, tensor = text.split("x")
    return positive(data), positive(tensor)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(__file__).parent, help="a folder of .py, .md and .txt files")
    parser.add_argument("--out", type=Path, default=Path("trainer"), help="folder of checkpoints, which all nodes see")
    parser.add_argument("--steps", type=positive, default=200)
    parser.add_argument("--schedule-steps", type=positive, help="length of the schedule, by default as many as --steps")
    parser.add_argument("--save-every", type=positive, default=50, help="steps between checkpoints and evaluations")
    parser.add_argument("--log-every", type=positive, default=10, help="steps between two lines")
    parser.add_argument("--mesh", type=mesh, help="data-parallel x tensor-parallel, by default without the latter")
    parser.add_argument("--batch", type=positive, default=16, help="sequences per step, on all ranks together")
    parser.add_argument("--micro-batch", type=positive, default=4, help="sequences per rank and forward pass")
    parser.add_argument("--tokens", type=positive, default=128, help="tokens per sequence")
    parser.add_argument("--width", type=positive, default=128)
    parser.add_argument("--heads", type=positive, default=4)
    parser.add_argument("--layers", type=positive, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=3e-3, help="largest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="of both passes, not of the weights")
    parser.add_argument("--compile", action="store_true", help="compile each block")
    args = parser.parse_args()

    if "WORLD_SIZE" not in os.environ:
        parser.error("it needs a launcher: torchrun --standalone --nproc-per-node 1 trainer.py")
    size = int(os.environ["WORLD_SIZE"])
    args.mesh = args.mesh or (size, 1)
    data, tensor = args.mesh
    wrong = {
        f"--mesh {data}x{tensor} isn't for {size} ranks: give two numbers with this product": data * tensor != size,
        f"--heads {args.heads} isn't a multiple of {tensor}, into which --mesh cuts them": args.heads % tensor != 0,
        f"--tokens {args.tokens} isn't a multiple of {tensor}, into which --mesh cuts them": args.tokens % tensor != 0,
        f"--width {args.width} isn't a multiple of --heads {args.heads}": args.width % args.heads != 0,
    }
    for sentence, is_wrong in wrong.items():
        if is_wrong:
            parser.error(sentence)
    return args


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
    # NCCL is for tensors on GPUs, and gloo for those on the host.
    backends = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    dist.init_process_group(backends, device_id=device)
    return device


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def pack(documents, length):
    """Pack documents into sequences: tokens and targets, as [2, sequences + 1, length].

    The last sequence is all padding, and the one before it may end with some.
    """
    row = [[END]]
    for document in documents:
        row += [np.frombuffer(document, np.uint8), [END]]
    row = np.concatenate(row)
    missing = -(len(row) - 1) % length + length
    tokens = np.pad(row[:-1], (0, missing), constant_values=END)
    targets = np.pad(row[1:], (0, missing), constant_values=NO_TARGET)
    return torch.from_numpy(np.stack([tokens, targets]).reshape(2, -1, length))


@functools.lru_cache(maxsize=2)  # a batch can reach into the next epoch
def order_of_epoch(seed, epoch, size):
    return np.random.default_rng([seed, epoch]).permutation(size)


class Data:
    """Packed documents, of which every tenth sequence is held out for evaluation; and this rank's share of them."""

    def __init__(self, args, mesh, device):
        self.args = args
        self.device = device
        self.group = mesh.get_group()
        self.rank = mesh.get_local_rank()
        self.ranks = mesh.size()
        files = sorted(file for file in args.text.glob("*") if file.suffix in (".py", ".md", ".txt"))
        documents = [file.read_bytes() for file in files]
        self.digest = hashlib.sha256(b"\0".join(documents)).hexdigest()[:12]
        self.packed = pack(documents, args.tokens)
        numbers = np.arange(self.packed.shape[1] - 1)
        self.held_out = numbers[numbers % 10 == 0]
        self.training = numbers[numbers % 10 > 0]
        if len(self.training) == 0:
            found = f"{len(files)} .py, .md and .txt files, too few for two sequences of {args.tokens} tokens"
            raise SystemExit(f"--text {args.text} has {found}: give more text.")

    def batch(self, step):
        """The sequences of a step, which depend on the seed and the step, and not on the ranks."""
        first = step * self.args.batch
        epochs, places = np.divmod(np.arange(first, first + self.args.batch), len(self.training))
        orders = [order_of_epoch(self.args.seed, epoch, len(self.training)) for epoch in epochs]
        return self.training[[order[place] for order, place in zip(orders, places, strict=True)]]

    def targets(self, numbers):
        """How many tokens of these sequences have a target, on all ranks together."""
        return int((self.packed[1, numbers] != NO_TARGET).sum())

    def micro_batches(self, numbers):
        """This rank's share of these sequences, as micro-batches [2, sequences, tokens]; all ranks have as many."""
        share = numbers[self.rank :: self.ranks]
        count = math.ceil(len(numbers) / self.ranks / self.args.micro_batch)
        filled = np.full(count * self.args.micro_batch, -1)  # sequence -1 is all padding
        filled[: len(share)] = share
        for part in np.split(filled, count):
            yield self.packed[:, part].to(self.device)


class Block(nn.Module):
    """A layer of a transformer. With tensor parallelism, a rank has only its share of the heads."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.head_width = width // heads
        self.norm1 = nn.RMSNorm(width)
        self.norm2 = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):  # [sequences, tokens, width], [sequences, 1, tokens, tokens]
        by_head = self.qkv(self.norm1(x)).unflatten(2, (-1, 3, self.head_width))
        query, key, value = by_head.transpose(1, 2).unbind(3)  # [sequences, heads, tokens, head_width] each
        # For sequences of many thousands of tokens on GPUs, FlexAttention skips what such a mask excludes.
        mixed = scaled_dot_product_attention(query, key, value, mask)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, args.width)
        self.position = nn.Embedding(args.tokens, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads, args.dropout) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.width)
        self.head = nn.Linear(args.width, VOCABULARY, bias=False)

    def forward(self, tokens, targets):  # [sequences, tokens] each
        """The sum of the losses of all tokens that have a target."""
        starts = tokens == END
        document = starts.cumsum(1)
        mask = (document[:, None, :, None] == document[:, None, None, :]).tril()  # earlier tokens of the same document
        place = torch.arange(tokens.shape[1], device=tokens.device)
        start = torch.where(starts, place, 0).cummax(1).values
        x = self.token(tokens) + self.position(place - start)
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False)  # recomputed in the backward pass, and not kept
        logits = self.head(self.norm(x)).float()
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET, reduction="sum")


def cut_layers(model, mesh):
    """Tensor parallelism: each rank holds a part of each layer, and between layers a part of each sequence."""
    part = Shard(1)  # dimension 1 of [sequences, tokens, width]
    plan = {
        "token": RowwiseParallel(input_layouts=Replicate(), output_layouts=part),
        "position": RowwiseParallel(input_layouts=Replicate(), output_layouts=part),
        "blocks.*.norm1": SequenceParallel(),
        "blocks.*.qkv": ColwiseParallel(input_layouts=part),
        "blocks.*.out": RowwiseParallel(output_layouts=part),
        "blocks.*.norm2": SequenceParallel(),
        "blocks.*.up": ColwiseParallel(input_layouts=part),
        "blocks.*.down": RowwiseParallel(output_layouts=part),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=part, output_layouts=Replicate()),
    }
    parallelize_module(model, mesh["tensor"], plan)


def build(args, mesh, device):
    """A GPT of which each rank holds its part. Initial values depend on the seed, and not on the ranks."""
    with torch.device("meta"):  # shapes without memory
        model = GPT(args)
    if mesh["tensor"].size() > 1:
        cut_layers(model, mesh)
    if args.compile:
        for block in model.blocks:
            block.compile()  # in place, so weights keep their names
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[args.dtype], reduce_dtype=torch.float32)
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh["data"], mp_policy=policy)

    model.to_empty(device=device)  # memory for this rank's part, with nothing in it
    generator = torch.Generator(device).manual_seed(args.seed)
    for name, parameter in model.named_parameters():
        whole = torch.ones(parameter.shape, device=device)  # one weight at a time
        if parameter.ndim > 1:
            scale = 0.02 / math.sqrt(2 * args.layers) if name.endswith(("out.weight", "down.weight")) else 0.02
            whole.normal_(0, scale, generator=generator)
        part = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.detach().to_local().copy_(part.to_local())
    return model


class Checkpoints:
    """A folder of distributed checkpoints. All ranks write their own parts, and any number of ranks can read them."""

    def __init__(self, folder, model, optimizer, run):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.model = model
        self.optimizer = optimizer
        self.run = run  # settings that a continued run must not change
        # The background's collectives must not mix with those of the training.
        self.group = dist.new_group(backend="gloo")
        self.writing = None
        self.kept = []  # checkpoints, oldest first

    def state(self, progress):
        weights, moments = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optimizer": moments, "progress": dict(progress)}

    def save(self, progress):
        """Copy the state. The copy is written in the background, while training goes on."""
        self.finish()
        self.kept.append(self.folder / f"step_{progress['step']:08}")
        state = self.state(progress) | {"run": self.run}
        # This writer copies in this thread. By default, DCP copies in another one, which also takes memory of GPU 0.
        writer = dcp.FileSystemWriter(self.kept[-1])
        self.writing = dcp.async_save(state, storage_writer=writer, process_group=self.group)

    def finish(self):
        """Wait until the last checkpoint is on the disk, or raise what went wrong. Then delete all but two."""
        if self.writing:
            self.writing.result()
            self.writing = None
            if dist.get_rank() == 0:
                for old in self.kept[:-2]:
                    shutil.rmtree(old)
            self.kept = self.kept[-2:]

    def load(self, progress):
        """Load the newest checkpoint that all ranks can read. Returns its progress, or what it was given."""
        # A checkpoint's file .metadata comes last, after all ranks have written.
        found = [sorted(file.parent for file in self.folder.glob("step_*/.metadata"))]
        dist.broadcast_object_list(found)  # what rank 0 found, so all ranks continue from the same one
        for place in reversed(found[0]):
            try:
                progress = self.read(place, progress)
                self.kept = [each for each in found[0] if each <= place]
                return progress
            except CheckpointException as error:
                say(f"{place} can't be read: {error}")
        if found[0]:
            raise SystemExit(f"--out {self.folder}: none of its checkpoints can be read. Delete it, or give another.")
        return progress

    def read(self, place, progress):
        """Load this checkpoint, whose part each rank needs may be in any rank's files. Returns its progress."""
        saved = {"run": dict(self.run)}
        dcp.load(saved, checkpoint_id=place)
        for name, value in self.run.items():
            if value != saved["run"][name]:
                other = f"has a run with --{name} {saved['run'][name]}, and you gave {value}"
                raise SystemExit(f"--out {self.folder} {other}: give the same, or another folder.")
        state = self.state(progress)
        dcp.load(state, checkpoint_id=place)
        weights, moments = state["model"], state["optimizer"]
        set_state_dict(self.model, self.optimizer, model_state_dict=weights, optim_state_dict=moments)
        return state["progress"]


def learning_rate(args, step):
    """It rises for a tenth of the schedule, and then falls like a cosine to a tenth of the largest."""
    total = args.schedule_steps or args.steps
    warmup = math.ceil(total / 10)
    fallen = min(1.0, max(0, step - warmup) / max(1, total - warmup))
    return args.lr * min((step + 1) / warmup, 0.55 + 0.45 * math.cos(math.pi * fallen))


def train_step(args, model, optimizer, data, step):
    """Return the loss of this rank's part of the batch, the norm of the gradient, and the tokens of the batch."""
    # Noise follows from these three numbers alone, so a checkpoint needs no state of random generators.
    torch.manual_seed(int(np.random.default_rng([args.seed, step, dist.get_rank()]).integers(2**62)))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(args, step)
    model.train()
    numbers = data.batch(step)
    tokens = data.targets(numbers)
    total = torch.zeros((), device=data.device)
    micro_batches = list(data.micro_batches(numbers))
    for number, micro_batch in enumerate(micro_batches, 1):
        # Reduce gradients only after the last micro-batch. Until then each rank holds whole gradients in fp32, so
        # delete this line if they don't fit.
        model.set_requires_gradient_sync(number == len(micro_batches))
        loss = model(*micro_batch) / tokens
        # FSDP divides by the number of data-parallel ranks; undo that, since the loss is already divided by all tokens.
        (loss * data.ranks).backward()
        total += loss.detach()
    gradients = [parameter.grad for parameter in model.parameters()]
    norm = nn.utils.get_total_norm(gradients).full_tensor()  # over both dimensions of the mesh
    nn.utils.clip_grads_with_norm_(model.parameters(), CLIP, norm)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm, tokens


@torch.no_grad()
def evaluate(model, data):
    """The mean loss of all tokens that are held out, over all ranks."""
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=data.device)
    for micro_batch in data.micro_batches(data.held_out):
        total += model(*micro_batch)
    dist.all_reduce(total, group=data.group)
    return total.item() / data.targets(data.held_out)


def flops_per_token(args, model):
    """Operations in both passes: 6 per weight that isn't looked up, and attention. Recomputing doesn't count."""
    weights = sum(parameter.numel() for parameter in (*model.blocks.parameters(), *model.head.parameters()))
    return 6 * weights + 12 * args.layers * args.width * args.tokens


def peak_memory_gb(device):
    if device.type != "cpu":
        return torch.accelerator.max_memory_allocated(device) / 1e9
    unit = 1 if sys.platform == "darwin" else 1000  # bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


@record  # torchrun's report then has the traceback of the rank that failed first
def main():
    args = parse_arguments()
    device = join()
    mesh = init_device_mesh(device.type, args.mesh, mesh_dim_names=("data", "tensor"))
    data = Data(args, mesh["data"], device)
    model = build(args, mesh, device)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True)
    run = {name: vars(args)[name] for name in ("seed", "batch", "tokens", "width", "heads", "layers")}
    checkpoints = Checkpoints(args.out, model, optimizer, run | {"text": data.digest})
    progress = checkpoints.load({"step": 0, "useful_s": 0.0, "started": time.time()})

    # Schedulers send a signal some time before they end a job. Start torchrun with --signals-to-handle
    # SIGTERM,SIGINT,SIGUSR1 --shutdown-timeout 120: by default it dies of SIGUSR1, and kills ranks 30 s after SIGTERM.
    signals = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: signals.append(number))
    peak_flops = dist.get_world_size() * PEAK_FLOPS
    logged_tokens, logged_s = 0, progress["useful_s"]
    stopped = False

    while progress["step"] < args.steps and not stopped:
        start = time.perf_counter()
        stop = torch.tensor(bool(signals), dtype=torch.int)
        dist.all_reduce(stop)  # ranks stop after the same step; on the host, so no GPU has to wait
        loss, norm, tokens = train_step(args, model, optimizer, data, progress["step"])
        progress["step"] += 1
        logged_tokens += tokens
        step = progress["step"]
        stopped = (stop > 0).item()
        save = stopped or step % args.save_every == 0 or step == args.steps
        log = save or step % args.log_every == 0
        if log:
            dist.all_reduce(loss, group=data.group)
            loss, norm = loss.item(), norm.item()  # wait for a GPU, so that its work is in the measured time
        progress["useful_s"] += time.perf_counter() - start
        if log:
            if not math.isfinite(loss + norm):
                checkpoints.finish()
                diverged = f"step {step}: the loss is {loss} and the gradient norm {norm}, so this step isn't saved"
                raise SystemExit(f"{diverged}. Start again with a --lr below {args.lr}.")
            speed = logged_tokens / (progress["useful_s"] - logged_s)
            logged_tokens, logged_s = 0, progress["useful_s"]
            mfu = speed * flops_per_token(args, model) / peak_flops
            goodput = progress["useful_s"] / (time.time() - progress["started"])
            used = f"MFU {mfu:.1%}, {peak_memory_gb(device):.2f} GB, goodput {goodput:.0%}"
            say(f"step {step}: loss {loss:.5f}, gradient norm {norm:.3f}, {speed:,.0f} tokens/s, {used}")
        if save:
            checkpoints.save(progress)
            if step < args.steps and not stopped:
                say(f"step {step}: held-out loss {evaluate(model, data):.5f}")

    checkpoints.finish()
    if progress["step"] < args.steps:
        say(f"stopped by a signal after step {progress['step']}. Start it again to continue.")
    else:
        say(f"loss {evaluate(model, data):.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
