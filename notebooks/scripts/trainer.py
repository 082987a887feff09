"""Train a small GPT as real projects do. Start it with: torchrun --standalone --nproc-per-node 2 trainer.py

The ranks form a mesh, data-parallel x tensor-parallel: --mesh 8x2 shares out sequences and weights among 8 (FSDP), and
cuts each layer in 2. Start it again with the same --out, on any number of ranks, and it continues.
"""

import argparse
import functools
import hashlib
import math
import os
import shutil
import signal
import time
from datetime import timedelta
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

VOCABULARY = 256  # a token is a byte
END = 0  # stands before and after each document, which therefore can't contain it
NO_TARGET = -100  # cross_entropy leaves these out
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CLIP = 1.0  # largest norm of the gradient
DECAY = 0.1  # of matrices
PATIENCE = timedelta(minutes=10)  # for ranks that compile or read first; new_group doesn't inherit it


def number(kind, fits, description):
    """A type for argparse, which accepts only numbers that fit."""

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan  # which fits nowhere
        if not fits(value):
            raise argparse.ArgumentTypeError(f"{text} isn't {description}")
        return value

    return parse


def parse_arguments():
    count = number(int, lambda value: value >= 1, "a whole number of at least 1")
    seed = number(int, lambda value: value >= 0, "a whole number of at least 0")
    positive = number(float, lambda value: 0 < value < math.inf, "a number above 0")
    share = number(float, lambda value: 0 <= value < 1, "a number from 0 to below 1")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(__file__).parent, help="a folder of .py, .md and .txt files")
    parser.add_argument("--out", type=Path, default=Path("trainer"), help="folder of checkpoints, which all nodes see")
    parser.add_argument("--steps", type=count, default=200)
    parser.add_argument("--schedule-steps", type=count, help="length of the schedule, by default as many as --steps")
    parser.add_argument("--save-every", type=count, default=50, help="steps between two checkpoints and evaluations")
    parser.add_argument("--log-every", type=count, default=10, help="steps between two lines")
    parser.add_argument("--mesh", help="data-parallel x tensor-parallel, by default without the latter")
    parser.add_argument("--batch", type=count, default=16, help="sequences per step, on all ranks together")
    parser.add_argument("--micro-batch", type=count, default=4, help="sequences per rank and forward pass")
    parser.add_argument("--tokens", type=count, default=128, help="tokens per sequence")
    parser.add_argument("--width", type=count, default=128)
    parser.add_argument("--heads", type=count, default=4)
    parser.add_argument("--layers", type=count, default=4)
    parser.add_argument("--dropout", type=share, default=0.0)
    parser.add_argument("--lr", type=positive, default=3e-3, help="largest learning rate")
    parser.add_argument("--seed", type=seed, default=1)
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="of both passes; weights and sums stay in fp32")
    parser.add_argument("--recompute", action=argparse.BooleanOptionalAction, default=True, help="blocks' activations")
    parser.add_argument("--compile", action="store_true", help="compile each block")
    parser.add_argument("--peak-tflops", type=positive, default=989, help="of a device, for the MFU: an H100's in bf16")
    return parser.parse_args()


def mesh_shape(args, size):
    """Return the two sizes of the mesh, or end with a sentence if the model can't be cut this way."""
    mesh = args.mesh or f"{size}x1"
    data, _, tensor = mesh.partition("x")
    if not (data.isdecimal() and tensor.isdecimal()):
        raise SystemExit(f"--mesh {mesh}: give two whole numbers with an x between them, such as 2x2.")
    if int(data) * int(tensor) != size:
        raise SystemExit(f"--mesh {mesh}: {data} times {tensor} isn't the number of ranks, which is {size}.")
    if args.width % args.heads:
        raise SystemExit(f"--width {args.width} isn't a multiple of --heads {args.heads}: give one that is.")
    for name, number in {"--heads": args.heads, "--tokens": args.tokens, "vocabulary": VOCABULARY}.items():
        if number % int(tensor):
            raise SystemExit(f"--mesh {mesh}: {name} {number} can't be cut into {tensor} equal parts.")
    return int(data), int(tensor)


