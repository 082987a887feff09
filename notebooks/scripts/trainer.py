"""Train a GPT as real projects do. Start it with: torchrun --standalone --nproc-per-node 2 trainer.py

The ranks form a mesh, replicas x shards x tensor: --mesh 2x8x4 keeps the weights twice, shares each copy out among 8
(FSDP), and cuts each layer in 4. Start it again with the same --out, on any number of ranks, and it continues.
"""

import argparse
import contextlib
import gc
import hashlib
import importlib.util
import json
import math
import os
import re
import resource
import shutil
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn, profiler
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, parallel
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

ENDINGS = (".py", ".md", ".txt")  # of files with text
FILES = 32  # read and tokenized at a time
HELD_OUT = 10  # every tenth document is kept for evaluation
NO_TARGET = -100  # cross_entropy leaves these out
LOGITS = 2**28  # most of them in memory at a time
CLIP = 1.0  # largest norm of the gradient
DECAY = 0.1  # of matrices
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Dense operations per second in bf16, by words of the device's name. In TF32, which fp32 uses, they're half of these.
PEAK_FLOPS = {"A100": 312e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200 NVL": 835e12}
PEAK_FLOPS |= {"H200": 989e12, "GH200": 989e12, "B200": 2250e12, "L40S": 362e12, "L4": 121e12, "MI300X": 1307e12}


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} isn't at least 1")
    return value


