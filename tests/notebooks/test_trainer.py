"""trainer.py: the same losses on any mesh of ranks, before and after a crash, as one process has with plain PyTorch."""

import argparse
import ast
import contextlib
import gc
import gzip
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
from notebooks.scripts_in_turn import SCRIPTS
from notebooks.test_resuming_scripts import printed, run_alone
from notebooks.test_take_home import TORCHRUN
from notebooks.trainer_in_turn import STEPS, TINY
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from training.launching import rank_environment, run_bounded

from workshop_lib.dryrun import dry_run
from workshop_lib.ranks.launch import processes, scripts

from lessons.your_own_script.report import examine

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


@pytest.fixture(scope="module")
def on_four(folder, said):
    """What rank 0 of four prints, by title."""
    command = [*TORCHRUN[:-1], "4", IN_TURN, folder]
    [(status, output)] = run_bounded([command], [rank_environment()], 150)
    assert status == 0, output
    return printed(folder / "four", 0)


@pytest.fixture
def alone():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1, 1), mesh_dim_names=("replica", "shard", "tensor"))
    dist.destroy_process_group()


def options(trainer, folder, *words) -> argparse.Namespace:
    with pytest.MonkeyPatch.context() as patch:
        words = "--text", folder / "text", "--prepared", folder / "tokens", "--dtype", "fp32", *TINY, *words
        patch.setattr(sys, "argv", ["trainer.py", *map(str, words)])
        patch.setenv("WORLD_SIZE", "2")
        return trainer.parse_arguments()


def prepared(trainer, args, mesh):
    trainer.prepare(args)
    return trainer.Data(args, mesh, torch.device("cpu"))