def join():
    """Join the other ranks, and return this rank's own device: a GPU of its node, or the CPU."""
    if "RANK" not in os.environ:
        raise SystemExit("RANK isn't set: start it with torchrun --standalone --nproc-per-node 1 trainer.py")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":  # Apple's GPUs have no collectives
        torch.set_num_threads(1)  # one core per process, however many processes there are
        dist.init_process_group("gloo", timeout=PATIENCE)
        return torch.device("cpu")
    local_rank = dist.get_node_local_rank(fallback_rank=int(os.environ["RANK"]))
    # Some launchers show each rank one GPU only, which is number 0 on all ranks.
    device = torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    # The device comes first: NCCL takes the current one, and would start all ranks on GPU 0.
    torch.accelerator.set_device_index(device.index)
    # NCCL is for tensors on GPUs, and gloo for those on the host.
    backends = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    dist.init_process_group(backend=backends, device_id=device, timeout=PATIENCE)
    return device


def one_seed(*numbers):
    """A seed for this combination of numbers. Other combinations have other seeds."""
    return int(np.random.default_rng(numbers).integers(2**62))


def require_same(settings, others, whose, remedy):
    """End with a sentence if one of these settings differs from the others."""
    for name, value in settings.items():
        if value != others[name]:
            raise SystemExit(f"{whose} --{name.replace('_', '-')} {others[name]}, and you gave {value}: {remedy}.")


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


# --- data


def read_documents(folder):
    """The texts in a folder, one document each. Ends with a sentence if there are none, or if one isn't text."""
    texts = [path for path in folder.glob("*") if path.suffix in (".py", ".md", ".txt") and path.is_file()]
    files = sorted(path for path in texts if path.stat().st_size)
    if not files:
        raise SystemExit(f"--text {folder}: this folder has no .py, .md or .txt file with text in it.")
    documents = [file.read_bytes() for file in files]
    for file, document in zip(files, documents, strict=True):
        if END in document:
            raise SystemExit(f"--text {folder}: {file.name} contains a byte 0, so it isn't text. Take it out.")
    return documents


def pack(documents, length):
    """Pack documents into sequences: tokens, targets, and positions in the document, as [3, sequences + 1, length].

    Long documents are cut into pieces. A piece that doesn't fit any more starts the next sequence, so some sequences
    end with padding, and they have unequal numbers of targets. The last sequence is all padding.
    """
    padding = np.stack([np.full(length, END), np.full(length, NO_TARGET), np.arange(length)])
    sequences = []
    free = 0
    for document in documents:
        text = np.frombuffer(bytes([END]) + document + bytes([END]), np.uint8)
        for first in range(0, len(text) - 1, length):
            piece = text[first : first + length + 1]
            size = len(piece) - 1
            if size > free:
                sequences.append(padding.copy())
                free = length
            sequences[-1][:, length - free : length - free + size] = piece[:-1], piece[1:], np.arange(size)
            free -= size
    return torch.from_numpy(np.stack([*sequences, padding], axis=1))


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
        documents = read_documents(args.text)
        self.digest = hashlib.sha256(bytes([END]).join(documents)).hexdigest()[:12]
        self.packed = pack(documents, args.tokens)
        numbers = np.arange(self.packed.shape[1] - 1)
        self.held_out = numbers[numbers % 10 == 0]
        self.training = numbers[numbers % 10 > 0]
        if len(self.training) == 0:
            raise SystemExit(f"--text {args.text} fills one sequence of {args.tokens} tokens only: give more text.")

    def batch(self, first):
        """The batch that begins with this sequence of all epochs. It depends on the seed, and not on the ranks."""
        epochs, places = np.divmod(np.arange(first, first + self.args.batch), len(self.training))
        orders = [order_of_epoch(self.args.seed, epoch, len(self.training)) for epoch in epochs]
        return self.training[[order[place] for order, place in zip(orders, places, strict=True)]]

    def targets(self, numbers):
        """How many tokens of these sequences have a target, on all ranks together."""
        return int((self.packed[1, numbers] != NO_TARGET).sum())

    def micro_batches(self, numbers):
        """This rank's share of these sequences, as micro-batches [3, sequences, tokens]; all ranks have as many."""
        share = numbers[self.rank :: self.ranks]
        count = math.ceil(len(numbers) / self.ranks / self.args.micro_batch)
        filled = np.full(count * self.args.micro_batch, -1)  # sequence -1 is all padding
        filled[: len(share)] = share
        return [self.packed[:, part] for part in np.split(filled, count)]