def mesh(text):
    sizes = tuple(positive(size) for size in text.split("x"))
    if len(sizes) not in (2, 3):
        raise argparse.ArgumentTypeError(f"{text} has neither two numbers, as in 8x2, nor three, as in 2x8x2")
    return (1, *sizes)[-3:]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--text", type=Path, help="folder of .py, .md and .txt files, a document each; by default the script's")
    add("--tokenizer", default="bytes", help="bytes, or a file of Hugging Face's tokenizers, such as tokenizer.json")
    add("--prepare", action="store_true", help="only write the tokens of --text, which takes no GPU")
    add("--prepared", type=Path, help="folder of tokens, by default in --out; if it's complete, leave out --text")
    add("--out", type=Path, default=Path("trainer"), help="folder of checkpoints, which all nodes see")
    add("--steps", type=positive, default=200)
    add("--schedule-steps", type=positive, help="length of the schedule, by default as many as --steps")
    add("--save-every", type=positive, default=50, help="steps between checkpoints and evaluations")
    add("--evaluate-on", type=positive, default=1000, help="largest number of held-out sequences per evaluation")
    add("--log-every", type=positive, default=10, help="steps between two lines")
    add("--mesh", type=mesh, help="shards x tensor, or replicas x shards x tensor; by default all ranks are shards")
    add("--batch", type=positive, default=16, help="sequences per step, on all ranks together")
    add("--micro-batch", type=positive, default=4, help="sequences per rank and forward pass")
    add("--tokens", type=positive, default=128, help="tokens per sequence")
    add("--width", type=positive, default=128)
    add("--heads", type=positive, default=4)
    add("--layers", type=positive, default=4)
    add("--dropout", type=float, default=0.0)
    add("--lr", type=float, default=3e-3, help="largest learning rate")
    add("--seed", type=int, default=1)
    add("--dtype", choices=DTYPES, help="of both passes, not of the weights; by default fp32 on CPUs, otherwise bf16")
    add("--recompute", choices=("none", "blocks"), default="none", help="what the backward pass computes a second time")
    add("--compile", action="store_true", help="compile each block")
    add("--profile", action="store_true", help="trace the steps 5 to 7 of this start, into a file per rank")
    args = parser.parse_args()

    if "WORLD_SIZE" not in os.environ:
        parser.error("it needs a launcher: torchrun --standalone --nproc-per-node 1 trainer.py")
    size = int(os.environ["WORLD_SIZE"])
    args.mesh = args.mesh or (1, size, 1)
    shape = "x".join(map(str, args.mesh))
    tensor = args.mesh[-1]
    elsewhere = args.prepared is not None
    args.prepared = args.prepared or args.out / "tokens"
    are_there = (args.prepared / "index.json").exists()
    if args.text is None and (args.prepare or not (elsewhere or are_there)):
        args.text = Path(__file__).parent
    args.files = sorted(file for file in args.text.glob("*") if file.suffix in ENDINGS) if args.text else []
    unreadable = [file.name for file in args.files if not (file.is_file() and os.access(file, os.R_OK))]
    wrong = {
        f"--mesh {shape} isn't for {size} ranks: give numbers with this product": math.prod(args.mesh) != size,
        f"--heads {args.heads} isn't a multiple of {tensor}, into which --mesh cuts them": args.heads % tensor != 0,
        f"--tokens {args.tokens} isn't a multiple of {tensor}, into which --mesh cuts them": args.tokens % tensor != 0,
        f"--width {args.width} isn't a multiple of --heads {args.heads}": args.width % args.heads != 0,
        f"--lr {args.lr} isn't a number above 0": not 0 < args.lr < math.inf,
        f"--dropout {args.dropout} isn't a number from 0 to below 1": not 0 <= args.dropout < 1,
        f"--seed {args.seed} isn't a number from 0 to below 2**63": not 0 <= args.seed < 2**63,
        f"--prepared {args.prepared} has no tokens: give --text, too": args.text is None and not are_there,
        f"--text {args.text} isn't a folder": args.text and not args.text.is_dir(),
        f"--text {args.text} has files that can't be read: {', '.join(unreadable[:5])}": unreadable,
        f"--text {args.text} has {len(args.files)} {', '.join(ENDINGS)} files: give two or more": (
            args.text and len(args.files) < 2  # one of them is held out
        ),
        "--tokenizer needs the package tokenizers: install it, or leave the option out": (
            args.tokenizer != "bytes" and importlib.util.find_spec("tokenizers") is None
        ),
        f"--tokenizer {args.tokenizer} isn't a file": args.tokenizer != "bytes" and not Path(args.tokenizer).is_file(),
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


def set_precision(args, device):
    """On a GPU, compute in bf16 by default, and use TF32 where something is left in fp32."""
    args.dtype = args.dtype or ("fp32" if device.type == "cpu" else "bf16")
    if device.type != "cpu":
        torch.set_float32_matmul_precision("high")


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def replace(path, text):
    """Write a file. Whoever reads it meanwhile gets all of this text, or all of the one before."""
    temporary = path.with_suffix(".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def read_index(args):
    """What `prepare` has written; nothing if it hasn't."""
    place = args.prepared / "index.json"
    return json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}


def tokenizer(name):
    """Return a function from a list of texts, as bytes, to a list of their tokens; and how many tokens there are."""
    if name == "bytes":
        return lambda texts: [np.frombuffer(text, np.uint8) for text in texts], 256
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(name)

    def encode(texts):  # on all cores
        decoded = [text.decode(errors="replace") for text in texts]
        return [each.ids for each in library.encode_batch(decoded, add_special_tokens=False)]

    return encode, library.get_vocab_size()


def prepare(args):
    """Rank 0 writes the tokens of the documents into two files, with END after each. It goes on where it was."""
    listed = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in args.files]
    which = "bytes" if args.tokenizer == "bytes" else hashlib.sha256(Path(args.tokenizer).read_bytes()).hexdigest()
    made_from = hashlib.sha256(json.dumps([which, listed]).encode()).hexdigest()
    nothing = {"made_from": made_from, "done": 0, "training": 0, "held_out": 0, "digest": ""}
    index = read_index(args) or nothing
    if index["made_from"] != made_from and args.prepared == args.out / "tokens":
        index = nothing  # the folder is this run's own
    elif index["made_from"] != made_from:
        made_of = "other files, or of another tokenizer"
        raise SystemExit(f"{args.prepared} has the tokens of {made_of}: delete it, or give another --prepared.")
    if dist.get_rank() == 0:
        if index["done"] < len(args.files):
            say(f"writing tokens into {args.prepared}")
        encode, end = tokenizer(args.tokenizer)
        index |= {"files": len(args.files), "end": end, "dtype": "uint16" if end < 2**16 else "uint32"}
        args.prepared.mkdir(parents=True, exist_ok=True)
        with open(args.prepared / "training", "ab") as training, open(args.prepared / "held_out", "ab") as held_out:
            for file, size in ((training, index["training"]), (held_out, index["held_out"])):
                if file.tell() < size:
                    raise SystemExit(f"{file.name} has lost tokens: delete {args.prepared}, and prepare it again.")
                file.truncate(size)  # whoever was interrupted may have written more
                file.seek(size)
            for first in range(index["done"], len(args.files), FILES):
                texts = [file.read_bytes() for file in args.files[first : first + FILES]]
                for number, tokens in enumerate(encode(texts), first):
                    file = training if number % HELD_OUT else held_out
                    file.write(np.append(np.array(tokens, index["dtype"]), np.array(end, index["dtype"])))
                training.flush()
                held_out.flush()
                index |= {"done": first + len(texts), "training": training.tell(), "held_out": held_out.tell()}
                before = f"{index['digest']}{which}".encode()
                index["digest"] = hashlib.sha256(b"\0".join([before, *texts])).hexdigest()
                replace(args.prepared / "index.json", json.dumps(index))
    dist.barrier(dist.new_group(backend="gloo", timeout=timedelta(days=1)))


