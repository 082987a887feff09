"""The script of 05: the learner's parts make the finished one, and wrong ones are rejected with their hint."""

from functools import partial

import pytest
from judge.verdicts import observed, verdict_of

from workshop_lib.judge import observe_one
from workshop_lib.lessons.ddp import judge_script as script
from workshop_lib.maintain import generate
from workshop_lib.notebook.take_home import diff
from workshop_lib.paths import SCRIPTS

pytestmark = [pytest.mark.lesson("05"), pytest.mark.usefixtures("healthy")]

FINISHED = (SCRIPTS / "ddp.py").read_text(encoding="utf-8")
SAVES = "    if rank == 0:\n"
REDUCE = "    distributed.all_reduce(right)\n"
PICK = ".reshape(steps, size, 64)[:, rank]"
WRONG = {
    "the same images": ([(PICK, PICK.replace("rank", "0"))], script.SAME_HINT),
    "whole epochs": (
        [("steps = args.images // (64 * size)", "steps = args.images // 64 // size**2")],
        script.STEPS_HINT,
    ),
    "steps overlap": ([(PICK, ".reshape(steps, size, 64)[0 * np.arange(steps), rank]")], script.AGAIN_HINT),
    "not wrapped": ([("(ddp(images", "(model(images")], script.APART_HINT),
    "all test everything": (
        [("test_images[rank::size]", "test_images"), ("test_labels[rank::size]", "test_labels")],
        script.TESTED_HINT,
    ),
    "counts not added up": ([(REDUCE, "")], script.SHARE_HINT),
    "all print and save": ([(SAVES, "    if True:\n")], script.ALL_PRINT_HINT),
    "all save": ([(SAVES, "    if True:\n"), ("        print(", "        rank or print(")], script.ALL_SAVE_HINT),
    "nobody saves": (
        [("        args.out.with_suffix", "        args.epochs or args.out.with_suffix")],
        script.NOT_SAVED_HINT,
    ),
    "the wrapper's names": ([("model.state_dict()", "ddp.state_dict()")], script.WRAPPED_HINT),
}
RIGHT = {
    "finished": [],
    "in blocks": [(PICK, ".reshape(size, steps, 64)[rank]")],
    "the wrapper everywhere": [
        ("ddp = nn", "model = nn"),
        ("(ddp(", "(model("),
        ("model.state_dict()", "model.module.state_dict()"),
    ],
}


def changed(replacements: list[tuple[str, str]]) -> str:
    text = FINISHED
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def verdicts(team):
    texts = {title: changed(replacements) for title, replacements in RIGHT.items()}
    texts |= {title: changed(replacements) for title, (replacements, _) in WRONG.items()}
    answers = [partial(str, text) for text in texts.values()]
    seen = observed(script.converted, answers, lambda: team)
    return {title: verdict_of(script.converted, each) for title, each in zip(texts, seen, strict=True)}


@pytest.mark.parametrize("title", RIGHT)
def test_a_right_script_passes(title, verdicts):
    assert verdicts[title].passed is True, verdicts[title]


@pytest.mark.parametrize("title", WRONG)
def test_a_wrong_script_is_rejected_with_its_hint(title, verdicts):
    assert verdicts[title].passed is False
    assert verdicts[title].hint == WRONG[title][1], verdicts[title]


def parts(solved: bool) -> str:
    """The cell of the notebook that holds the parts."""
    source = (generate.NOTEBOOKS / "source" / "05_ddp.py").read_text(encoding="utf-8")
    text = generate.split(source, "05_ddp.py")[solved]
    return text.split("changes.py\n", 1)[1].split("\n# %%", 1)[0]


def test_the_parts_of_the_solution_make_the_finished_script():
    def code(text: str) -> list[str]:
        return [line.split("  #")[0] for line in text.splitlines()[1:]]

    assert code(script.filled(parts(solved=True))) == code(FINISHED)


def test_the_stub_is_the_script_for_one_process_and_not_solved_yet(tmp_path):
    one_process = (SCRIPTS / "one_process.py").read_text(encoding="utf-8")
    lines = [line.split("  #")[0] for line in script.filled(parts(solved=False)).splitlines()]
    given = ["from torch import distributed, nn", "...", "distributed.destroy_process_group()"]
    given += [line for line in lines if line.startswith("torch.cuda.set_device")]
    known = [line.split("  #")[0] for line in one_process.splitlines()]
    assert [line for line in lines if line not in given] == [line for line in known if line != "from torch import nn"]
    (tmp_path / "changes.py").write_text(parts(solved=False))
    assert script.script(tmp_path / "changes.py").passed is None
    assert script.own_or_finished(tmp_path / "changes.py") == SCRIPTS / "ddp.py"


def test_a_script_that_ends_itself_is_an_error_of_the_learners_on_a_rank_that_goes_on():
    text = (SCRIPTS / "one_process.py").read_text(encoding="utf-8").replace("steps = args.images // 64", "steps = 1")
    error = observe_one(None, script.observe_script, partial(str, text))
    assert "InputError: --images 640 is too few" in str(error)


def test_a_missing_part_is_named(tmp_path):
    (tmp_path / "changes.py").write_text("# 1. Join\npass\n")
    verdict = script.script(tmp_path / "changes.py")
    assert verdict.passed is False
    assert "part 2 is missing" in verdict.hint


def test_a_right_script_is_kept(tmp_path, team):
    changes = tmp_path / "changes.py"
    changes.write_text(parts(solved=True))
    assert script.script(changes).passed is True
    assert script.own_or_finished(changes).read_text().endswith("distributed.destroy_process_group()\n")


def test_the_difference_of_two_scripts_is_shown_without_what_they_share():
    text = diff("one_process.py", "ddp.py").data
    assert "\n+ddp = nn.parallel.DistributedDataParallel(" in text
    assert "optimizer.step()" not in text
