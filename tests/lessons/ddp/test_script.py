"""The script of 05: the learner's parts make the finished one, and wrong ones are rejected with their hint."""

import itertools
from collections.abc import Iterable
from functools import partial

import pytest

from workshop_lib.judge import Verdict, observe_one
from workshop_lib.lessons.ddp import judge_script as script
from workshop_lib.maintain import generate
from workshop_lib.notebook.take_home import diff
from workshop_lib.paths import SCRIPTS

pytestmark = [pytest.mark.lesson("05"), pytest.mark.usefixtures("healthy")]

FINISHED = (SCRIPTS / "ddp.py").read_text(encoding="utf-8")
SAVES = "        if rank == 0:\n"
SAMPLER = "DistributedSampler(train, seed=1)"
WRONG = {
    "the same images": ([(SAMPLER, "DistributedSampler(train, size, 0, seed=1)")], "no image comes twice"),
    "all test everything": ([("Subset(test, range(rank, len(test), size))", "test")], "each test image is tested once"),
    "all print and save": ([(SAVES, "        if True:\n")], "no other rank prints"),
    "all save": ([(SAVES, "        if True:\n"), (" print(", " rank or print(")], "no other rank does"),
    "nobody saves": ([("            save(", "            print(")], "rank 0 writes the checkpoint"),
}
RIGHT = {
    "finished": [],
    "in blocks": [
        (SAMPLER, "torch.utils.data.RandomSampler(range(rank * len(train) // size, (rank + 1) * len(train) // size))"),
        (script.LOADER, "DataLoader(Subset(train, sampler.data_source), BATCH, shuffle=True, drop_last=True)"),
        ("        sampler.set_epoch(epoch)", "        "),
    ],
    "the wrapper everywhere": [
        ("ddp = Dist", "model = Dist"),
        ("(ddp(", "(model("),
        ("model.state_dict()", "model.module.state_dict()"),
    ],
}


def judged(replacements: Iterable[tuple[str, str]]) -> Verdict:
    text = FINISHED
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    verdict: Verdict = script.converted(partial(str, text))
    return verdict


@pytest.mark.parametrize("title", RIGHT)
def test_a_right_script_passes(team, title):
    verdict = judged(RIGHT[title])
    assert verdict.passed is True, verdict


@pytest.mark.parametrize("edit", script.EDITS, ids=range(len(script.EDITS)))
def test_a_known_mistake_is_rejected_with_its_hint(team, edit):
    verdict = judged(edit.replacements)
    assert verdict.passed is False
    assert verdict.hint == edit.hint, verdict


@pytest.mark.parametrize("title", WRONG)
def test_another_wrong_script_is_rejected(team, title):
    replacements, failed = WRONG[title]
    verdict = judged(replacements)
    assert verdict.passed is False
    assert failed in verdict.failed, verdict


def parts(solved: bool) -> str:
    """The cell of the notebook that holds the parts."""
    source = (generate.NOTEBOOKS / "source" / "05_ddp.py").read_text(encoding="utf-8")
    text = generate.split(source, "05_ddp.py")[solved]
    return text.split("changes.py\n", 1)[1].split("\n# %%", 1)[0]


def test_the_parts_of_the_solution_make_the_finished_script():
    def code(text: str) -> list[str]:
        lines = [line.split("  #")[0].rstrip() for line in text.splitlines()[1:]]
        return [line for line in lines if line]

    assert code(script.filled(parts(solved=True))) == code(FINISHED)


def test_the_stub_is_the_script_for_one_process_and_not_solved_yet(tmp_path):
    def main(text: str) -> list[str]:
        return [line.split("  #")[0] for line in text.partition(script.MAIN)[2].splitlines()]

    known = main((SCRIPTS / "one_process.py").read_text(encoding="utf-8"))
    lines = main(script.filled(parts(solved=False)))
    join = ["    device = join()", "    rank = dist.get_rank()", "    size = dist.get_world_size()"]
    own_noise = "    torch.manual_seed(1000 + rank)"
    statistics = ["        for buffer in model.buffers():", "            dist.broadcast(buffer, 0)"]
    given = [*join, own_noise, *statistics, "    ...", script.LAST.rstrip()]
    lines = [line.replace("steps * size * BATCH", "steps * BATCH") for line in lines if line not in given]
    assert lines == [line for line in known if "device = " not in line]
    (tmp_path / "changes.py").write_text(parts(solved=False))
    assert script.script(tmp_path / "changes.py").passed is None
    assert script.own_or_finished(tmp_path / "changes.py") == SCRIPTS / "ddp.py"


def test_a_script_that_ends_itself_is_an_error_of_the_learners_on_a_rank_that_goes_on():
    text = (SCRIPTS / "one_process.py").read_text(encoding="utf-8").replace("steps = len(loader)", "steps = 1")
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
    assert script.own_or_finished(changes).read_text().endswith(script.LAST + script.END + "    main()\n")
    assert (tmp_path / "mnist_data.py").exists(), "so that it starts from there"


def test_the_difference_of_two_scripts_is_shown_in_colors_with_a_little_of_what_they_share():
    shown = diff("one_process.py", "ddp.py")
    assert "\n     model = cnn().to(device)\n+    ddp = DistributedDataParallel(model)\n" in repr(shown)
    assert "optimizer.step()" not in repr(shown)
    assert all(line.strip() for gap, line in itertools.pairwise(shown.lines) if gap == "⋯")
    green, red, plain = "rgba(0, 158, 115, 0.25)", "rgba(213, 94, 0, 0.25)", "transparent"
    rows = dict.fromkeys((green, red, plain), 0)
    for line in shown.lines:
        rows[{"+": green, "-": red}.get(line[0], plain)] += 1
    assert {color: shown._repr_html_().count(color) for color in rows} == rows