def dense(query, key, value, documents):
    """What attention should be: with a mask of all pairs of tokens."""
    number = torch.repeat_interleave(torch.arange(len(documents.lengths)), torch.tensor(documents.lengths))
    number = number.reshape(query.shape[:2])
    mask = (number[:, None, :, None] == number[:, None, None, :]).tril()
    by_head = (each.transpose(1, 2) for each in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(*by_head, mask).transpose(1, 2)


def losses(text: str) -> dict[int, float]:
    """The losses that were printed, by step; the last one, 0, is that of the evaluation."""
    found = {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss ([\d.]+)", text, re.MULTILINE)}
    if last := re.search(r"^loss (\d\.\d{5})$", text, re.MULTILINE):
        found[0] = float(last[1])
    return found


def same(one: dict[int, float], other: dict[int, float]) -> bool:
    return one.keys() == other.keys() and all(one[step] == pytest.approx(other[step], abs=WITHIN) for step in one)


def plainly(trainer, args, mesh) -> dict[int, float]:
    """The losses of a training loop written with plain PyTorch: one process, and each batch as a whole."""
    cpu = torch.device("cpu")
    data = prepared(trainer, args, mesh)
    sharded = trainer.build(args, mesh, cpu, data.vocabulary)
    model = trainer.GPT(args, data.vocabulary)
    model.load_state_dict({k: v.full_tensor() for k, v in get_model_state_dict(sharded).items()})
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    others = [p for name, p in model.named_parameters() if "norm" not in name]
    groups = [{"params": others, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, lr=1, betas=(0.9, 0.95), foreach=False)
    rates = [0.5, 1, *(0.1 + 0.9 * (1 + np.cos(np.pi * (step - 2) / 10)) / 2 for step in range(2, 12))]
    found = {}

    def mean_loss(sequences, numbers):
        batch = data.micro_batch(np.stack([sequences.read(number) for number in numbers], axis=1))
        return model(*batch) / (batch[1] >= 0).sum()

    for step, rate in enumerate(rates):
        loss = mean_loss(data.training, data.batch(step))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad *= min(1, 1 / norm)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate
        optimizer.step()
        found[step + 1] = loss.item()
    return found | {0: mean_loss(data.held_out, range(len(data.held_out))).item()}


def test_two_ranks_take_the_steps_of_one_process_with_whole_batches(trainer, folder, said, alone, monkeypatch):
    """Seven sequences on two ranks, in micro-batches of two: each part has another number of tokens."""
    args = options(trainer, folder, "--steps", STEPS)
    monkeypatch.setattr(trainer, "attend", dense)
    found = plainly(trainer, args, alone)
    assert set(found) == set(range(STEPS + 1))
    assert same(losses(said["plain"]), found), (said["plain"], found)


@pytest.mark.parametrize("title", ["layers", "chunks", "recomputed", "replicas", "cut"])
def test_no_way_to_share_out_work_changes_a_step(said, on_four, title):
    """Cut layers and logits, chunks of logits, recomputed blocks, and replicas of shards on four ranks."""
    output = (said | on_four)[title]
    found = losses(output)
    del found[0]  # after fewer steps
    right = losses(said["plain"])
    assert len(found) >= 4 and same(found, {step: right[step] for step in found})
    norms = [re.findall(r"norm ([\d.]+)", text)[:4] for text in (output, said["plain"])]
    assert norms[0] == norms[1] and len(norms[0]) == 4


def test_no_rank_has_the_logits_of_more_tokens_or_words_than_it_may(said):
    shapes = ast.literal_eval(re.search(r"logits (.*)", said["chunks"])[1])
    assert {words for _, words in shapes} == {160} and max(tokens for tokens, _ in shapes) == 16


def test_three_steps_are_traced(folder, said):
    for rank in (0, 1):
        with gzip.open(folder / "recomputed" / f"trace_of_rank_{rank}.json.gz", "rt") as file:
            assert file.read().count('"name": "ProfilerStep#') == 3


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
    line = said["plain"].splitlines()[-3]
    number = r"[\d.,]+"
    log = rf"step 12: loss {number}, gradient norm {number}, {number} tokens/s, ([\d.]+) GB, goodput (\d+)%"
    found = re.fullmatch(log, line)
    assert found, line
    assert 0.1 < float(found[1]) < 4 and 0 < int(found[2]) <= 100


def test_the_mfu_counts_six_operations_per_weight_and_attention(trainer, folder, alone):
    """A block has 12 matrices of width x width. The head is one, and attention multiplies twice per layer."""
    args = options(trainer, folder)
    model = trainer.build(args, alone, torch.device("cpu"), 320)
    weights = 2 * (12 * 32**2 + 2 * 32) + 320 * 32
    assert trainer.flops_per_token(args, model) == 6 * weights + 2 * 6 * 2 * 32 * 64


def test_another_seed_is_refused_on_every_rank(folder, said):
    for rank in (0, 1):
        sentence = f"--out {folder}/plain has a run with --seed 1, and you gave 2: give the same, or another folder."
        assert printed(folder, rank)["seed"].strip() == sentence


@pytest.mark.parametrize(
    "words",
    [
        ("--steps", 0, "argument --steps: 0 isn't at least 1"),
        ("--steps", "ten", "argument --steps: invalid positive value: 'ten'"),
        ("--batch", -1, "argument --batch: -1 isn't at least 1"),
        ("--dtype", "fp64", "argument --dtype: invalid choice: 'fp64'"),
        ("--mesh", "2*1", "argument --mesh: invalid mesh value: '2*1'"),
        ("--mesh", "2", "argument --mesh: 2 has neither two numbers, as in 8x2, nor three, as in 2x8x2"),
        ("--mesh", "2x0", "argument --mesh: 0 isn't at least 1"),
        ("--mesh", "3x1", "--mesh 1x3x1 isn't for 2 ranks: give numbers with this product"),
        ("--mesh", "1x2", "--heads", 1, "--heads 1 isn't a multiple of 2, into which --mesh cuts them"),
        ("--mesh", "1x2", "--tokens", 63, "--tokens 63 isn't a multiple of 2, into which --mesh cuts them"),
        ("--width", 33, "--width 33 isn't a multiple of --heads 2"),
        *(("--lr", value, f"--lr {float(value)} isn't a number above 0") for value in ("nan", "inf", "0", "-1")),
        *(("--dropout", value, f"--dropout {value} isn't a number from 0 to below 1") for value in ("nan", "1.5")),
        ("--seed", -1, "--seed -1 isn't a number from 0 to below 2**63"),
        ("--text", "nowhere", "--text nowhere isn't a folder"),
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


def test_text_that_cannot_be_read_is_named_before_anything_starts(trainer, tmp_path, capsys):
    """A folder with a file's ending, and a broken link. Then a single file, beside which none could be held out."""
    text = tmp_path / "text"
    text.mkdir()
    (text / "b.txt").symlink_to("nowhere")
    (text / "a.txt").mkdir()
    with pytest.raises(SystemExit):
        options(trainer, tmp_path)
    assert f"--text {text} has files that can't be read: a.txt, b.txt\n" in capsys.readouterr().err
    (text / "b.txt").unlink()
    (text / "a.txt").rmdir()
    (text / "c.txt").write_text("alone")
    with pytest.raises(SystemExit):
        options(trainer, tmp_path)
    assert f"--text {text} has 1 .py, .md, .txt files: give two or more\n" in capsys.readouterr().err


def test_tokens_that_were_prepared_elsewhere_and_are_missing_are_named(trainer, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["trainer.py", "--prepared", "nowhere"])
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(SystemExit):
        trainer.parse_arguments()
    assert "--prepared nowhere has no tokens: give --text, too" in capsys.readouterr().err


OTHER_TOKENS = "has the tokens of other files, or of another tokenizer: delete it, or give another --prepared"


def write(folder, texts) -> None:
    (folder / "text").mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / "text" / f"{number:02}.txt").write_bytes(text)


def test_each_byte_is_prepared_once_and_what_is_held_out_shares_no_document_with_training(
    trainer, alone, tmp_path, monkeypatch
):
    """The first attempt is interrupted after a batch of files, and the second goes on from there."""
    texts = [bytes([65 + number]) * number for number in range(20)]
    write(tmp_path, texts)
    args = options(trainer, tmp_path, "--tokens", 16)
    encode, end = trainer.tokenizer("bytes")
    tokenized = []

    def interrupted(texts):
        tokenized.extend(texts)
        if len(tokenized) == 20:
            raise KeyboardInterrupt
        return encode(texts)

    monkeypatch.setattr(trainer, "FILES", 7)
    monkeypatch.setattr(trainer, "tokenizer", lambda name: (interrupted, end))
    with pytest.raises(KeyboardInterrupt):
        trainer.prepare(args)
    with pytest.raises(SystemExit, match="isn't complete on this node: start with --text and --prepare"):
        trainer.Data(args, alone, torch.device("cpu"))
    for split in ("training", "held_out"):
        with open(args.prepared / split, "ab") as file:
            file.write(b"half a document")
    data = prepared(trainer, args, alone)
    assert tokenized == texts + texts[14:], "what was written isn't tokenized again"
    held_out = {0, 10}
    for sequences, kept in ((data.training, {*range(20)} - held_out), (data.held_out, held_out)):
        tokens, targets = np.stack([sequences.read(number) for number in range(len(sequences))], axis=1)
        text = [token for number in sorted(kept) for token in (*texts[number], end)]
        assert targets[targets != trainer.NO_TARGET].tolist() == text
        assert tokens.flatten()[: len(text)].tolist() == [end, *text[:-1]]
        assert sequences.targets(np.arange(len(sequences))) == len(text)
    with open(args.prepared / "training", "ab") as file:
        file.truncate(1)
    with pytest.raises(SystemExit, match="training has lost tokens: delete .*tokens, and prepare it again"):
        trainer.prepare(args)
    os.utime(tmp_path / "text" / "00.txt", (1, 1))
    with pytest.raises(SystemExit, match=OTHER_TOKENS):
        trainer.prepare(options(trainer, tmp_path))


def test_a_tokenizer_of_the_library_sets_the_vocabulary(trainer, alone, tmp_path, monkeypatch, capsys):
    """A stand-in for Hugging Face's tokenizers, with a token per letter from 70,000 on."""

    class Tokenizer:
        from_file = classmethod(lambda cls, name: cls())
        get_vocab_size = staticmethod(lambda: 70_256)

        def encode_batch(self, texts, add_special_tokens):
            assert not add_special_tokens
            return [SimpleNamespace(ids=[70_000 + ord(letter) for letter in text]) for text in texts]

    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Tokenizer, __spec__=True))
    write(tmp_path, [b"ab", b"cd"])
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(SystemExit):
        options(trainer, tmp_path, "--tokenizer", "nowhere.json")
    assert "error: --tokenizer nowhere.json isn't a file" in capsys.readouterr().err
    data = prepared(trainer, options(trainer, tmp_path, "--tokenizer", tmp_path / "tokenizer.json"), alone)
    assert data.vocabulary == 70_272 and data.training.read(0)[1, :3].tolist() == [70_099, 70_100, 70_256]
    (tmp_path / "tokenizer.json").write_text("another one, with as many tokens")
    with pytest.raises(SystemExit, match=OTHER_TOKENS):
        trainer.prepare(options(trainer, tmp_path, "--tokenizer", tmp_path / "tokenizer.json"))


def test_a_corpus_of_gigabytes_takes_no_memory(trainer, folder, alone, tmp_path):
    """Neither its tokens nor the order of its sequences: a file with a hole of 8 GB, and no documents' end."""
    size = 2**33
    (tmp_path / "held_out").write_bytes(b"ab")
    with open(tmp_path / "training", "wb") as file:
        file.truncate(size)
    index = {"files": 2, "done": 2, "training": size, "held_out": 2, "digest": "", "end": 256, "dtype": "uint16"}
    (tmp_path / "index.json").write_text(json.dumps(index))
    args = options(trainer, folder, "--prepared", tmp_path)
    tracemalloc.start()
    data = trainer.Data(args, alone, torch.device("cpu"))
    for step in range(3):
        numbers = data.batch(step)
        list(data.micro_batches(data.training, numbers))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(data.training) == size / 2 / args.tokens and peak < 2**20
    (tmp_path / "held_out").write_bytes(b"a")
    with pytest.raises(SystemExit, match="held_out hasn't 2 bytes on this node"):
        trainer.Data(args, alone, torch.device("cpu"))


def test_every_epoch_has_every_sequence_once_whoever_trains_on_it(trainer, folder, alone):
    data = prepared(trainer, options(trainer, folder, "--batch", 10, "--evaluate-on", 2), alone)
    assert data.evaluated.tolist() == [0, len(data.held_out) - 1]
    size = len(data.training)
    drawn = np.concatenate([data.batch(step) for step in range(size)])
    for epoch in np.split(drawn, 10):
        assert sorted(epoch) == list(range(size))
    assert list(drawn[:size]) != list(drawn[size : 2 * size]) and list(drawn[:size]) != sorted(drawn[:size])
    for other in (1, 2, 3, 64, 65, 1000):
        assert sorted(trainer.shuffled(np.arange(other), other, [1, 2])) == list(range(other))
    batch = np.append(data.batch(0), size - 1)  # the last sequence, which has fewer targets
    right = sorted(data.training.targets(np.array([number])) for number in batch)
    for ranks in (1, 2, 3, 7, 16):
        data.ranks = ranks
        shares = []
        for rank in range(ranks):
            data.rank = rank
            shares.append(list(data.micro_batches(data.training, batch)))
        assert len({len(share) for share in shares}) == 1, "FSDP needs as many forward passes on every rank"
        counts = sorted(int(n) for share in shares for part in share for n in (part[1] != trainer.NO_TARGET).sum(1))
        assert [count for count in counts if count > 0] == right


def test_on_a_gpu_documents_go_to_the_kernel_for_variable_lengths(trainer, monkeypatch):
    """On tensors without values, because no GPU is at hand: the kernel accepts what it gets."""
    kernel = trainer.varlen_attn
    shapes = []

    def noted(query, *others, **options):
        shapes.append(query.shape)
        return kernel(query, *others, **options)

    monkeypatch.setattr(trainer, "varlen_attn", noted)
    with FakeTensorMode(), torch.no_grad():
        bounds = torch.tensor([0, 5, 16, 32], dtype=torch.int32, device="cuda")
        packed = torch.empty(2, 16, 4, 3, 8, dtype=torch.bfloat16, device="cuda")
        mixed = trainer.attend(*packed.unbind(3), trainer.Documents(np.array([5, 11, 16]), bounds, False))
    assert mixed.shape == (2, 16, 4, 8) and shapes == [(32, 4, 8)]


def test_a_compiled_block_is_not_compiled_for_the_documents_of_each_micro_batch(trainer):
    counter = CompileCounter()
    block = torch.compile(trainer.Block(16, 2, 0.0), backend=counter)
    counts = []
    with torch.no_grad():
        for cuts in ([3], [5, 9], [7], [2, 4, 6], [1, 20], [1, 2, 3, 4, 5], [9]):
            firsts = np.array([0, *cuts])
            lengths = np.diff(firsts, append=32)
            block(torch.ones(2, 16, 16), trainer.Documents(lengths, torch.tensor([*firsts, 32]), False))
            counts.append(counter.frame_count)
    assert len(set(counts[3:])) == 1, counts


@pytest.mark.parametrize(
    ("device", "asked", "dtype", "matmul"),
    [("cpu", None, "fp32", []), ("cuda", None, "bf16", ["high"]), ("cuda", "fp32", "fp32", ["high"])],
)
def test_a_gpu_gets_bf16_and_tf32(trainer, monkeypatch, device, asked, dtype, matmul):
    chosen = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", chosen.append)
    args = argparse.Namespace(dtype=asked)
    trainer.set_precision(args, torch.device(device))
    assert args.dtype == dtype and chosen == matmul


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 156e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA Z1", "bf16", None),
    ],
)
def test_the_peak_depends_on_the_device(trainer, alone, monkeypatch, capsys, name, dtype, peak):
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(get_device_name=lambda _: name))
    assert trainer.peak_flops(argparse.Namespace(dtype=dtype), torch.device("cuda")) == peak
    sentence = f"PEAK_FLOPS doesn't have {name}, so no MFU is printed: add it.\n"
    assert capsys.readouterr().out == ("" if peak else sentence)