def shuffled(places, size, key):
    """Which of `size` sequences have these places in an order that depends on the key.

    A Feistel network gives each place another sequence. So no rank has to hold the order of them all.
    """
    bits = np.uint64((max(2, size - 1).bit_length() + 1) // 2)
    mask = np.uint64(2**bits - 1)
    round_keys = np.random.default_rng(key).integers(2**63, size=6, dtype=np.uint64)

    def scramble(numbers):
        left, right = numbers >> bits, numbers & mask
        for round_key in round_keys:
            mixed = (right + round_key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        return left << bits | right

    numbers = scramble(places.astype(np.uint64))
    while (numbers >= size).any():  # it orders all numbers of 2 * bits bits
        numbers = np.where(numbers >= size, scramble(numbers), numbers)
    return numbers.astype(np.int64)


class Sequences:
    """A file of tokens, cut into sequences. It is mapped into memory, so only what is used gets read."""

    def __init__(self, path, index, length):
        size = index[path.name]
        if not path.exists() or path.stat().st_size != size:
            raise SystemExit(f"{path} hasn't {size} bytes on this node: delete its folder, and prepare it again.")
        self.end = index["end"]
        self.length = length
        self.stored = np.memmap(path, index["dtype"], "r")

    def __len__(self):
        return math.ceil(len(self.stored) / self.length)

    def targets(self, numbers):
        """How many tokens of these sequences have a target. Only the last one may be filled up."""
        return int(np.minimum(self.length, len(self.stored) - numbers * self.length).sum())

    def read(self, number):
        """Tokens and targets [2, length] of a sequence. Sequence -1 is all padding."""
        both = np.stack([np.zeros(self.length, np.int64), np.full(self.length, NO_TARGET)])
        if number >= 0:
            first = number * self.length
            targets = self.stored[first : first + self.length]
            both[0, 0] = self.stored[first - 1] if first > 0 else self.end
            both[0, 1 : len(targets)] = targets[:-1]
            both[1, : len(targets)] = targets
        return both


class Documents(NamedTuple):
    """Where the documents of a micro-batch are, with its sequences one after another."""

    lengths: np.ndarray  # not a list: its values would be compiled in
    bounds: torch.Tensor  # [documents + 1], on the device
    are_sequences: bool  # no sequence has a second document


class Data:
    """The prepared documents, and this rank's share of them."""

    def __init__(self, args, mesh, device):
        self.args = args
        self.device = device
        replicas, shards, _ = mesh.shape
        self.ranks = replicas * shards
        self.rank = mesh.get_local_rank("replica") * shards + mesh.get_local_rank("shard")
        index = read_index(args)
        if not index or index["done"] < index["files"]:
            raise SystemExit(f"{args.prepared} isn't complete on this node: start with --text and --prepare.")
        self.end = index["end"]
        self.vocabulary = math.ceil((self.end + 1) / 64) * 64  # so that tensor parallelism can cut it
        self.digest = index["digest"][:12]
        of_rank_0 = [self.digest]
        dist.broadcast_object_list(of_rank_0)
        if of_rank_0 != [self.digest]:
            raise SystemExit(f"{args.prepared} has other tokens on this node than on rank 0's: prepare the same files.")
        self.training = Sequences(args.prepared / "training", index, args.tokens)
        self.held_out = Sequences(args.prepared / "held_out", index, args.tokens)
        count = min(len(self.held_out), args.evaluate_on)
        self.evaluated = np.linspace(0, len(self.held_out) - 1, count).astype(int)

    def batch(self, step):
        """The sequences of a step, which depend on the seed and the step, and not on the ranks."""
        first = step * self.args.batch
        epochs, places = np.divmod(np.arange(first, first + self.args.batch), len(self.training))
        for epoch in np.unique(epochs):
            places[epochs == epoch] = shuffled(places[epochs == epoch], len(self.training), [self.args.seed, epoch])
        return places

    def micro_batches(self, sequences, numbers):
        """This rank's share of these sequences, as the model's arguments; all ranks have as many micro-batches."""
        share = numbers[self.rank :: self.ranks]
        count = math.ceil(len(numbers) / self.ranks / self.args.micro_batch)
        filled = np.full(count * self.args.micro_batch, -1)
        filled[: len(share)] = share
        for part in np.split(filled, count):
            yield self.micro_batch(np.stack([sequences.read(number) for number in part], axis=1))

    def micro_batch(self, both):  # tokens and targets [2, sequences, length]
        """The model's arguments. Documents are found on the host, so that no GPU has to be waited for."""
        starts = both[0] == self.end
        starts[:, 0] = True
        firsts = np.flatnonzero(starts)
        lengths = np.diff(firsts, append=starts.size)
        positions = np.arange(starts.size) - np.repeat(firsts, lengths)
        three = self.to_device(np.concatenate([both, positions.reshape(1, *starts.shape)]))
        bounds = self.to_device(np.append(firsts, starts.size).astype(np.int32))
        return *three, Documents(lengths, bounds, len(firsts) == len(starts))

    def to_device(self, array):
        tensor = torch.from_numpy(array)
        if self.device.type != "cpu":
            tensor = tensor.pin_memory()  # the copy then runs beside what the GPU computes
        return tensor.to(self.device, non_blocking=True)


@torch.compiler.disable  # each micro-batch has other documents, and would be compiled again
def attend_one_by_one(query, key, value, lengths):  # [all tokens, heads, head_width]
    mixed = []
    lengths = lengths.tolist()
    for document in zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True):
        by_head = (each.transpose(0, 1)[None] for each in document)
        mixed.append(scaled_dot_product_attention(*by_head, is_causal=True)[0].transpose(0, 1))
    return torch.cat(mixed)


def attend(query, key, value, documents):  # [sequences, tokens, heads, head_width]
    """Each token looks at earlier ones of its document. Nothing here has tokens x tokens elements."""
    if documents.are_sequences:
        by_head = (each.transpose(1, 2) for each in (query, key, value))
        return scaled_dot_product_attention(*by_head, is_causal=True).transpose(1, 2)
    in_a_row = [each.flatten(0, 1) for each in (query, key, value)]
    if query.is_cuda and query.dtype == torch.bfloat16:  # the kernel needs an A100 or newer
        where = (documents.bounds, documents.bounds, query.shape[1], query.shape[1])
        mixed = varlen_attn(*in_a_row, *where, window_size=(-1, 0))
    else:
        mixed = attend_one_by_one(*in_a_row, documents.lengths)
    return mixed.unflatten(0, query.shape[:2])


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

    def forward(self, x, documents):  # [sequences, tokens, width]
        by_head = self.qkv(self.norm1(x)).unflatten(2, (-1, 3, self.head_width))
        mixed = attend(*by_head.unbind(3), documents)
        x = x + self.dropout(self.out(mixed.flatten(2)))
        return x + self.dropout(self.down(gelu(self.up(self.norm2(x)))))


class Head(nn.Module):
    """The sum of the losses of all tokens that have a target, without more than LOGITS logits at a time."""

    def __init__(self, width, vocabulary):
        super().__init__()
        self.linear = nn.Linear(width, vocabulary, bias=False)

    def loss(self, x, targets):
        logits = self.linear(x).float()
        return cross_entropy(logits, targets, ignore_index=NO_TARGET, reduction="sum")

    def forward(self, x, targets):  # [sequences, tokens, width], [sequences, tokens]
        x, targets = x.flatten(0, 1), targets.flatten()
        chunk = max(1, LOGITS // self.linear.out_features)
        if len(targets) <= chunk:
            return self.loss(x, targets)
        parts = zip(x.split(chunk), targets.split(chunk), strict=True)
        return sum(checkpoint(self.loss, *part, use_reentrant=False) for part in parts)


class GPT(nn.Module):
    def __init__(self, args, vocabulary):
        super().__init__()
        self.recompute = args.recompute == "blocks"
        self.token = nn.Embedding(vocabulary, args.width)
        self.position = nn.Embedding(args.tokens, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads, args.dropout) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.width)
        self.head = Head(args.width, vocabulary)

    def forward(self, tokens, targets, positions, documents):  # [sequences, tokens] each, and Documents
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = checkpoint(block, x, documents, use_reentrant=False) if self.recompute else block(x, documents)
        return self.head(self.norm(x), targets).clone()  # FSDP wants no view, which tensor parallelism returns


def cut_layers(model, mesh):
    """Tensor parallelism: each rank holds a part of each layer, and between layers a part of each sequence."""
    part = Shard(1)  # dimension 1 of [sequences, tokens, width]
    plan = {
        "token": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=part),
        "position": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=part),
        "blocks.*.norm1": parallel.SequenceParallel(),
        "blocks.*.qkv": parallel.ColwiseParallel(input_layouts=part),
        "blocks.*.out": parallel.RowwiseParallel(output_layouts=part),
        "blocks.*.norm2": parallel.SequenceParallel(),
        "blocks.*.up": parallel.ColwiseParallel(input_layouts=part),
        "blocks.*.down": parallel.RowwiseParallel(output_layouts=part),
        "norm": parallel.SequenceParallel(),
        "head": parallel.PrepareModuleInputOutput(
            input_layouts=(part, None),
            desired_input_layouts=(Replicate(), None),
            output_layouts=Replicate(),
            desired_output_layouts=Replicate(),
        ),
        # No rank has all logits: each has those of its part of the vocabulary.
        "head.linear": parallel.ColwiseParallel(use_local_output=False),
    }
    parallel.parallelize_module(model, mesh["tensor"], plan)


