"""trainer.py: the same losses on any mesh of ranks, before and after a crash, as one process has with plain PyTorch."""

import argparse
import contextlib
import importlib.util
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from notebooks.scripts_in_turn import SCRIPTS
from notebooks.test_resuming_scripts import printed
from notebooks.test_take_home import TORCHRUN
from notebooks.trainer_in_turn import STEPS, TINY
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from training.launching import rank_environment, run_bounded

from workshop_lib.lessons.thousand_ranks import dry_run, pretend
from workshop_lib.lessons.thousand_ranks.meter import StepMeter
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
    (folder / "bytes").mkdir()
    (folder / "bytes" / "binary.txt").write_bytes(b"a\0b")
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
        tokens, targets, positions = data.packed[:, data.batch(step * args.batch)]
        loss = model(tokens, targets, positions) / (targets >= 0).sum()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad *= min(1, 1 / norm)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate
        optimizer.step()
        found[step + 1] = loss.item()
    tokens, targets, positions = data.packed[:, data.held_out]
    return found | {0: (model(tokens, targets, positions) / (targets >= 0).sum()).item()}


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
    """Guessing among 256 bytes has a loss of 5.5; a word of eleven costs 2.4, and has five letters."""
    assert losses(said["learned"])[0] < 1.4


def test_a_run_that_diverges_ends_before_it_saves(folder, said):
    for rank in (0, 1):
        *_, sentence = printed(folder, rank)["diverged"].splitlines()
        assert re.fullmatch(r"step 3: .* (nan|inf).* isn't saved\. Start again with a --lr below 1e\+38\.", sentence)
    assert not list((folder / "diverged").glob("step_*"))


def test_the_log_has_what_a_run_is_watched_by(said):
    line = said["plain"].splitlines()[-2]
    number = r"[\d.,]+"
    log = f"step 12: loss {number}, gradient norm {number}, {number} tokens/s, MFU {number}%, goodput .*"
    assert re.fullmatch(log, line), line
    share = int(re.search(r"goodput (\d+)%", line)[1])
    assert 0 < share <= 100


@pytest.mark.parametrize(
    ("title", "sentence"),
    [
        ("size", "--mesh 3x1: 3 times 1 isn't the number of ranks, which is 2."),
        ("form", "--mesh 2*1: give two whole numbers with an x between them, such as 2x2."),
        ("heads", "--mesh 1x2: --heads 1 can't be cut into 2 equal parts."),
        ("width", "--width 33 isn't a multiple of --heads 2: give one that is."),
        ("text", "--text {}/nothing: this folder has no .py, .md or .txt file with text in it."),
        ("file", "--out {}/bytes/binary.txt is a file: give a folder."),
        ("bytes", "--text {}/bytes: binary.txt contains a byte 0, so it isn't text. Take it out."),
        ("seed", "--out {}/plain has a run with --seed 1, and you gave 2: give the same, or another folder."),
    ],
)
def test_a_wrong_input_is_a_sentence_on_every_rank(folder, said, title, sentence):
    for rank in (0, 1):
        assert printed(folder, rank)[title].strip() == sentence.format(folder)


@pytest.mark.parametrize(
    "words",
    [
        ("--steps", 0, "0 isn't a whole number of at least 1"),
        ("--steps", "ten", "ten isn't a whole number of at least 1"),
        ("--batch", -1, "-1 isn't a whole number of at least 1"),
        ("--seed", -1, "-1 isn't a whole number of at least 0"),
        ("--dropout", 1.5, "1.5 isn't a number from 0 to below 1"),
        ("--lr", "nan", "nan isn't a number above 0"),
        ("--peak-tflops", 0, "0 isn't a number above 0"),
        ("--dtype", "fp64", "fp64"),
    ],
)
def test_a_wrong_number_is_refused_before_anything_starts(trainer, folder, capsys, words):
    *words, sentence = words
    with pytest.raises(SystemExit):
        options(trainer, folder, *words)
    error = capsys.readouterr().err
    assert f"argument {words[0]}: " in error and sentence in error


def test_without_a_launcher_it_says_how_to_start(trainer, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit, match="RANK isn't set: start it with torchrun"):
        trainer.join()


def test_packing_keeps_every_byte_once_and_every_document_to_itself(trainer):
    """A document's loss is the same alone as between others, of which it sees nothing."""
    documents = [b"one", b"a second document that is longer", b"two"]
    packed = trainer.pack(documents, 16)
    tokens, targets, _ = packed
    text = bytes([trainer.END]).join(documents) + bytes([trainer.END])
    assert bytes(targets[targets != trainer.NO_TARGET].tolist()) == text
    assert (targets[-1] == trainer.NO_TARGET).all() and tokens.shape == (5, 16)
    torch.manual_seed(1)
    args = argparse.Namespace(recompute=False, width=16, heads=2, layers=1, tokens=16, dropout=0.0)
    model = trainer.GPT(args)
    single = sum(model(*trainer.pack([document], 16)) for document in documents)
    torch.testing.assert_close(model(*packed), single)
    assert (packed[2, 0] == 0).sum() == 1, "pieces that don't fit start a new sequence"
    assert len(trainer.pack([b"one", b"two", b"six"], 16)[0]) == 2, "three documents in one sequence"


