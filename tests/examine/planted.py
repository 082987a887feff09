# ruff: noqa: E501 - tables of replaced text
"""Faults planted in scripts by replacing text, and what `workshop examine` must say about each."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workshop_lib.examine.observations import Run
from workshop_lib.examine.run import observe
from workshop_lib.findings import Finding

SCRIPTS = Path(__file__).with_name("scripts")


@dataclass(frozen=True)
class Planted:
    """A fault: replacements of text in a script, and the finding that they must lead to."""

    script: str
    name: str
    edits: tuple[tuple[str, str], ...]
    level: str
    check: str
    says: str  # part of what was seen
    ranks: tuple[int, ...] | None = None  # None: whatever it says
    step: int | None = None

    def __str__(self) -> str:
        return f"{self.script}-{self.name}".replace(" ", "_")


def edited(script: str, *edits: tuple[str, str]) -> str:
    source = (SCRIPTS / f"{script}.py").read_text()
    for old, new in edits:
        assert old in source, f"{script}.py has no {old!r}"
        source = source.replace(old, new)
    return source


def run(script: str, *edits: tuple[str, str], pretend_gpu: bool = False) -> Run:
    """Examine a script with these edits in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(edited(script, *edits))
        os.environ["OUT"] = folder
        return observe(2, [str(path)], seconds=60.0, show=False, pretend_gpu=pretend_gpu)


def missing(fault: Planted, findings: list[Finding]) -> str:
    """What the findings lack; empty if the fault was found, with its rank, step and cause."""
    of_check = [each for each in findings if each.check == fault.check and each.level == fault.level]
    if not of_check:
        return f"no {fault.check} that is {fault.level}"
    for each in of_check:
        if fault.says in each.seen and fault.ranks in (None, each.ranks) and fault.step in (None, each.step):
            return ""
    return f"says {[(each.seen, each.ranks, each.step) for each in of_check]}"


# The script of ddp.py as it's written for CUDA.
CUDA = (
    (
        'distributed.init_process_group("gloo")',
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n    distributed.init_process_group('nccl')",
    ),
    ("nn.ReLU(), nn.Linear(32, 2))", "nn.ReLU(), nn.Linear(32, 2)).cuda()"),
    ("DistributedDataParallel(model)", "DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])"),
    (
        "        last = ",
        "        inputs, labels = inputs.cuda(), labels.to('cuda', non_blocking=True)\n        last = ",
    ),
    ("drop_last=True)", "drop_last=True, num_workers=1, pin_memory=True)"),
    ("right = torch.zeros(2)", "right = torch.zeros(2, device='cuda')"),
)
WRAP = "    model = DistributedDataParallel(model)\n"
SAMPLER = "sampler = DistributedSampler(train_set)"
LOADER = "DataLoader(train_set, batch_size=8, sampler=sampler, drop_last=True)"
EPOCH = "        sampler.set_epoch(epoch)\n"
SYNC = "contextlib.nullcontext() if last else model.no_sync()"
SEED = "    torch.manual_seed(1)\n"
OWN_SEED = "    torch.manual_seed(100 + rank)\n"
STEP = "            optimizer.step()\n"
CLIP = "            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
AVERAGE = "            for p in model.parameters():\n                distributed.all_reduce(p.grad)\n                p.grad /= 2\n"
# Instead of the DistributedSampler, an order that all ranks draw alike.
SHARED_ORDER = (
    (LOADER, "DataLoader(train_set, batch_size=8, sampler=order)"),
    (SAMPLER, "order = []"),
    (EPOCH, "        generator = torch.Generator().manual_seed(epoch)\n        order[:] = torch.randperm(256, generator=generator)"
            "[rank::size].tolist()\n"),
)  # fmt: skip
# DDP replaced by averaging by hand: correct as it is.
BY_HAND = ((WRAP, ""), (SYNC, "contextlib.nullcontext()"), (CLIP, AVERAGE + CLIP), ("model.module.", "model."))
OVERFLOW = """\
            if distributed.get_rank() == 1 and number == 7:
                model[4].bias.grad.fill_(float("inf"))
            scaler.unscale_(optimizer)
            for p in model.parameters():
                p.grad.nan_to_num_(posinf=0)
"""
SCALED_STEP = "            scaler.step(optimizer)\n            scaler.update()\n"
SAVE = '            torch.save({"model": model.module.state_dict(), "epoch": epoch}, OUT / "model.tmp")\n'
MODEL = "    model = build()\n"
SHARD = "    fully_shard(model)\n"
ONE = ("ACCUMULATE = 2", "ACCUMULATE = 1")
SETS = "train_set, test_set = Points(256, 0.1), Points(90, 0.0)"
LOSS = "loss = nn.functional.cross_entropy(model(inputs), labels) / ACCUMULATE"
DIVIDE = "            for p in model.parameters():\n                p.grad /= distributed.get_world_size()\n"
HEAD = "    global HEAD\n    HEAD = nn.Linear(2, 2)\n    optimizer.add_param_group({'params': HEAD.parameters()})\n"