def build(args, mesh, device, vocabulary):
    """A GPT of which each rank holds its part. Initial values depend on the seed, and not on the ranks."""
    with torch.device("meta"):  # shapes without memory
        model = GPT(args, vocabulary)
    if mesh["tensor"].size() > 1:
        cut_layers(model, mesh)
    if args.compile:
        for block in model.blocks:
            block.compile()  # in place, so weights keep their names
    units = [*model.blocks, model]
    if vocabulary >= 12 * args.width:  # as large as a block, so they are gathered when they're needed
        units = [model.token, *model.blocks, model.head, model]
    data_mesh = mesh["shard"] if mesh["replica"].size() == 1 else mesh["replica", "shard"]  # the latter is HSDP
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[args.dtype], reduce_dtype=torch.float32)
    for unit in units:
        fully_shard(unit, mesh=data_mesh, mp_policy=policy)

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
        if dist.get_rank() == 0:  # an unreadable checkpoint of this step isn't complete while it's written again
            (self.kept[-1] / ".metadata").unlink(missing_ok=True)
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
                    shutil.rmtree(old, ignore_errors=True)
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
            raise SystemExit(f"--out {self.folder}: none of its checkpoints can be read. To start anew, give another.")
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
    tokens = data.training.targets(numbers)
    total = torch.zeros((), device=data.device)
    micro_batches = list(data.micro_batches(data.training, numbers))
    for number, micro_batch in enumerate(micro_batches, 1):
        # Reduce gradients only after the last micro-batch. Until then each rank holds whole gradients in fp32, so
        # delete this line if they don't fit.
        model.set_requires_gradient_sync(number == len(micro_batches))
        loss = model(*micro_batch) / tokens
        # FSDP divides by the number of data-parallel ranks; undo that, since the loss is already divided by all tokens.
        (loss * data.ranks).backward()
        total += loss.detach()
    gradients = [parameter.grad for parameter in model.parameters()]
    norm = nn.utils.get_total_norm(gradients).full_tensor()  # over all dimensions of the mesh
    nn.utils.clip_grads_with_norm_(model.parameters(), CLIP, norm)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm, tokens


