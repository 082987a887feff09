"""The command line without ranks: what it refuses, what it calls an error, and what it draws."""

import contextlib
import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_line import workshop
from record_fixtures import run

from workshop_lib.cli import checks, commands, doctor, terminal, train
from workshop_lib.errors import InputError
from workshop_lib.machine import catalogue
from workshop_lib.machine.world import World
from workshop_lib.notebook.results import records
from workshop_lib.paths import ROOT
from workshop_lib.ranks import RankError
from workshop_lib.ranks.call import engine
from workshop_lib.training import checkpoint, record
from workshop_lib.training.backends.pytorch import TorchBackend
from workshop_lib.training.options import TrainOptions

ALONE = TorchBackend(World(0, 1, 0, "single"), torch.device("cpu"))


@pytest.mark.parametrize("option", [("--threads", "4"), ("--bind", "core"), ("--timeout", "60")])
def test_options_of_ranks_are_refused_without_ranks(option):
    ended = workshop("train", "--max-steps", 1, *option)
    assert ended.exit_code == 1
    assert ended.output.startswith(f"workshop: {option[0]}") and "--ranks N" in ended.output


def test_a_command_without_standard_streams_works_quietly():
    words = ["sh", "-c", 'exec "$0" -m workshop_lib machines <&- >&-', sys.executable]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.fixture
def doctor_raises(monkeypatch):
    """Makes `workshop doctor` call an action that fails."""
    return lambda action, *arguments: monkeypatch.setattr(doctor, "main", lambda _: action(*arguments))


@pytest.mark.parametrize(
    ("action", "arguments", "word"),
    [
        (record.check_identical, (["a", "b"],), "rank 1"),
        (record.over_ranks, ("test", np.array([0.0, 0.0, 9.0]), 10, ALONE), "9 test samples"),
        (records.read, ("/nonexistent",), "/nonexistent"),
        (open, ("/nonexistent",), "/nonexistent"),
    ],
)
def test_what_a_user_can_put_right_is_a_sentence(doctor_raises, action, arguments, word):
    doctor_raises(action, *arguments)
    ended = workshop("doctor")
    assert ended.exit_code == 1
    assert ended.output.startswith("workshop: ") and word in ended.output


@pytest.mark.parametrize(
    ("action", "arguments"), [(np.add, (np.zeros(2), np.zeros(3))), (torch.add, (torch.zeros(2), torch.zeros(3)))]
)
def test_what_torch_or_numpy_raise_keeps_its_traceback(doctor_raises, action, arguments):
    doctor_raises(action, *arguments)
    ended = workshop("doctor")
    assert isinstance(ended.exception, ValueError | RuntimeError)
    assert not isinstance(ended.exception, SystemExit) and "workshop: " not in ended.output


TYPED = """
--backend fsdp --comm mpi --network classic --precision bf16 --device cpu --seed 7 --checkpoint /c
--machine polaris --stands-for resnet-50 --epochs 3 --max-steps 9 --train-samples 99 --batch-size 8 --emulate-workers 4
--lr 0.5 --momentum 0.5 --weight-decay 0.01 --label-smoothing 0.05
--lr-scaling sqrt --warmup constant --warmup-epochs 0.25 --decay step
"""


def test_each_option_of_a_training_is_on_the_command_line_with_its_default(monkeypatch):
    chosen = []
    monkeypatch.setattr(train, "_train_as_one_rank", lambda options, out: chosen.append(options))
    monkeypatch.setattr("workshop_lib.training.backends.missing", lambda *_: [])  # wherever DeepSpeed isn't installed
    assert workshop("train").exit_code == 0
    typed = TYPED.split()
    assert workshop("train", *typed, "--resume", "--no-nesterov").exit_code == 0
    last = ("--backend", "deepspeed", "--zero-stage", 1, "--optimizer", "adam", "--data-dir", "/d")
    assert workshop("train", *last).exit_code == 0
    default, every = chosen[0].as_dict(), chosen[1].as_dict()
    assert chosen[0] == TrainOptions()
    assert chosen[2] == TrainOptions(backend="deepspeed", zero_stage=1, optimizer="adam", data_dir="/d")
    taken = {f"--{name.replace('_', '-')}": str(value) for name, value in every.items() if value != default[name]}
    assert taken == {**dict(zip(typed[::2], typed[1::2], strict=True)), "--resume": "True", "--nesterov": "False"}
    assert len(taken) == len(every) - 3, "every option but the three of the last training"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["trian"], "there is no command 'trian'"),
        (["train", "--speed", "9"], "unrecognized arguments: --speed 9 (see workshop train --help)"),
        (["train", "--epo", "9"], "unrecognized arguments: --epo 9"),
        (["train", "--epochs", "few"], "--epochs: invalid int value: 'few'"),
        (["plot"], "required: FILE (see workshop plot --help)"),
        (["engines"], "required: COMMAND"),
    ],
)
def test_wrong_usage_is_one_sentence(typed, words):
    ended = workshop(*typed)
    assert ended.exit_code == 2 and ended.output.startswith("workshop: ") and ended.output.count("\n") == 1
    assert words in ended.output