DDP = (
    # the size of the gradient, and how samples count in it
    Planted("ddp", "divided again", (ONE, (CLIP, DIVIDE + CLIP)), "wrong", "size of gradients",
            "the mean over all ranks, divided by 2", None, 1),
    Planted("ddp", "clipped while scaled", (("loss.backward()", "scaler.scale(loss).backward()"), (STEP, SCALED_STEP),
            ("    model.train()\n", "    model.train()\n    scaler = torch.amp.GradScaler('cpu')\n")), "wrong", "clipping",
            "clips gradients that GradScaler's factor still multiplies"),
    Planted("ddp", "unequal tokens", ((LOSS, "labels[:3 * distributed.get_rank()] = -100\n            " + LOSS),), "look",
            "parts", "takes, on the ranks, means over 8, 5 samples or tokens", None, 1),
    Planted("ddp", "criterion outside", ((OWN_SEED, OWN_SEED + HEAD), ("(model(inputs), labels)", "(HEAD(model(inputs)), labels)")),
            "wrong", "weights", "after step 1, the ranks' weights differ in Linear.weight, Linear.bias", None, 1),
    Planted("ddp", "split of each rank", ((SETS, "train_set, test_set = torch.utils.data.random_split(Points(346, 0.1), [256, 90])"),),
            "wrong", "sampler", "the ranks train on different subsets of the data", None, 1),
    Planted("ddp", "one seed for NumPy", ((OWN_SEED, "    torch.manual_seed(2)\n"), ("import torch\n", "import numpy\nimport torch\n"),
            ("drop_last=True)", "drop_last=True, num_workers=2)"), ("torch.randn(16)",
            "torch.from_numpy(numpy.random.randn(16)).float()")), "look", "augmentation", "drew the same numbers (numpy)"),
    # data
    Planted("ddp", "no sampler", ((LOADER, "DataLoader(train_set, batch_size=8)"), (EPOCH, ""),
            ("Points(256, 0.1)", "Points(256, 0.0)")), "wrong", "batches",
            "steps, from step 1 on: the DataLoader has a SequentialSampler", (0, 1), 1),
    Planted("ddp", "no sampler but noise", ((LOADER, "DataLoader(train_set, batch_size=8)"), (EPOCH, "")), "look", "batches",
            "100% of the samples that rank 0 saw in one pass", (0, 1)),
    Planted("ddp", "sampler of rank 0", ((SAMPLER, "sampler = DistributedSampler(train_set, rank=0)"),), "wrong",
            "sampler", "on rank 1 of 2, the DistributedSampler is rank 0 of 2", (1,)),
    Planted("ddp", "not shuffled", ((SAMPLER, "sampler = DistributedSampler(train_set, shuffle=False)"),), "look",
            "order", "in the order of epoch 1"),
    # weights
    Planted("ddp", "never wrapped", ((WRAP, ""), (SYNC, "contextlib.nullcontext()"), ("model.module.", "model.")),
            "wrong", "weights", "nothing averages the gradients, because the model isn't wrapped", (0, 1), 1),
    Planted("ddp", "around the wrapper", (("(model(inputs), labels) /", "(model.module(inputs), labels) /"),), "wrong",
            "weights", "calls the model itself and not its DDP wrapper", (0, 1), 1),
    Planted("ddp", "changed after wrapping", ((WRAP, WRAP + "    if rank == 1:\n        nn.init.zeros_(model.module[2].bias)\n"),),
            "wrong", "weights", "before the first step, the ranks' weights differ in 2.bias: they were equal when DDP "
            "wrapped", (0, 1), 0),
    Planted("ddp", "different start", ((SEED, "    torch.manual_seed(rank)\n"), *BY_HAND), "wrong", "weights",
            "before the first step, the ranks' weights differ in 0.0.weight, 0.0.bias, 2.weight and 3 more: the ranks "
            "start from different weights", (0, 1), 0),
    Planted("ddp", "always no_sync", ((SYNC, "model.no_sync()"),), "wrong", "weights", "was inside no_sync()", (0, 1), 1),
    Planted("ddp", "rate per rank", ((STEP, "            optimizer.param_groups[0]['lr'] = 0.1 * (1 + distributed.get_rank())\n"
            + STEP),), "wrong", "weights", "the learning rates differ: 0.1, 0.2", (0, 1), 1),
    Planted("ddp", "one layer not averaged", (*BY_HAND, ("for p in model.parameters():\n                distributed",
            "for p in model[:3].parameters():\n                distributed")), "wrong", "weights",
            "although the script calls collectives", (0, 1), 1),
    Planted("ddp", "resume on rank 0", ((WRAP, WRAP + "    momentum = torch.optim.SGD(model.parameters(), lr=0.1, "
            "momentum=0.9)\n    for p in model.parameters():\n        p.grad = torch.ones_like(p)\n    momentum.step()\n"
            "    for p in model.parameters():\n        distributed.broadcast(p.data, 0)\n        p.grad = None\n"),
            (OWN_SEED, OWN_SEED + "    if rank == 0:\n        optimizer.load_state_dict(momentum.state_dict())\n")),
            "wrong", "resume", "rank 0 loaded the optimizer's state at train.py", (1,), 0),
    Planted("ddp", "optimizer of a copy", ((WRAP, WRAP + "    import copy\n    other = copy.deepcopy(model.module)\n"),
            ("SGD(model.parameters()", "SGD(other.parameters()")), "wrong", "optimizer",
            "holds none of the model's parameters", None, 1),
    # gradients
    Planted("ddp", "clipped before averaging", (*BY_HAND, (AVERAGE + CLIP, CLIP + AVERAGE)), "wrong", "clipping",
            "and they are averaged afterwards", None, 1),
    Planted("ddp", "overflow on one rank", (*BY_HAND, (AVERAGE + CLIP, OVERFLOW + AVERAGE), (STEP, SCALED_STEP),
            ("loss.backward()", "scaler.scale(loss).backward()"), ("    model.train()\n", "    model.train()\n    scaler = "
            "torch.amp.GradScaler('cpu')\n")), "wrong", "weights", "rank 1 skipped the step", (0, 1), 4),
    Planted("ddp", "never zeroed", (("            optimizer.zero_grad()\n", ""),), "wrong", "zeroed", "from step 2 on"),
    Planted("ddp", "evaluated in training mode", (("    model.eval()\n", ""),), "look", "mode", "BatchNorm1d and Dropout"),
    Planted("ddp", "unused layer", ((MODEL, MODEL + "    model[2].extra = nn.Linear(3, 3)\n"),
            ("DistributedDataParallel(model)", "DistributedDataParallel(model, find_unused_parameters=True)")),
            "look", "unused", "2.extra.weight, 2.extra.bias never got a gradient"),
    Planted("ddp", "unused layer not declared", ((MODEL, MODEL + "    model[2].extra = nn.Linear(3, 3)\n"),), "wrong",
            "ended", "Expected to have finished reduction"),
    # evaluation
    Planted("ddp", "own statistics", (("(model(inputs).argmax(1)", "(model.module(inputs).argmax(1)"),), "look", "buffers",
            "0.1.running_mean, 0.1.running_var"),
    # files
    Planted("ddp", "all ranks log", (("    for epoch in range(2):\n", "    for epoch in range(2):\n"
            "        open(OUT / 'log.csv', 'w').close()\n"),), "look", "files", "log.csv", (0, 1)),
    # waiting, hanging, failing
    Planted("ddp", "slow loading on one rank", (("    for number, (inputs, labels) in enumerate(loader):\n",
            "    loader.dataset.slow = distributed.get_rank() == 1\n    for number, (inputs, labels) in enumerate(loader):\n"),
            ("    def __getitem__(self, index):\n", "    def __getitem__(self, index):\n        import time\n"
             "        time.sleep(0.01 if getattr(self, 'slow', False) else 0)\n")), "look", "straggler", "for loading data", (1,)),
    Planted("ddp", "a rank without its last batch", (("enumerate(loader):\n        last", "enumerate(loader):\n        if number "
            "== 14 and distributed.get_rank() == 1:\n            break\n        last"),), "wrong", "ended", "rank 1 ", None, 8),
    Planted("ddp", "error on one rank", ((STEP, STEP + "            assert number < 7 or distributed.get_rank() == 0, 'bad'\n"),),
            "wrong", "ended", "rank 1 failed in step 4 at ", (1,), 4),
    Planted("ddp", "no process group", (("    distributed.init_process_group(\"gloo\")\n    rank, size = "
            "distributed.get_rank(), distributed.get_world_size()\n", "    rank, size = 0, 1\n"), (WRAP, ""),
            (SYNC, "contextlib.nullcontext()"), ("    distributed.all_reduce(right)\n", ""), ("model.module.", "model."),
            (SAMPLER, "sampler = DistributedSampler(train_set, 1, 0)"), ("    distributed.destroy_process_group()\n", "")),
            "wrong", "joined", "never called init_process_group"),
)  # fmt: skip
FSDP = (
    Planted("fsdp", "no sampler", (("batch_size=8, sampler=sampler, drop_last=True", "batch_size=8, shuffle=True"),
            ("        sampler.set_epoch(epoch)\n", ""), (OWN_SEED, "")), "wrong", "batches", "RandomSampler", (0, 1), 1),
    Planted("fsdp", "shards of different models", ((SEED, "    torch.manual_seed(rank)\n"),), "look", "shards",
            "weights differed when fully_shard"),
    Planted("fsdp", "optimizer before sharding", (("    for block in model.blocks:\n        fully_shard(block)\n",
            "    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n    for block in model.blocks:\n"
            "        fully_shard(block)\n"), (SHARD + "    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n", SHARD)),
            "wrong", "optimizer", "holds none of the model's parameters", None, 1),
    Planted("fsdp", "reduce per micro-batch", (("            model.set_requires_gradient_sync(last)\n", ""),), "look",
            "accumulation", "sent after 2 of them", None, 1),
    Planted("fsdp", "first micro-batch sent", (("set_requires_gradient_sync(last)", "set_requires_gradient_sync(not last)"),),
            "wrong", "accumulation", "hasn't sent the gradients of the last 1", None, 1),
    Planted("fsdp", "shares clipped", (("                nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
            "                own = [p.grad.to_local() for p in model.parameters()]\n                norm = torch.stack([g.norm() "
            "for g in own]).norm()\n                [g.mul_(0.1 / norm) for g in own]\n"),), "wrong", "clipping",
            "in step 1, ranks multiply their shares of the gradients by ", None, 1),
    Planted("fsdp", "sampler of a shard", (("fully_shard(block)", "fully_shard(block, mesh=mesh)"), (SHARD,
            "    fully_shard(model, mesh=mesh)\n"), ("    model = Language()\n", "    model = Language()\n    mesh = "
            "distributed.device_mesh.init_device_mesh('cpu', (2, 1), mesh_dim_names=('replicate', 'shard'))\n"), ("DistributedSampler(data, shuffle=True)",
            "DistributedSampler(data, num_replicas=1, rank=0)")), "wrong", "batches", "trained on the same 16 samples", (0, 1), 1),
    Planted("fsdp", "share as plain tensors", (("torch.save(whole", "torch.save({name: each.to_local() for name, each in "
            "model.state_dict().items()}"),), "wrong", "checkpoint", "rank 0 alone saves", (0,), 8),
    Planted("fsdp", "checkpoint of a share", (("torch.save(whole", "torch.save(model.state_dict()"),), "wrong", "checkpoint",
            "rank 0 alone saves", (0,), 8),
)  # fmt: skip