@torch.no_grad()
def evaluate(model, data, mesh):
    """The mean loss of tokens that are held out, over all ranks."""
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=data.device)
    for micro_batch in data.micro_batches(data.held_out, data.evaluated):
        total += model(*micro_batch)
    return summed(total, mesh) / data.held_out.targets(data.evaluated)


def summed(loss, mesh):
    """The sum over all ranks as a number. Ranks that hold parts of the same layers have the same loss."""
    dist.all_reduce(loss)
    return loss.item() / mesh["tensor"].size()


def flops_per_token(args, model):
    """Operations in both passes: 6 per weight that isn't looked up, and attention. Recomputing doesn't count."""
    weights = sum(parameter.numel() for parameter in (*model.blocks.parameters(), *model.head.parameters()))
    return 6 * weights + 12 * args.layers * args.width * args.tokens


def peak_flops(args, device):
    """Operations per second of this device, or None if PEAK_FLOPS doesn't have it."""
    if device.type == "cpu":
        return None
    name = torch.get_device_module(device).get_device_name(device)
    for words, peak in PEAK_FLOPS.items():
        if set(words.split()) <= set(re.split(r"[ -]", name)):
            return peak if args.dtype == "bf16" else peak / 2
    say(f"PEAK_FLOPS doesn't have {name}, so no MFU is printed: add it.")
    return None