# --- model


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
        self.recompute = args.recompute
        self.token = nn.Embedding(VOCABULARY, args.width)
        self.position = nn.Embedding(args.tokens, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads, args.dropout) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.width)
        self.head = nn.Linear(args.width, VOCABULARY, bias=False)

    def forward(self, tokens, targets, positions):  # [sequences, tokens] each
        """The sum of the losses of all tokens that have a target."""
        document = (positions == 0).cumsum(1)
        mask = (document[:, None, :, None] == document[:, None, None, :]).tril()  # earlier tokens of the same document
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False) if self.recompute else block(x, mask)
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
    mesh._flatten()  # the gradient's norm is then one sum over all ranks, and the same on all of them


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
    for number, (name, parameter) in enumerate(model.named_parameters()):
        whole = torch.ones(parameter.shape, device=device)  # one weight at a time
        if parameter.ndim > 1:
            scale = 0.02 / math.sqrt(2 * args.layers) if name.endswith(("out.weight", "down.weight")) else 0.02
            whole.normal_(0, scale, generator=torch.Generator(device).manual_seed(one_seed(args.seed, number)))
        part = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.detach().to_local().copy_(part.to_local())
    return model


# --- checkpoints


class Checkpoints:
    """A folder of distributed checkpoints. All ranks write their own parts, and any number of ranks can read them."""

    def __init__(self, folder, model, optimizer, run):
        if folder.exists() and not folder.is_dir():
            raise SystemExit(f"--out {folder} is a file: give a folder.")
        self.folder = folder
        self.model = model
        self.optimizer = optimizer
        self.run = run  # settings that a continued run must not change
        # The background's collectives must not mix with those of the training.
        self.group = dist.new_group(backend="gloo", timeout=PATIENCE)
        self.writing = None

    def state(self, progress):
        weights, moments = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optimizer": moments, "progress": dict(progress)}

    def complete(self):
        """Complete checkpoints, newest first. The file .metadata comes last, after all ranks have written."""
        return sorted((file.parent for file in self.folder.glob("step_*/.metadata")), reverse=True)

    def save(self, progress):
        """Copy the state. The copy is written in the background, while training goes on."""
        self.finish()
        state = self.state(progress) | {"run": self.run}
        place = self.folder / f"step_{progress['step']:08}"
        # This writer copies in this thread. By default, DCP copies in another one, which also takes memory of GPU 0.
        writer = dcp.FileSystemWriter(place)
        self.writing = dcp.async_save(state, storage_writer=writer, process_group=self.group)

    def finish(self):
        """Wait until the last checkpoint is on the disk, or raise what went wrong. Then delete all but two."""
        if self.writing:
            self.writing.result()
            self.writing = None
            if dist.get_rank() == 0:
                for old in self.complete()[2:]:
                    shutil.rmtree(old)

    def load(self, progress):
        """Load the newest checkpoint that all ranks can read. Returns its progress, or what it was given."""
        found = [self.complete()]
        dist.broadcast_object_list(found)  # what rank 0 found, so all ranks continue from the same one
        for number, place in enumerate(found[0]):
            try:
                saved = {"run": dict(self.run)}
                dcp.load(saved, checkpoint_id=place)
                whose = f"--out {self.folder} has a run with"
                require_same(self.run, saved["run"], whose, "give the same, or another folder")
                state = self.state(progress)
                dcp.load(state, checkpoint_id=place)
            except CheckpointException as error:
                say(f"{place} can't be read, so it isn't used: {error}")
                continue
            weights, moments = state["model"], state["optimizer"]
            set_state_dict(self.model, self.optimizer, model_state_dict=weights, optim_state_dict=moments)
            if dist.get_rank() == 0:
                for unreadable in found[0][:number]:  # don't try these again, nor count them among the two to keep
                    (unreadable / ".metadata").rename(unreadable / "unreadable.metadata")
            return state["progress"]
        if found[0]:
            raise SystemExit(f"--out {self.folder}: none of its checkpoints can be read. Delete it, or give another.")
        return progress


# --- training


def learning_rate(args, step):
    """It rises for a tenth of the schedule, and then falls like a cosine to a tenth of the largest."""
    total = args.schedule_steps or args.steps
    warmup = math.ceil(total / 10)
    fallen = min(1.0, max(0, step - warmup) / max(1, total - warmup))
    return args.lr * min((step + 1) / warmup, 0.55 + 0.45 * math.cos(math.pi * fallen))