def test_help_lists_every_command_and_each_one_explains_itself():
    listed = workshop("--help")
    assert listed.exit_code == 0 and listed.output.startswith("usage: ")
    for name in commands.COMMANDS:
        assert f"\n {name} " in listed.output
        explained = workshop(name, "--help")
        assert explained.exit_code == 0 and explained.output.startswith(f"usage: workshop {name} ")
    assert workshop().output == listed.output


@pytest.fixture
def no_ranks(monkeypatch):
    """Fails when ranks are started."""
    monkeypatch.setattr(train.teams, "start", lambda *_, **__: pytest.fail("ranks were started"))


def another_run(path):
    options = checkpoint.must_match(TrainOptions(epochs=1), world_size=2, train_size=60_000, framework="PyTorch")
    checkpoint.write(path, {"must_match": options})
    return path


REFUSED = [
    (lambda at: ["--data-dir", at / "none"], "found no such folder"),
    (lambda at: ["--train-samples", 70000], "60,000 training samples"),
    (lambda at: ["--out", at / "empty"], "empty: the record cannot be written, because it is a folder"),
    (lambda at: ["--emulate-workers", 3], "emulate_workers 3: use a multiple"),
    (lambda at: ["--device", "cuda"], "device 'cuda': this PyTorch sees no GPU"),
    (lambda at: ["--checkpoint", at / "empty"], "empty: the checkpoint cannot be written, because it is a folder"),
    (lambda at: ["--checkpoint", at / "none", "--resume"], "none: no checkpoint to resume from"),
    (lambda at: ["--checkpoint", at / "file", "--resume"], "file: this is not a checkpoint"),
    (lambda at: ["--checkpoint", another_run(at / "other"), "--resume"], "other: written with epochs 1"),
    (lambda at: ["--resume"], "checkpoint"),
    (lambda at: ["--ranks", 0], "--ranks 0"),
    (lambda at: ["--backend", "fsdp", "--zero-stage", 3], "zero_stage 3"),
]
NO_NUMBERS = [(lambda at: ["--ranks", "1,x"], "whole numbers"), (lambda at: ["--zero-stages", "all"], "whole numbers")]
SWEEP, TRAIN = ("sweep", "--ranks", "1,2", "--backends", "ddp"), ("train", "--ranks", 2)