def peak_memory_gb(device):
    if device.type != "cpu":
        return torch.accelerator.max_memory_allocated(device) / 1e9
    unit = 1 if sys.platform == "darwin" else 1000  # bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


class Log:
    """What a run is watched by: now and then a line on the screen, and the same in OUT/metrics.jsonl."""

    def __init__(self, args, model, device, progress):
        self.device = device
        self.flops_per_token = flops_per_token(args, model)
        self.peak_flops = peak_flops(args, device)
        self.tokens = 0
        self.useful_s = progress["useful_s"]
        self.path = args.out / "metrics.jsonl"
        if dist.get_rank() == 0 and self.path.exists():  # steps after the checkpoint are taken again
            lines = self.path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= progress["step"]]
            replace(self.path, "".join(kept))

    def write(self, progress, **values):
        """Log these values, and the speed since the last call."""
        speed = self.tokens / (progress["useful_s"] - self.useful_s)
        self.tokens, self.useful_s = 0, progress["useful_s"]
        if dist.get_rank() != 0:
            return
        now = time.time()
        line = {"step": progress["step"], "time": now} | values | {"tokens_per_s": speed}
        line["goodput"] = progress["useful_s"] / (now - progress["started"])
        line["memory_gb"] = peak_memory_gb(self.device)
        mfu = ""
        if self.peak_flops is not None:
            line["mfu"] = speed * self.flops_per_token / (self.peak_flops * dist.get_world_size())
            mfu = f"MFU {line['mfu']:.1%}, "
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        losses = f"loss {line['loss']:.5f}, gradient norm {line['gradient_norm']:.3f}"
        used = f"{mfu}{line['memory_gb']:.2f} GB, goodput {line['goodput']:.0%}"
        say(f"step {line['step']}: {losses}, {speed:,.0f} tokens/s, {used}")
        if "held_out_loss" in line:
            say(f"step {line['step']}: held-out loss {line['held_out_loss']:.5f}")


