"""The dry run: what it reads of a rank among many, what it refuses, and PyTorch's private parts that it rests on."""

import math
import re
import shlex
import time

import psutil
import pytest
from command_line import workshop
from drawn import check_layout, texts

from workshop_lib.dryrun import dry_run as dry
from workshop_lib.dryrun.step_report import Report
from workshop_lib.errors import InputError
from workshop_lib.forecast.forecast import Collective
from workshop_lib.paths import ROOT, SCRIPTS

from lessons.thousand_ranks import figures

MESH = SCRIPTS / "mesh.py"
COMMANDS = ROOT / "book" / "command_line.md"
WIDTH, LAYERS, TOKENS = 64, 2, 32  # of the script, if not told otherwise


@pytest.fixture(scope="module")
def thousand():
    return dry.dry_run(MESH, "--width", 1024, "--heads", 16, "--batch", 256, world_size=1024, mesh="64x16", rank=37)


def by_name(report: Report, name: str):
    return next(shard for shard in report.shards if shard.name == name)


def test_any_rank_of_a_thousand_has_its_shards(thousand):
    assert (thousand.rank, thousand.world_size, thousand.fake_tensors) == (37, 1024, True)
    up = by_name(thousand, "1.up.weight")
    assert (up.shape, up.local_shape) == ([4096, 1024], [4096 // 1024, 1024])
    down = by_name(thousand, "1.down.weight")
    assert (down.shape, down.local_shape) == ([1024, 4096], [1024 // 64, 4096 // 16])
    norm = by_name(thousand, "1.norm1.weight")
    assert norm.local_shape == [1024 // 64], "tensor parallelism leaves it whole, FSDP cuts it"
    assert thousand.state_bytes["optimizer"] >= 2 * thousand.state_bytes["parameters"], "Adam's two, and its steps"
    assert thousand.state_bytes["gradients"] == thousand.state_bytes["parameters"]


def test_a_rank_never_holds_the_whole_model_not_even_while_it_is_built(thousand):
    """Initializing takes one tensor after the other: two of them at a time are whole."""
    largest = max(math.prod(shard.shape) for shard in thousand.shards)
    whole = sum(math.prod(shard.shape) for shard in thousand.shards)
    held = thousand.building_peak_bytes / 4
    assert largest < held < 2 * largest + 4 * sum(math.prod(shard.local_shape) for shard in thousand.shards)
    assert held < 0.4 * whole


def test_the_operations_are_those_of_the_matrices(thousand):
    w, tokens, samples = 1024, TOKENS, 4
    layer, attention = 12 * w**2, 2 * tokens * w  # the products of a token, those of its attention
    forward = samples * tokens * 2 * (LAYERS * (layer + attention) / 16 + 256 * w)
    assert thousand.flops == pytest.approx(3 * forward, rel=0.01), "backward takes twice as many"


WRITTEN_FOR_CUDA = """
import os
import numpy as np
import torch
from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

dist.init_process_group("nccl")
assert torch.cuda.is_available() and torch.cuda.device_count() == 8
device = f"cuda:{os.environ['LOCAL_RANK']}"
torch.cuda.set_device(device)
words = np.arange(500)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.out = nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)
        self.inward.weight = self.out.weight
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        return checkpoint(self.recomputed, x, use_reentrant=False) if self.training else self.recomputed(x)
    def recomputed(self, x):
        return self.out(self.inward(x) + torch.zeros(64, device=device))

model = Net().to(device)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
assert model.inward.weight is model.out.weight
model = DistributedDataParallel(torch.compile(model), device_ids=[int(os.environ["LOCAL_RANK"])])
with torch.no_grad():
    model.eval()
    for _ in range(100):
        model(torch.zeros(4, 16, dtype=torch.int64, device=device))
    model.train()
assert model.module.calls == 1, "an evaluation without values needs one batch"
scaler = torch.amp.GradScaler("cuda")
began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for step in range(3):
    began.record()
    starts = torch.randint(400, (4,), generator=torch.Generator(device).manual_seed(step))
    x = torch.stack([torch.from_numpy(words[i : i + 16]) for i in starts]).pin_memory().cuda(non_blocking=True)
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(x)
        assert logits.dtype == torch.float16
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten())
    assert loss.dtype == torch.float32, "as on a GPU"
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    ended.record()
    torch.cuda.synchronize()
    torch.save(model.state_dict(), "checkpoint.pt")
    print(f"{loss:.3f}, {began.elapsed_time(ended):.1f} ms, {torch.cuda.max_memory_allocated() / 1e9} GB")
"""


@pytest.mark.full
def test_a_script_for_cuda_with_tied_weights_needs_no_gpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = dry.dry_run(write(tmp_path, WRITTEN_FOR_CUDA), world_size=256)
    assert (report.fake_tensors, report.fallback_reason) == (True, "")
    assert report.collectives == [Collective("allreduce", "world", 256, 1, 4 * 64 * 1000)]
    assert report.flops == 6 * 4 * 16 * 64 * 1000, "recomputing stops before the last product"
    assert not (tmp_path / "checkpoint.pt").exists(), "a dry run replaces no checkpoint"


@pytest.mark.full
def test_a_fallback_to_real_tensors_says_why(tmp_path):
    """Both a report and a failure have the reason."""
    needs_values = "import torch\nnet = torch.nn.Linear(3, 3)\nopt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
    needs_values += "for _ in range(3):\n    net(torch.ones(3)).sum().backward()\n"
    needs_values += "    assert net.weight.nonzero().numel()\n"
    report = dry.dry_run(write(tmp_path, needs_values + "    opt.step()\n"), world_size=4)
    assert not report.fake_tensors and "line 6, `assert net.weight.nonzero()" in report.fallback_reason
    with pytest.raises(InputError, match="ended after 0 steps.* .It ran with real tensors, because .* line 6"):
        dry.dry_run(write(tmp_path, needs_values), world_size=4)


def write(folder, text):
    path = folder / "mine.py"
    path.write_text(text)
    return path


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import torch\nx = 1\nassert x == 2, 'x is wrong'\n",
            "AssertionError in line 3, `assert x == 2, .*: x is wrong",
        ),
        ("print('nothing')\n", "ended after 0 steps"),
        ("raise SystemExit('no data')\n", "ended itself: no data"),
    ],
)
def test_a_script_that_fails_is_a_sentence(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        dry.dry_run(write(tmp_path, text), world_size=4)


def test_a_mesh_that_the_world_does_not_fill_is_refused_before_anything_starts():
    started = time.monotonic()
    with pytest.raises(InputError, match="there is no script"):
        dry.dry_run("none.py", world_size=4)
    for mesh, size, words in [
        ("64x16", 1000, "64x16 has 1,024 ranks, and the world has 1,000"),
        ("64x", 64, "give its dimensions as in 64x16"),
        ("0x4", 4, "give its dimensions"),
        ("", 0, "a world of 0 ranks"),
        ("", 10**9, "a world of"),
    ]:
        with pytest.raises(InputError, match=words):
            dry.dry_run(MESH, world_size=size, mesh=mesh)
    for named, words in (({"rank": 4}, "rank 4 of 4"), ({"machine": "moon"}, "choose one of a100-ethernet")):
        with pytest.raises(InputError, match=words):
            dry.dry_run(MESH, world_size=4, **named)
    assert time.monotonic() - started < 1


def test_a_script_that_never_ends_is_ended_with_all_its_processes(tmp_path):
    endless = write(
        tmp_path,
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(97)'])\n"
        "while True: subprocess.run([sys.executable, '-c', 'import time; time.sleep(96)'])\n",
    )
    with pytest.raises(InputError, match="had not taken two steps after 6 s"):
        dry.dry_run(endless, world_size=4, timeout_s=6)
    assert not [p for p in psutil.process_iter(["cmdline"]) if "time.sleep(97)" in " ".join(p.info["cmdline"] or [])]


def test_the_command_refuses_in_a_sentence():
    for words, said in [
        ((MESH,), "how many ranks?"),
        ((MESH, "--mesh", "8x8", "--world-size", 60), "make them equal"),
        (("none.py", "--mesh", "8x8"), "there is no script"),
    ]:
        refused = workshop("dryrun", *words)
        assert refused.exit_code == 1 and refused.output.startswith("workshop: ") and said in refused.output


def test_found_meshes_come_fastest_first_after_those_that_fit(monkeypatch):
    """The peak falls with the ranks that share a layer, and the step gets slower. The script refuses 16 of them."""

    limits_s = []

    def pretended(script, *options, world_size, mesh, timeout_s, machine):
        limits_s.append(timeout_s)
        shared = int(mesh.partition("x")[2])
        if shared == 16:
            raise InputError("8 heads can't be cut for 16 ranks")
        return Report(rank=0, world_size=48, flops=0, peak_bytes=160e9 / shared, collectives=[], step_s=shared / 1e3)

    monkeypatch.setattr(dry, "dry_run", pretended)
    found = dry.meshes(MESH, world_size=48, machine="h100", memory_bytes=60e9)
    assert [mesh for mesh, _ in found] == ["12x4", "6x8", "48x1", "24x2", "3x16"]
    words = ["--world-size", 48, "--machine", "h100", "--find-mesh", "--memory-gb", 60, "--timeout", 7]
    shown = workshop("dryrun", MESH, *words)
    assert limits_s[-1] == 7
    assert shown.exit_code == 0 and "not into 60 GB" in shown.output and "8 heads" in shown.output
    assert "leave --mesh out" in workshop("dryrun", MESH, "--mesh", "4x1", "--find-mesh").output


def test_the_command_that_the_book_and_notebook_12_show(monkeypatch):
    """It passes two options on to the script, which can't divide its heads by 16 ranks without them."""
    [command] = re.findall(r"^\.venv/bin/(workshop dryrun .+)$", COMMANDS.read_text(), re.MULTILINE)
    assert f"`{command}`" in (ROOT / "notebooks" / "source" / "12_thousand_ranks.py").read_text()
    monkeypatch.chdir(ROOT)
    shown = workshop(*shlex.split(command)[1:], "--rank", 37)
    assert shown.exit_code == 0, shown.output
    for words in ("rank 37 of 1,024, mesh 64x16", "allreduce", "*.up.weight", "peak before the first forward pass"):
        assert words in shown.output


def test_the_drawn_mesh_has_the_rank_its_groups_and_what_it_sends():
    sent = [Collective("allreduce", "tensor", 8, 16, 4e6), Collective("allgather", "data", 128, 9, 8e6)]
    seen = Report(rank=18, world_size=1024, flops=0, peak_bytes=0, collectives=sent)
    figure = figures.mesh(seen, "128x8")
    ranks, beside = figure.axes
    assert {"0", "7", "18", "1023", "⋮"} <= set(texts(ranks))
    [words] = texts(beside)
    for line in ("over tensor: sends 7.00 MB", "16 × allreduce", "9 × allgather"):
        assert line in words
    check_layout(figure)