def train_step(args, model, optimizer, data, numbers, tokens, step):
    """Take a step on a batch with this many tokens. Return the loss of this rank's part, and the gradient's norm."""
    # Noise follows from these three numbers alone, so a checkpoint needs no state of random generators.
    torch.manual_seed(one_seed(args.seed, step, dist.get_rank()))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(args, step)
    model.train()
    total = torch.zeros((), device=data.device)
    micro_batches = data.micro_batches(numbers)
    for number, micro_batch in enumerate(micro_batches, 1):
        # Reduce gradients only after the last micro-batch. Until then each rank holds full, unsharded fp32 gradients.
        model.set_requires_gradient_sync(number == len(micro_batches))
        loss = model(*micro_batch.to(data.device)) / tokens
        # FSDP divides by the number of data-parallel ranks; undo that, since the loss is already divided by all tokens.
        (loss * data.ranks).backward()
        total += loss.detach()
    norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm.full_tensor()


@torch.no_grad()
def evaluate(model, data):
    """The mean loss of all tokens that are held out, over all ranks."""
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=data.device)
    for micro_batch in data.micro_batches(data.held_out):
        total += model(*micro_batch.to(data.device))
    dist.all_reduce(total, group=data.group)
    return total.item() / data.targets(data.held_out)


@record  # torchrun's report then has the traceback of the rank that failed first
def main():
    args = parse_arguments()
    device = join()
    size = dist.get_world_size()
    mesh = init_device_mesh(device.type, mesh_shape(args, size), mesh_dim_names=("data", "tensor"))
    data = Data(args, mesh["data"], device)
    settings = vars(args) | {"text": data.digest}  # folders of texts may differ, the texts must not
    first = [settings]
    dist.broadcast_object_list(first)
    require_same(settings, first[0], "rank 0 has", f"give rank {dist.get_rank()} the same")

    model = build(args, mesh, device)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True)
    run = {name: settings[name] for name in ("seed", "text", "tokens", "width", "heads", "layers")}
    checkpoints = Checkpoints(args.out, model, optimizer, run)
    progress = checkpoints.load({"step": 0, "sequences": 0, "useful_s": 0.0, "started": time.time()})

    # Operations per token in both passes: 6 per weight that isn't looked up, and attention. Recomputing doesn't count.
    weights = sum(parameter.numel() for parameter in (*model.blocks.parameters(), *model.head.parameters()))
    flops = 6 * weights + 12 * args.layers * args.width * args.tokens
    # Schedulers send a signal some time before they end a job. Start torchrun with --signals-to-handle
    # SIGTERM,SIGINT,SIGUSR1 --shutdown-timeout 120: by default it dies of SIGUSR1, and kills ranks 30 s after SIGTERM.
    signals = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: signals.append(number))
    host = dist.new_group(backend="gloo", timeout=PATIENCE)
    logged_tokens, logged_s = 0, progress["useful_s"]
    stopped = False

    while progress["step"] < args.steps and not stopped:
        start = time.perf_counter()
        numbers = data.batch(progress["sequences"])
        tokens = data.targets(numbers)
        stop = torch.tensor(bool(signals), dtype=torch.int)
        dist.all_reduce(stop, group=host)  # ranks stop after the same step; on the host, so no GPU has to wait
        loss, norm = train_step(args, model, optimizer, data, numbers, tokens, progress["step"])
        progress["step"] += 1
        progress["sequences"] += args.batch
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
            mfu = speed * flops / (size * args.peak_tflops * 1e12)
            goodput = progress["useful_s"] / (time.time() - progress["started"])
            used = f"MFU {mfu:.1%}, goodput {goodput:.0%}"
            if device.type != "cpu":
                used += f", {torch.accelerator.max_memory_allocated(device) / 1e9:.2f} GB"
            say(f"step {step}: loss {loss:.5f}, gradient norm {norm:.3f}, {speed:,.0f} tokens/s, {used}")
        if save:
            checkpoints.save(progress)
            if step < args.steps and not stopped:
                say(f"step {step}: held-out loss {evaluate(model, data):.5f}")

    checkpoints.finish()
    if stopped and progress["step"] < args.steps:
        say(f"stopped by a signal after step {progress['step']}. Start it again to continue.")
    else:
        say(f"loss {evaluate(model, data):.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