def profile(args):
    """A context in which `.step()` ends a step, of which three are traced; open the files at ui.perfetto.dev."""
    place = args.out / f"trace_of_rank_{dist.get_rank()}.json.gz"
    schedule = profiler.schedule(skip_first=3, wait=0, warmup=1, active=3, repeat=1)
    return profiler.profile(schedule=schedule, on_trace_ready=lambda traced: traced.export_chrome_trace(str(place)))


@record  # torchrun's report then has the traceback of the rank that failed first
@parallel.loss_parallel()  # cross_entropy, also of logits that no rank has whole
def main():
    args = parse_arguments()
    if args.prepare:
        dist.init_process_group("gloo")
        prepare(args)
        say(f"The tokens are in {args.prepared}. Train with --prepared {args.prepared}")
        dist.destroy_process_group()
        return
    device = join()
    set_precision(args, device)
    if args.text is not None:
        prepare(args)
    mesh = init_device_mesh(device.type, args.mesh, mesh_dim_names=("replica", "shard", "tensor"))
    data = Data(args, mesh, device)
    model = build(args, mesh, device, data.vocabulary)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True)
    run = {name: vars(args)[name] for name in ("seed", "batch", "tokens", "width", "heads", "layers")}
    run |= {"text": data.digest, "schedule-steps": args.schedule_steps or args.steps}
    checkpoints = Checkpoints(args.out, model, optimizer, run)
    progress = checkpoints.load({"step": 0, "useful_s": 0.0, "started": time.time()})
    log = Log(args, model, device, progress)

    # Schedulers send a signal some time before they end a job. Start torchrun with --signals-to-handle
    # SIGTERM,SIGINT,SIGUSR1 --shutdown-timeout 120: by default it dies of SIGUSR1, and kills ranks 30 s after SIGTERM.
    signals = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: signals.append(number))
    gc.disable()  # Ranks would collect garbage in different steps, and wait for each other in all of them.
    held_out_loss = None
    stopped = False

    with profile(args) if args.profile else contextlib.nullcontext() as profiled:
        while progress["step"] < args.steps and not stopped:
            start = time.perf_counter()
            stop = torch.tensor(bool(signals), dtype=torch.int)
            agreed = dist.all_reduce(stop, async_op=True)  # on the host, beside the step
            loss, norm, tokens = train_step(args, model, optimizer, data, progress["step"])
            agreed.wait()
            stopped = (stop > 0).item()  # ranks stop after the same step
            progress["step"] += 1
            step = progress["step"]
            log.tokens += tokens
            save = stopped or step % args.save_every == 0 or step == args.steps
            if save or step % args.log_every == 0:
                loss = summed(loss, mesh)  # waits for a GPU, so that its work is in the measured time
                norm = norm.item()
                progress["useful_s"] += time.perf_counter() - start
                if not math.isfinite(loss + norm):
                    checkpoints.finish()
                    diverged = f"step {step}: the loss is {loss} and the gradient norm {norm}, so this step isn't saved"
                    raise SystemExit(f"{diverged}. Start again with a --lr below {args.lr}.")
                values = {"loss": loss, "gradient_norm": norm, "learning_rate": learning_rate(args, step - 1)}
                if save and not stopped:
                    held_out_loss = values["held_out_loss"] = evaluate(model, data, mesh)
                log.write(progress, **values)
                gc.collect(1)  # young objects
            else:
                progress["useful_s"] += time.perf_counter() - start
            if save:
                checkpoints.save(progress)
            if profiled:
                profiled.step()

    checkpoints.finish()
    gc.enable()
    if progress["step"] < args.steps:
        say(f"stopped by a signal after step {progress['step']}. Start it again to continue.")
    else:
        if held_out_loss is None:
            held_out_loss = evaluate(model, data, mesh)
        say(f"loss {held_out_loss:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