@pytest.mark.usefixtures("no_ranks")
@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    # REFUSED[3] is refused for the second number of ranks: sweep checks them all before it starts any.
    [(TRAIN, *case) for case in REFUSED]
    + [(SWEEP, *REFUSED[at]) for at in (0, 2, 3)]
    + [(SWEEP, *case) for case in NO_NUMBERS],
)
def test_what_no_rank_could_use_is_refused_before_one_starts(tmp_path, monkeypatch, command, arguments, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    typed = arguments(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    ended = workshop(*command, *typed)
    assert ended.exit_code == 1 and ended.output.startswith("workshop: ") and ended.output.count("\n") == 1
    assert words in ended.output
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("no_ranks")
def test_ranks_on_other_hosts_look_for_their_files_themselves(monkeypatch):
    monkeypatch.setenv("WORKSHOP_ATTACH", "1")
    checks.before_ranks(TrainOptions(data_dir="/only/there", checkpoint="/only/there", device="cuda"), 2, None)


def test_the_result_is_printed_before_its_record_is_written(capsys):
    with pytest.raises(records.RecordError, match="the disk is full"):
        train._report(run("mpi", 2), "/dev/full")
    assert capsys.readouterr().out.startswith("mpi, 2 ranks: ")


def test_ctrl_c_stops_a_process_alone_and_keeps_its_record(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(terminal.OfThisRank, "on_epoch", lambda *_: signal.raise_signal(signal.SIGINT))
    handler, out = signal.getsignal(signal.SIGINT), tmp_path / "runs.jsonl"
    ended = workshop("train", "--data-dir", small_mnist, "--train-samples", 640, "--out", out)
    assert ended.exit_code == 130
    assert f"the training was stopped before its end. Its record in {out} says so." in ended.output
    (record,) = records.read(out)
    assert record["stopped"] and len(record["epochs"]) == 1
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_is_passed_on_to_ranks_and_a_second_one_ends_the_process():
    sent = []
    team = SimpleNamespace(send_signal=lambda ranks, number: sent.append((ranks, number)))
    with contextlib.closing(terminal.Interrupt()) as interrupt:
        interrupt.arm()
        view = terminal.OfTeam(2, team=team, interrupt=interrupt, show=False)
        view.update([{}, {}], 0.0, [0, 1])
        assert not sent
        signal.raise_signal(signal.SIGINT)
        for _ in range(2):
            view.update([{}, {}], 0.0, [0, 1])
        assert sent == [([0, 1], signal.SIGUSR2)]
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGINT)
    assert ended.value.code == 130


SENTENCE = {"what": "raised DataError", "text": "/data: no such folder", "frames": []}
QUOTED = {"what": "raised RunError", "text": "rank 1 could not go on: DataError: /data: no such folder", "frames": []}
BUG = {
    "what": "raised ZeroDivisionError",
    "text": "ZeroDivisionError",
    "frames": [{"file": "a", "line": 1, "name": "f"}],
}


@pytest.mark.parametrize(
    ("text", "reports", "said"),
    [
        ("The ranks did not start: no MPI\nits log", None, "The ranks did not start: no MPI\nits log"),
        ("any", (SENTENCE, SENTENCE), "/data: no such folder"),
        ("any", (QUOTED, SENTENCE), "rank 1 could not go on: DataError: /data: no such folder"),
        ("rank 1 raised:\n    a line\nThe ranks are ready.", (BUG, SENTENCE), "rank 1 raised:\n    a line"),
        ("not finished\n`timeout=`", (), "not finished\nIf the work only needs longer, give --timeout more seconds."),
    ],
)
def test_errors_of_ranks_are_told_without_what_is_for_notebooks(text, reports, said):
    error = RankError(text)
    error.reports = reports
    assert terminal.text_of(error) == said


def test_a_rank_reports_a_mistake_of_the_user_without_frames_of_the_library():
    with pytest.raises(InputError) as raised:
        TrainOptions(epochs=0)
    report = engine.describe(raised.value)
    assert (report["what"], report["text"]) == ("raised InputError", str(raised.value))
    assert {frame["file"] for frame in report["frames"]} == {__file__}


def test_notes_say_what_is_unusual_about_a_run():
    info = {"oversubscribed": False, "cores": "2 cores", "world_size": 9}
    assert terminal.notes(info) == []
    (line,) = terminal.notes(info | {"oversubscribed": True})
    assert "9 ranks" in line and "oversubscribed" in line


def test_a_wrong_option_is_refused_before_anything_slow_is_imported():
    code = (
        "import sys; from workshop_lib.cli import call\n"
        "code = call(['train', '--epochs', '0'])\n"
        "print(code, *{'torch', 'numpy', 'mpi4py', 'pandas'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["1"] and ran.stderr.startswith("workshop: epochs 0")


@pytest.mark.parametrize(
    ("ranks", "changes", "drawn", "said"),
    [
        ((1, 2), {}, ["accuracy.png", "scaling.png"], ""),
        ((2, 4), {}, ["accuracy.png", "solution.png"], ""),
        ((2, 2), {}, ["accuracy.png"], "no solution curve: time against ranks needs runs on several"),
        ((1, 2), {"lr": 0.4}, [], "no accuracy curve: these records mix runs with lr = 0.1 and 0.4"),
        ((2, 2), {"emulate_workers": 16}, ["workers.png"], ""),
    ],
)
def test_each_figure_is_drawn_if_it_can_be(tmp_path, ranks, changes, drawn, said):
    runs = [run("mpi", n) for n in ranks]
    runs[1]["what"] |= changes
    for made in runs:
        records.write(tmp_path / "runs.jsonl", made)
    ended = workshop("plot", tmp_path / "runs.jsonl", "--out-dir", tmp_path / "figures")
    assert said in ended.output
    assert ended.exit_code == (0 if drawn else 1)
    assert sorted(path.name for path in (tmp_path / "figures").glob("*")) == drawn


def test_the_losses_of_the_trainer_are_drawn(tmp_path):
    lines = [{"step": 1, "loss": 3.5}, {"step": 2, "loss": 2.5, "held_out_loss": 2.7}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = workshop("plot", tmp_path / "metrics.jsonl", "--out-dir", tmp_path)
    assert ended.exit_code == 0 and (tmp_path / "loss.png").exists(), ended.output


def test_a_reader_that_has_seen_enough_ends_a_command_quietly():
    command = [sys.executable, "-u", "-m", "workshop_lib", "predict", "resnet-50", "polaris"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 1


def test_the_machines_that_can_be_emulated_are_listed():
    ended = workshop("machines")
    assert ended.exit_code == 0
    for name in catalogue.emulated_machines():
        assert name in ended.output