def test_a_large_vocabulary_has_units_of_its_own(trainer, folder, alone):
    """Then embedding and head aren't gathered together with the root's weights."""
    args = options(trainer, folder)
    for vocabulary, are_units in ((320, False), (384, True)):  # a block has 384 x 32 weights
        model = trainer.build(args, alone, torch.device("cpu"), vocabulary)
        assert isinstance(model.token, FSDPModule) == isinstance(model.head, FSDPModule) == are_units


def test_an_unreadable_checkpoint_gives_way_to_the_one_before(trainer, folder, alone, tmp_path, capsys):
    args = options(trainer, folder)
    model = trainer.build(args, alone, torch.device("cpu"), 320)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints = trainer.Checkpoints(tmp_path, model, optimizer, {"seed": 1})
    weights = []
    for step in (10, 20, 30):
        weights.append(model.head.linear.weight.full_tensor().clone())
        checkpoints.save({"step": step})
        model.head.linear.weight.detach().add_(1)
    checkpoints.finish()
    places = tmp_path / "step_00000020", tmp_path / "step_00000030"
    assert sorted(tmp_path.iterdir()) == sorted(places), "older ones are gone"
    (tmp_path / "step_00000040").mkdir()  # as a crash leaves it, without .metadata
    [part] = places[1].glob("*.distcp")
    part.write_bytes(part.read_bytes()[:1000])
    assert checkpoints.load({"step": 0}) == {"step": 20}
    assert torch.equal(model.head.linear.weight.full_tensor(), weights[1])
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
        gc.enable()
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
    with open(tmp_path / "one" / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "loss": 1.2')  # as a kill leaves it
    for name, first in (("one", 5), ("three", stopped + 1)):
        on_one = on_one_rank(folder, tmp_path / name, monkeypatch, capsys)
        assert set(on_one) == {0, *range(first, STEPS + 1)}
        assert same(on_one, {step: right[step] for step in on_one}), name
        metrics = pd.read_json(tmp_path / name / "metrics.jsonl", lines=True)
        assert metrics["step"].tolist() == list(range(1, STEPS + 1)), "each step once, whoever logged it"
        assert same(dict(zip(metrics["step"], metrics["loss"], strict=True)), {s: right[s] for s in metrics["step"]})
        assert metrics["held_out_loss"].iloc[-1] == pytest.approx(right[0], abs=WITHIN)


def test_examine_finds_nothing(folder, tmp_path):
    report = examine(SCRIPT, "--text", folder / "text", *TINY, "--steps", STEPS, "--out", tmp_path / "out")
    assert [each for each in report.findings if each.level != "ok"] == [] and report.findings


def test_a_model_of_20_billion_parameters_fits_on_512_ranks(tmp_path):
    """In a dry run. Without recomputing, the peak would be 32 GB."""
    shape = "--width", 8192, "--heads", 64, "--layers", 24, "--tokens", 4096, "--batch", 256, "--micro-batch", 4
    place = "--text", SCRIPTS, "--out", tmp_path / "out"
    types = "--dtype", "bf16", "--recompute", "blocks"
    report = dry_run.dry_run(SCRIPT, *place, *shape, *types, world_size=512, mesh="64x8")
    parameters = sum(np.prod(shard.shape) for shard in report.shards)
    assert 19e9 < parameters < 21e9
    assert sum(report.state_bytes.values()) == pytest.approx(16 * parameters / 512, rel=0.01)
    assert report.peak_bytes < 8e9
    assert report.building_peak_bytes < 4e9 < 4 * parameters / 10, "never whole on any rank"
    assert {each.over for each in report.collectives} == {"world", "shard", "tensor"}