def test_every_epoch_has_every_sequence_once_whoever_trains_on_it(trainer, folder, alone):
    data = trainer.Data(options(trainer, folder, "--batch", 10), alone["data"], torch.device("cpu"))
    size = len(data.training)
    drawn = np.concatenate([data.batch(first) for first in range(0, 10 * size, 10)])
    for epoch in np.split(drawn, 10):
        assert sorted(epoch) == sorted(data.training)
    assert list(drawn[:size]) != list(drawn[size : 2 * size])
    assert not set(data.training) & set(data.held_out)
    batch = data.batch(0)
    for ranks in (1, 2, 3, 7, 16):
        data.ranks = ranks
        shares = []
        for rank in range(ranks):
            data.rank = rank
            shares.append(data.micro_batches(batch))
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
    assert [place.name for place in checkpoints.complete()] == ["step_00000030", "step_00000020"], "older ones are gone"
    (tmp_path / "step_00000040").mkdir()  # as a crash leaves it, without .metadata
    [part] = (tmp_path / "step_00000030").glob("*.distcp")
    part.write_bytes(part.read_bytes()[:1000])
    assert checkpoints.load({"step": 0}) == {"step": 20}
    assert torch.equal(model.head.weight.full_tensor(), weights[1])
    assert "step_00000030 can't be read, so it isn't used" in capsys.readouterr().out
    assert [place.name for place in checkpoints.complete()] == ["step_00000020"], "it isn't tried again"
    (tmp_path / "step_00000020" / ".metadata").write_bytes(b"")
    with pytest.raises(SystemExit, match="none of its checkpoints can be read"):
        checkpoints.load({"step": 0})


class Allocated(StepMeter):
    def _see(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "meta":  # which has no memory
            super()._see(tensor)


def test_the_model_is_never_whole_on_any_rank(trainer, folder):
    """On one of 512 pretended ranks: building allocates parts, and one whole weight at a time."""
    args = options(trainer, folder, "--width", 1024, "--heads", 8)
    dist.init_process_group("fake", store=FakeStore(), rank=37, world_size=512)
    meter = Allocated()
    try:
        mesh = init_device_mesh("cpu", (64, 8), mesh_dim_names=("data", "tensor"))
        with pretend.fake_tensors(), meter.watching():
            model = trainer.build(args, mesh, torch.device("cpu"))
    finally:
        dist.destroy_process_group()
    whole = [p.numel() * 4 for p in model.parameters()]
    assert meter.peak_bytes < 2.5 * max(whole) < 0.5 * sum(whole)


def started(ranks: int, folder: Path, out: Path) -> contextlib.AbstractContextManager[subprocess.Popen]:
    words = [*TORCHRUN[1:-1], str(ranks), SCRIPT, "--text", folder / "text", *TINY, "--steps", STEPS, "--out", out]
    words += ["--save-every", 4]
    return scripts.started(["python", *map(str, words)], set_id=f"trainer{ranks}")


def read_until(process: subprocess.Popen, text: str) -> str:
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            break
    return "".join(lines)


def on_one_rank(folder: Path, out: Path, capsys) -> dict[int, float]:
    """The losses of a run in this process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = "--text", folder / "text", *TINY, "--steps", STEPS, "--out", out
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            patch.setenv(name, str(value))
        patch.setattr(sys, "argv", ["trainer.py", *map(str, words)])
        try:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return losses(capsys.readouterr().out)


def test_a_rank_with_other_settings_than_rank_0_ends_with_a_sentence(folder, tmp_path, capsys, monkeypatch):
    def broadcast(objects):
        objects[0] = objects[0] | {"save_every": 7}

    monkeypatch.setattr(dist, "broadcast_object_list", broadcast)
    try:
        with pytest.raises(SystemExit, match="^rank 0 has --save-every 7, and you gave 50: give rank 0 the same.$"):
            on_one_rank(folder, tmp_path, capsys)
    finally:
        dist.destroy_process_group()


def test_killed_on_two_ranks_it_continues_on_three_and_on_one(folder, said, tmp_path, capsys, nothing_left):
    """The three are stopped by SIGTERM, as a scheduler does, and save; one continues from there, too."""
    right = losses(said["plain"])
    with started(2, folder, tmp_path / "one") as process:
        read_until(process, "step 9:")
        processes.end("trainer2")
    shutil.rmtree(
        tmp_path / "one" / "step_00000008", ignore_errors=True
    )  # so the three have many steps to be stopped in
    shutil.copytree(tmp_path / "one", tmp_path / "three")
    with started(3, folder, tmp_path / "three") as process:
        output = read_until(process, ": loss ")
        process.terminate()
        output += read_until(process, "no such line")
    stopped = int(re.search(r"stopped by a signal after step (\d+)\. Start it again to continue\.", output)[1])
    on_three = losses(output)
    assert min(on_three) == 5 and max(on_three) == stopped < STEPS
    assert same(on_three, {step: right[step] for step in on_three})
    assert (tmp_path / "three" / f"step_{stopped:08}" / ".metadata").exists()
    for name, first in (("one", 5), ("three", stopped + 1)):
        on_one = on_one_rank(folder, tmp_path / name, capsys)
        assert set(on_one) == {0, *range(first, STEPS + 1)}
        assert same(on_one, {step: right[step] for step in on_one}), name


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", [("--mesh", "2x2"), ("--compile",), ("--no-recompute",)])
def test_other_ways_take_the_same_steps(folder, said, tmp_path, words):
    ranks = 4 if words[-1] == "2x2" else 2
    program = [*TORCHRUN[:-1], ranks, SCRIPT, "--text", folder / "text", *TINY, "--steps", STEPS, "--out", tmp_path]
    [(status, output)] = run_bounded([[*program, *words]], [rank_environment()], 300)
    assert status == 0 and same(losses(output), losses(said["plain"])), output


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
    assert {each.over for each in report.collectives} == {"world", "data", "tensor"}
