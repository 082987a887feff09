# ruff: noqa: E501 - tables of replaced text
"""Correct variations of the scripts, in the styles people have. None of them may be called wrong."""

from planted import (
    AVERAGE,
    BY_HAND,
    CLIP,
    EPOCH,
    LOADER,
    MODEL,
    OWN_SEED,
    SAMPLER,
    SAVE,
    SHARD,
    SHARED_ORDER,
    STEP,
    WRAP,
)
from planted import LOSS as PLANTED_LOSS

SIZED = """\
class Sized(DistributedSampler):
    def __iter__(self):
        return ((64, index) for index in super().__iter__())


"""
STREAM = """\
class Stream(torch.utils.data.IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first = int(os.environ["RANK"]) * worker.num_workers + worker.id
        for index in range(first, 256, int(os.environ["WORLD_SIZE"]) * worker.num_workers):
            yield self.data[index]


"""
CLOSURE = """\
            def closure():
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                return loss

            optimizer.step(closure)
"""
# Right ways that once gave something to look at: each has to be silent.
SILENT = (
    "keys from the sampler",
    "a stream",
    "a teacher",
    "updated by hand",
    "evaluated on rank 0",
    "L-BFGS",
    "tokens weighed",
)
AVERAGE_WEIGHTS = "            if number % 8 == 7:\n                for p in model.parameters():\n                    distributed.all_reduce(p.data)\n                    p.data /= 2\n"
RESUME = """\
    saved = [None]
    if rank == 0 and (OUT / "old.pt").exists():
        saved = [torch.load(OUT / "old.pt")]
    elif rank == 0:
        saved = [{"model": model.state_dict()}]
    distributed.broadcast_object_list(saved)
    model.load_state_dict(saved[0]["model"])
"""
LOSS = "(loss_of(model, tokens) / ACCUMULATE).backward()\n"
FSDP1 = (
    ("import fully_shard", "import FullyShardedDataParallel"),
    ("    for block in model.blocks:\n        fully_shard(block)\n", ""),
    (SHARD, "    CPU = torch.device('cpu')\n    model = FullyShardedDataParallel(model, device_id=CPU)\n"),
    ("            model.set_requires_gradient_sync(last)\n            " + LOSS,
     "            with contextlib.nullcontext() if last else model.no_sync():\n                " + LOSS),
    ("            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", "            model.clip_grad_norm_(1.0)\n"),
    ("import os\n", "import contextlib\nimport os\n"),
    # PyTorch can't gather its weights on a CPU.
    ("get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))", "{}"),
)  # fmt: skip
CORRECT = {
    "as it is": ("ddp", ()),
    "averaged by hand": ("ddp", BY_HAND),
    "each step": ("ddp", (("ACCUMULATE = 2", "ACCUMULATE = 1"),)),
    "loading workers": ("ddp", (("drop_last=True)", "drop_last=True, num_workers=2, persistent_workers=True)"),)),
    "subset per rank": ("ddp", ((LOADER, "DataLoader(Subset(train_set, range(rank, 256, size)), batch_size=8, shuffle=True)"),
                                (EPOCH, ""))),
    "keys from the sampler": ("ddp", (("def __getitem__(self, index):\n", "def __getitem__(self, index):\n        index = index[1] "
                              "if isinstance(index, tuple) else index\n"), (SAMPLER, "sampler = Sized(train_set)"),
                              ("def build", SIZED + "def build"))),
    "a stream": ("ddp", ((LOADER, "DataLoader(Stream(train_set), batch_size=8, num_workers=2)"), (EPOCH, ""),
                         ("def build", STREAM + "def build"))),
    "a teacher": ("ddp", (("ACCUMULATE = 2", "ACCUMULATE = 2\nTEACHER = nn.Linear(16, 2).eval()"), ("            loss.backward()",
                          "            with torch.no_grad():\n                    TEACHER(inputs)\n            loss.backward()"))),
    "updated by hand": ("ddp", (*BY_HAND, ("nn.BatchNorm1d(32)", "nn.Identity()"), (STEP, "            with torch.no_grad():\n                for p in model.parameters():\n"
                                "                    p -= 0.1 * p.grad\n"))),
    "evaluated on rank 0": ("ddp", (("= evaluate(model, test_loader)", "= evaluate(model.module, test_loader) if rank == 0 else 0"),
                                    ("    distributed.all_reduce(right)\n", ""))),
    "L-BFGS": ("ddp", (("torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)", "torch.optim.LBFGS(model.parameters(), "
                        "max_iter=3)"), ("ACCUMULATE = 2", "ACCUMULATE = 1"), (CLIP, ""), ("            loss.backward()\n", ""),
                       (STEP, CLOSURE))),
    "tokens weighed": ("ddp", ((PLANTED_LOSS, "labels[:3 * distributed.get_rank()] = -100\n            counted = (labels >= 0).sum()"
                                "\n            distributed.all_reduce(total := counted.clone())\n            " + PLANTED_LOSS +
                                " * counted / total * 2"),)),
    "one generator": ("ddp", SHARED_ORDER),
    "bf16": ("ddp", (("loss = nn.functional.cross_entropy(model(inputs), labels) / ACCUMULATE",
                      "with torch.autocast('cpu', torch.bfloat16):\n                loss = nn.functional.cross_entropy("
                      "model(inputs), labels) / ACCUMULATE"),)),
    "scaled": ("ddp", (("loss.backward()", "scaler.scale(loss).backward()"),
                       (CLIP, "            scaler.unscale_(optimizer)\n" + CLIP),
                       (STEP, "            scaler.step(optimizer)\n            scaler.update()\n"),
                       ("    model.train()\n", "    model.train()\n    scaler = torch.amp.GradScaler('cpu')\n"))),
    "recomputed": ("ddp", ((MODEL, MODEL +
                           "    import torch.utils.checkpoint as again\n    inner, model[2] = model[2], nn.Identity()\n"
                           "    model[2].inner = inner\n"
                           "    model[2].forward = lambda x: again.checkpoint(inner, x, use_reentrant=False)\n"),)),
    "frozen start": ("ddp", ((MODEL, MODEL + "    model[0].requires_grad_(False)\n"),)),
    "local SGD": ("ddp", (*BY_HAND, (AVERAGE, ""), (STEP, STEP + AVERAGE_WEIGHTS))),
    "resumed by rank 0": ("ddp", ((WRAP, RESUME + WRAP),)),
    "loaded on rank 0 before wrapping": ("ddp", ((WRAP, "    if rank == 0:\n        model.load_state_dict(build().state_dict())\n"
                                                 + WRAP),)),
    "zero": ("ddp", (("torch.optim.SGD(model.parameters(), lr=0.1", "ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, "
                      "lr=0.1"), ("from torch.nn.parallel", "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
                                  "from torch.nn.parallel"))),
    "two optimizers": ("ddp", (("torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
                               "Both(model)"), ("def build", "class Both:\n    def __init__(self, model):\n        half = "
                               "list(model.parameters())\n        self.all = [torch.optim.SGD(half[:4], lr=0.1), torch.optim."
                               "AdamW(half[4:])]\n\n    def step(self):\n        for each in self.all:\n            each.step()\n\n"
                               "    def zero_grad(self):\n        for each in self.all:\n            each.zero_grad()\n\n\n"
                               "def build"))),
    "averaged copy": ("ddp", ((WRAP, "    average = torch.optim.swa_utils.AveragedModel(model)\n" + WRAP),
                              ("        accuracy = evaluate(model, test_loader)\n", "        average.update_parameters(model.module)\n"
                               "        evaluate(average, test_loader)\n        accuracy = evaluate(model, test_loader)\n"))),
    "rank 0 evaluates all": ("ddp", (("Subset(test_set, range(rank, len(test_set), size))", "test_set"),
                                     ("    distributed.all_reduce(right)\n", ""),
                                     ("        accuracy = evaluate(model, test_loader)\n        if rank == 0:\n",
                                      "        if rank == 0:\n            accuracy = evaluate(model.module, test_loader)\n"))),
    "file per rank": ("ddp", ((SAVE, ""), ("        if rank == 0:\n            print", "        torch.save(model.module.state_dict(), OUT / "
                               "f'model.{rank}.pt')\n        if rank == 0:\n            print"),
                              ("            (OUT / \"model.tmp\").replace(OUT / \"model.pt\")\n", ""))),
    "drawn with replacement": ("ddp", ((LOADER, "DataLoader(train_set, batch_size=8, sampler=torch.utils.data.RandomSampler("
                                        "train_set, replacement=True, num_samples=128))"), (EPOCH, ""))),
    "joined": ("ddp", ((LOADER, "DataLoader(Subset(train_set, range(rank, 256 - 32 * rank, 2)), batch_size=8)"), (EPOCH, ""),
                       ("        train(model, loader, optimizer)\n", "        with model.join():\n            train(model, loader, "
                        "optimizer)\n"), ("ACCUMULATE = 2", "ACCUMULATE = 1"))),
    "same seed everywhere": ("ddp", ((OWN_SEED, ""),)),
    "FSDP1": ("fsdp", FSDP1),
    "FSDP1 with its own parameters": ("fsdp", (*FSDP1, ("device_id=CPU", "device_id=CPU, use_orig_params=True"))),
    "FSDP2 as it is": ("fsdp", ()),
    "FSDP2 sharded files": ("fsdp", (("            torch.save(whole, OUT / \"model.tmp\")\n            (OUT / \"model.tmp\").replace("
                                      "OUT / \"model.pt\")\n", "        torch.distributed.checkpoint.save({'model': model.state_dict()},"
                                      " checkpoint_id=OUT / f'{epoch}')\n"), ("import torch\n", "import torch\nimport "
                                                                              "torch.distributed.checkpoint\n"))),
    "FSDP2 mixed": ("fsdp", (("fully_shard(block)", "fully_shard(block, mp_policy=torch.distributed.fsdp.MixedPrecisionPolicy("
                              "param_dtype=torch.bfloat16, output_dtype=torch.float32))"),)),
}  # fmt: skip
