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
