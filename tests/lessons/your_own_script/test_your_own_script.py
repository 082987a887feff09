"""The exercises of 15: a converted script passes if the report is clean, and each fault of the other one has a hint."""

import difflib
import itertools
import shutil

import pytest
from exercises.answers import code_cells

from workshop_lib.cli.findings import Finding
from workshop_lib.examine.observations import Run
from workshop_lib.paths import SCRIPTS
from workshop_lib.ranks.launch import processes

from lessons.your_own_script import judge as check
from lessons.your_own_script.report import Examined, examine

NOTEBOOK = "15_your_own_script"
FINISHED = check.FINISHED.read_text(encoding="utf-8")
OPTIONS = ["--images", 1_200, "--tested", 301, "--epochs", 2]
SAVES = '            torch.save({"epoch"'
PRINTS = "        if rank == 0:\n            print"
WRONG = {
    "all print": ([(PRINTS, "        print"), (SAVES, f"        if rank == 0:\n{SAVES}")], check.TWICE_HINT),
    "64 images per rank": ([("BATCH // size", "BATCH")], check.BATCH_HINT.format(128)),
    "saved with the wrapper": ([('"model": model.state', '"model": ddp.state')], check.WRAPPED_HINT),
}  # fmt: skip


def verdict(folder, *edits):
    text = FINISHED
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    shutil.copy(SCRIPTS / "mnist_data.py", folder)
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    data = SCRIPTS.parent.parent / "assets" / "mnist"
    report = examine(script, "--data", data, *OPTIONS, "--out", folder / "train.pt", timeout_s=60.0)
    judged = check.train(script, report, folder / "train.pt", epochs=2)
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


@pytest.mark.full
def test_the_report_names_five_of_the_six_faults(tmp_path):
    """8 s. On a busy machine a rank may really be late, and the report says so."""
    report = examine(SCRIPTS / "own_script_sick.py", *OPTIONS, "--out", tmp_path / "sick.pt", timeout_s=60.0)
    found = {each.check for each in report.findings if each.level != "ok"}
    assert found - {"straggler"} == {"weights", "order", "dropout", "augmentation", "padding", "files"}
    changed = [
        line for line in difflib.ndiff(FINISHED.splitlines(), report.path.read_text().splitlines()) if line[:2] == "- "
    ]
    assert any("all_reduce(loss_sum)" in line for line in changed), "the sixth is for reading"


def test_the_six_faults_pass():
    assert check.faults(set(check.GUILTY)).passed is True


def test_a_missed_fault_and_an_innocent_line_get_hints():
    guilty = set(check.GUILTY)
    missed = next(iter(check.GUILTY))
    innocent = next(iter(check.INNOCENT))
    for found, hint in ((guilty - {missed}, check.GUILTY[missed]), (guilty | {innocent}, check.INNOCENT[innocent])):
        verdict = check.faults(found)
        assert verdict.passed is False and verdict.hint == hint


def test_the_stub_counts_as_unsolved_and_has_all_twelve():
    [cell] = [cell for cell in code_cells(NOTEBOOK)[0] if "lesson.check.faults" in cell]
    namespace = {}
    exec(cell.replace("lesson.check.faults(faults)", ""), namespace)
    assert namespace["faults"] - {...} == set(check.GUILTY) | set(check.INNOCENT)
    assert check.faults(namespace["faults"]).passed is None
    assert "isn't in the list" in check.faults({"something else"}).failed
