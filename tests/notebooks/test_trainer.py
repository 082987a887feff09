"""trainer.py: the same losses on any mesh of ranks, before and after a crash, as one process has with plain PyTorch."""

import argparse
import contextlib
import importlib.util
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from notebooks.scripts_in_turn import SCRIPTS
from notebooks.test_resuming_scripts import printed, run_alone
from notebooks.test_take_home import TORCHRUN
from notebooks.trainer_in_turn import STEPS, TINY
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from training.launching import rank_environment, run_bounded

from workshop_lib.lessons.thousand_ranks import dry_run
from workshop_lib.lessons.your_own_script.report import examine
from workshop_lib.ranks import processes, scripts

pytestmark = pytest.mark.full

SCRIPT = SCRIPTS / "trainer.py"
IN_TURN = Path(__file__).with_name("trainer_in_turn.py")
WITHIN = 5e-5  # between losses of which rounding and the order of sums differ; they're printed to 1e-5


@pytest.fixture(scope="module")
def trainer():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("trainer", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with documents of unequal lengths in `text`."""
    folder = tmp_path_factory.mktemp("trainer")
    (folder / "text").mkdir()
    random = np.random.default_rng(1)
    words = ["the", "rank", "sends", "its", "gradient", "to", "every", "other", "one", "and", "waits"]
    for number in range(150):
        text = " ".join(random.choice(words, random.integers(1, 25)))
        (folder / "text" / f"{number:03}.txt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def said(folder):
    """What rank 0 prints on two ranks, by title."""
    [(status, output)] = run_bounded([[*TORCHRUN, IN_TURN, folder]], [rank_environment()], 150)
    assert status == 0, output
    return printed(folder, 0)


@pytest.fixture
def alone():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    dist.destroy_process_group()


def options(trainer, folder, *words) -> argparse.Namespace:
    with pytest.MonkeyPatch.context() as patch:
        words = "--text", folder / "text", *TINY, *words
        patch.setattr(sys, "argv", ["trainer.py", *map(str, words)])
        patch.setenv("WORLD_SIZE", "2")
        return trainer.parse_arguments()


def losses(text: str) -> dict[int, float]:
    """The losses that were printed, by step; the last one, 0, is that of the evaluation."""
    found = {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss ([\d.]+)", text, re.MULTILINE)}
    if last := re.search(r"^loss (\d\.\d{5})$", text, re.MULTILINE):
        found[0] = float(last[1])
    return found


def same(one: dict[int, float], other: dict[int, float]) -> bool:
    return one.keys() == other.keys() and all(one[step] == pytest.approx(other[step], abs=WITHIN) for step in one)


def plainly(trainer, args, mesh) -> dict[int, float]:
    """The losses of a training written with plain PyTorch: one process, and each batch as a whole."""
    cpu = torch.device("cpu")
    data = trainer.Data(args, mesh["data"], cpu)
    model = trainer.GPT(args)
    model.load_state_dict({k: v.full_tensor() for k, v in get_model_state_dict(trainer.build(args, mesh, cpu)).items()})
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    others = [p for name, p in model.named_parameters() if "norm" not in name]
    groups = [{"params": others, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, lr=1, betas=(0.9, 0.95), foreach=False)
    rates = [0.5, 1, *(0.1 + 0.9 * (1 + np.cos(np.pi * (step - 2) / 10)) / 2 for step in range(2, 12))]
    found = {}
    for step, rate in enumerate(rates):
        tokens, targets = data.packed[:, data.batch(step)]
        loss = model(tokens, targets) / (targets >= 0).sum()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad *= min(1, 1 / norm)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate
        optimizer.step()
        found[step + 1] = loss.item()
    tokens, targets = data.packed[:, data.held_out]
    return found | {0: (model(tokens, targets) / (targets >= 0).sum()).item()}


def test_two_ranks_take_the_steps_of_one_process_with_whole_batches(trainer, folder, said, alone):
    """Seven sequences on two ranks, in micro-batches of two: each part has another number of tokens."""
    args = options(trainer, folder, "--steps", STEPS)
    found = plainly(trainer, args, alone)
    assert set(found) == set(range(STEPS + 1))
    assert same(losses(said["plain"]), found), (said["plain"], found)


def test_ranks_that_share_layers_take_the_same_steps(said):
    assert same(losses(said["layers"]), losses(said["plain"]))
    norms = [re.findall(r"norm ([\d.]+)", said[title]) for title in ("layers", "plain")]
    assert norms[0] == norms[1] and len(norms[0]) == STEPS


def test_bf16_is_close_and_not_the_same(said):
    found, right = losses(said["bf16"]), losses(said["plain"])
    assert found == pytest.approx(right, rel=0.01) and not same(found, right)


def test_noise_continues_where_it_was(said):
    whole, first, second = (losses(said[title]) for title in ("noisy", "noise", "again"))
    assert set(second) == {0, *range(STEPS // 2 + 1, STEPS + 1)}
    assert same(first | second, whole)
    assert abs(whole[STEPS] - losses(said["plain"])[STEPS]) > 100 * WITHIN


def test_it_learns(said):
    """Guessing among 320 tokens has a loss of 5.8; a word of eleven costs 2.4, and has five letters."""
    assert losses(said["learned"])[0] < 1.4


def test_a_run_that_diverges_ends_before_it_saves(folder, said):
    for rank in (0, 1):
        *_, sentence = printed(folder, rank)["diverged"].splitlines()
        assert re.fullmatch(r"step 3: .* (nan|inf).* isn't saved\. Start again with a --lr below 1e\+38\.", sentence)
    assert not list((folder / "diverged").glob("step_*"))


def test_the_log_has_what_a_run_is_watched_by(said):
    line = said["plain"].splitlines()[-2]
    number = r"[\d.,]+"
    log = f"step 12: loss {number}, gradient norm {number}, {number} tokens/s, MFU {number}%, .*"
    assert re.fullmatch(log, line), line
    memory, share = re.search(r"([\d.]+) GB, goodput (\d+)%$", line).groups()
    assert 0.1 < float(memory) < 4 and 0 < int(share) <= 100


def test_the_mfu_counts_six_operations_per_weight_and_attention(trainer, folder, alone):
    """A block has 12 matrices of width x width. The head is one, and attention multiplies twice per layer."""
    args = options(trainer, folder)
    model = trainer.build(args, alone, torch.device("cpu"))
    weights = 2 * (12 * 32**2 + 2 * 32) + 320 * 32
    assert trainer.flops_per_token(args, model) == 6 * weights + 2 * 6 * 2 * 32 * 64


@pytest.mark.parametrize(
    ("title", "sentence"),
    [
        (
            "text",
            "--text {}/nothing has 0 .py, .md and .txt files, too few for two sequences of 128 tokens: give more text.",
        ),
        ("seed", "--out {}/plain has a run with --seed 1, and you gave 2: give the same, or another folder."),
    ],
)
def test_a_wrong_input_is_a_sentence_on_every_rank(folder, said, title, sentence):
    for rank in (0, 1):
        assert printed(folder, rank)[title].strip() == sentence.format(folder)


@pytest.mark.parametrize(
    "words",
    [
        ("--steps", 0, "argument --steps: 0 isn't at least 1"),
        ("--steps", "ten", "argument --steps: invalid positive value: 'ten'"),
        ("--batch", -1, "argument --batch: -1 isn't at least 1"),
        ("--dtype", "fp64", "argument --dtype: invalid choice: 'fp64'"),
        ("--mesh", "2*1", "argument --mesh: invalid mesh value: '2*1'"),
        ("--mesh", "2x0", "argument --mesh: 0 isn't at least 1"),
        ("--mesh", "3x1", "--mesh 3x1 isn't for 2 ranks: give two numbers with this product"),
        ("--mesh", "1x2", "--heads", 1, "--heads 1 isn't a multiple of 2, into which --mesh cuts them"),
        ("--mesh", "1x2", "--tokens", 63, "--tokens 63 isn't a multiple of 2, into which --mesh cuts them"),
        ("--width", 33, "--width 33 isn't a multiple of --heads 2"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_starts(trainer, folder, capsys, words):
    *words, sentence = words
    with pytest.raises(SystemExit):
        options(trainer, folder, *words)
    assert f"error: {sentence}" in capsys.readouterr().err


def test_without_a_launcher_it_says_how_to_start(trainer, monkeypatch, capsys):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(sys, "argv", ["trainer.py"])
    with pytest.raises(SystemExit):
        trainer.parse_arguments()
    assert "it needs a launcher: torchrun --standalone --nproc-per-node 1 trainer.py" in capsys.readouterr().err


def test_packing_keeps_every_byte_once_and_every_document_to_itself(trainer):
    """A document's loss is the same alone as between others, of which it sees nothing."""
    documents = [b"one", b"a word", b"two", b"and one that goes on in the next sequence"]
    packed = trainer.pack(documents, 16)
    tokens, targets = packed
    text = [token for document in documents for token in (*document, trainer.END)]
    assert targets[targets != trainer.NO_TARGET].tolist() == text
    assert tokens.flatten()[: len(text)].tolist() == [trainer.END, *text[:-1]]
    assert (targets[-1] == trainer.NO_TARGET).all() and tokens.shape == (5, 16)
    torch.manual_seed(1)
    args = argparse.Namespace(width=16, heads=2, layers=1, tokens=16, dropout=0.0)
    model = trainer.GPT(args)
    single = sum(model(*trainer.pack([document], 16)) for document in documents[:3])
    torch.testing.assert_close(model(*trainer.pack(documents[:3], 16)), single)


def test_every_epoch_has_every_sequence_once_whoever_trains_on_it(trainer, folder, alone):
    data = trainer.Data(options(trainer, folder, "--batch", 10), alone["data"], torch.device("cpu"))
    size = len(data.training)
    drawn = np.concatenate([data.batch(step) for step in range(size)])
    for epoch in np.split(drawn, 10):
        assert sorted(epoch) == sorted(data.training)
    assert list(drawn[:size]) != list(drawn[size : 2 * size])
    assert not set(data.training) & set(data.held_out)
    batch = np.append(data.batch(0), len(data.packed[0]) - 2)  # the last sequence, which has fewer targets
    for ranks in (1, 2, 3, 7, 16):
        data.ranks = ranks
        shares = []
        for rank in range(ranks):
            data.rank = rank
            shares.append(list(data.micro_batches(batch)))
        assert len({len(share) for share in shares}) == 1, "FSDP needs as many forward passes on every rank"
        found = torch.cat([part[1] for share in shares for part in share])
        counts = (found != trainer.NO_TARGET).sum(1).sort().values
        right = (data.packed[1, batch] != trainer.NO_TARGET).sum(1).sort().values
        assert counts[counts > 0].tolist() == right.tolist()


def test_an_unreadable_checkpoint_gives_way_to_the_one_before(trainer, folder, alone, tmp_path, capsys):
    args = options(trainer, folder)
    model = trainer.build(args, alone, torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints = trainer.Checkpoints(tmp_path, model, optimizer, {"seed": 1})
    weights = []
    for step in (10, 20, 30):
        weights.append(model.head.weight.full_tensor().clone())
        checkpoints.save({"step": step})
        model.head.weight.detach().add_(1)
    checkpoints.finish()
    places = tmp_path / "step_00000020", tmp_path / "step_00000030"
    assert sorted(tmp_path.iterdir()) == sorted(places), "older ones are gone"
    (tmp_path / "step_00000040").mkdir()  # as a crash leaves it, without .metadata
    [part] = places[1].glob("*.distcp")
    part.write_bytes(part.read_bytes()[:1000])
    assert checkpoints.load({"step": 0}) == {"step": 20}
    assert torch.equal(model.head.weight.full_tensor(), weights[1])
    assert "step_00000030 can't be read" in capsys.readouterr().out
    for step in (21, 22):
        checkpoints.save({"step": step})
    checkpoints.finish()
    kept = [place.name for place in tmp_path.iterdir() if (place / ".metadata").exists()]
    assert sorted(kept) == ["step_00000021", "step_00000022", "step_00000030"], "two that can be read are kept"
    for step in (21, 22):
        (tmp_path / f"step_{step:08}" / ".metadata").write_bytes(b"")
    with pytest.raises(SystemExit, match="none of its checkpoints can be read"):
        checkpoints.load({"step": 0})
    with pytest.raises(FileExistsError, match=part.name):
        trainer.Checkpoints(part, model, optimizer, {})  # a file in place of a folder


def started(ranks: int, folder: Path, out: Path, *options) -> contextlib.AbstractContextManager[subprocess.Popen]:
    words = [*TORCHRUN[1:-1], str(ranks), SCRIPT, "--text", folder / "text", *TINY, "--out", out, *options]
    return scripts.started(["python", *map(str, words)], set_id=f"trainer{ranks}")


def read_until(process: subprocess.Popen, text: str) -> str:
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            break
    return "".join(lines)


def on_one_rank(folder: Path, out: Path, monkeypatch, capsys) -> dict[int, float]:
    """The losses of a run in this process."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        run_alone(monkeypatch, SCRIPT.name, "--text", folder / "text", *TINY, "--steps", STEPS, "--out", out)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return losses(capsys.readouterr().out)


def test_killed_on_two_ranks_it_continues_on_three_and_on_one(
    folder, said, tmp_path, monkeypatch, capsys, nothing_left
):
    """The three are stopped by SIGTERM, as a scheduler does, and save; one continues from there, too."""
    right = losses(said["plain"])
    few = "--steps", 7, "--schedule-steps", STEPS, "--save-every", 4
    with started(2, folder, tmp_path / "one", *few) as process:
        read_until(process, "step 5:")
        limit_s = time.monotonic() + 60
        while not (tmp_path / "one" / "step_00000004" / ".metadata").exists() and time.monotonic() < limit_s:
            time.sleep(0.01)
        processes.end("trainer2")
    shutil.rmtree(tmp_path / "one" / "step_00000007", ignore_errors=True)  # the kill may have come after the last step
    shutil.copytree(tmp_path / "one", tmp_path / "three")
    # A checkpoint after each step makes steps long enough to be stopped in.
    with started(3, folder, tmp_path / "three", "--steps", STEPS, "--save-every", 1) as process:
        output = read_until(process, ": loss ")
        process.terminate()
        output += read_until(process, "no such line")
    found = re.search(r"stopped by a signal after step (\d+)\. Start it again to continue\.", output)
    assert found, output
    stopped = int(found[1])
    on_three = losses(output)
    assert min(on_three) == 5 and max(on_three) == stopped < STEPS
    assert same(on_three, {step: right[step] for step in on_three})
    assert (tmp_path / "three" / f"step_{stopped:08}" / ".metadata").exists()
    for name, first in (("one", 5), ("three", stopped + 1)):
        on_one = on_one_rank(folder, tmp_path / name, monkeypatch, capsys)
        assert set(on_one) == {0, *range(first, STEPS + 1)}
        assert same(on_one, {step: right[step] for step in on_one}), name


def test_examine_finds_nothing(folder, tmp_path):
    report = examine(SCRIPT, "--text", folder / "text", *TINY, "--steps", STEPS, "--out", tmp_path / "out")
    assert [each for each in report.findings if each.level != "ok"] == [] and report.findings


def test_a_model_of_20_billion_parameters_fits_on_512_ranks(folder, tmp_path):
    """In a dry run. Without recomputing, the peak would be 34 GB."""
    shape = "--width", 8192, "--heads", 64, "--layers", 24, "--tokens", 4096, "--batch", 256, "--micro-batch", 4
    place = "--text", folder / "text", "--out", tmp_path / "out"
    report = dry_run.dry_run(SCRIPT, *place, *shape, "--dtype", "bf16", world_size=512, mesh="64x8")
    parameters = sum(np.prod(shard.shape) for shard in report.shards)
    assert 19e9 < parameters < 21e9
    assert sum(report.state_bytes.values()) == pytest.approx(16 * parameters / 512, rel=0.01)
    assert report.peak_bytes < 8e9
    assert report.building_peak_bytes < 4e9 < 4 * parameters / 10, "never whole on any rank"
    assert {each.over for each in report.collectives} == {"world", "data", "tensor"}
