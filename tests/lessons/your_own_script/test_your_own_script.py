"""The exercises of 15: a converted or repaired script passes if the report is clean and it prints and saves rightly."""

import itertools
import shutil

import pytest

from workshop_lib.examine.observations import Run
from workshop_lib.findings import Finding
from workshop_lib.paths import SCRIPTS
from workshop_lib.ranks.launch import processes

from lessons.your_own_script import judge as check
from lessons.your_own_script.report import Examined, examine

OPTIONS = ["--images", 1_200, "--tested", 301, "--epochs", 2]
WRONG = {
    "64 images per rank": ([("BATCH // size", "BATCH")], check.BATCH_HINT.format(128)),
    "saved with the wrapper": ([('"model": model.state', '"model": ddp.state')], check.WRAPPED_HINT),
}
SICK = "own_script_sick.py"
SAVES = 'torch.save({"epoch"'
FIVE_REPAIRS = [
    (
        "requires_grad_(epoch > 1)\n",
        "requires_grad_(epoch > 1)\n        sampler.set_epoch(epoch)\n        if epoch == 2:\n"
        "            ddp = DistributedDataParallel(model)\n",
    ),
    (
        "    loss_function = nn.CrossEntropyLoss()\n",
        "    torch.manual_seed(1000 * args.seed + rank)\n    loss_function = nn.CrossEntropyLoss()\n",
    ),
    (
        "DataLoader(test, 500, sampler=DistributedSampler(test, shuffle=False))",
        "DataLoader(torch.utils.data.Subset(test, range(rank, len(test), size)), 500)",
    ),
    ("(size * len(test_loader.sampler))", "len(test)"),
    (f"        {SAVES}", f"            {SAVES}"),
]


def verdict(folder, *edits, original=check.FINISHED.name, judge=check.train):
    text = (SCRIPTS / original).read_text(encoding="utf-8")
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    shutil.copy(SCRIPTS / "mnist_data.py", folder)
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    data = SCRIPTS.parent.parent / "assets" / "mnist"
    report = examine(script, "--data", data, *OPTIONS, "--out", folder / "train.pt", timeout_s=60.0)
    judged = judge(script, report, folder / "train.pt", epochs=2)
    used = check.own_or_finished(script, report, folder / "train.pt", epochs=2)
    assert used == (script if judged.passed else check.FINISHED)
    return judged


@pytest.mark.full
def test_the_finished_script_passes(tmp_path):
    """8 s."""
    passed = verdict(tmp_path)
    assert passed.passed, passed
    assert not processes.strays()


@pytest.mark.full
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_script_is_rejected_with_its_hint(name, tmp_path):
    """8 s each."""
    edits, says = WRONG[name]
    rejected = verdict(tmp_path, *edits)
    assert rejected.passed is False and says in rejected.hint, rejected


def test_a_report_that_is_not_clean_and_an_accuracy_above_100_percent_are_rejected(tmp_path):
    printed = ["epoch 1: loss 0.123, accuracy 98.00%", "epoch 2: loss 0.100, accuracy 196.30%"]
    findings = [Finding("wrong", "weights", "they differ", remedy="Wrap the network.")]
    rules = check.rules(Examined(tmp_path, Run([], last_lines=printed), findings), tmp_path, 2)
    hints = [hint for _, hint in itertools.islice(rules, 5) if hint]
    assert hints == ["weights: they differ. Wrap the network.", check.SHARE_HINT.format(196.3)]


def test_the_learner_s_file_is_kept_and_unsolved_until_it_is_changed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = check.to_edit("own_script.py", "my_scripts/train.py")
    assert {path.name for path in script.parent.iterdir()} == {"train.py", "mnist_data.py"}
    assert check.train(script, Examined(script, None, []), tmp_path / "none.pt", 1).passed is None
    script.write_text("changed")
    assert check.to_edit("own_script.py", "my_scripts/train.py").read_text() == "changed"


def test_a_line_that_every_rank_prints_is_rejected(tmp_path):
    printed = 4 * ["epoch 1: loss 0.123, accuracy 98.00%"]
    rules = check.rules(Examined(tmp_path, Run([], last_lines=printed), []), tmp_path, 2)
    assert [hint for _, hint in itertools.islice(rules, 4) if hint] == [check.TWICE_HINT]


@pytest.mark.full
def test_the_report_names_five_of_the_six_faults_and_the_check_the_sixth(tmp_path):
    """16 s. On a busy machine a rank may really be late, and the report says so."""
    report = examine(SCRIPTS / SICK, *OPTIONS, "--out", tmp_path / "sick.pt", timeout_s=60.0)
    found = {each.check for each in report.findings if each.level != "ok"}
    assert found - {"straggler"} == {"weights", "order", "dropout", "augmentation", "padding", "files"}
    assert check.repair(report.path, report, tmp_path / "sick.pt", 2).passed is None
    repaired = verdict(tmp_path, *FIVE_REPAIRS, original=SICK, judge=check.repair)
    assert repaired.passed is False and "epoch 1 printed a loss of" in repaired.hint, repaired
