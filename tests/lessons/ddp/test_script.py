"""The script of 05: the learner's parts make the finished one, and wrong ones are rejected."""

import ast
from collections.abc import Iterable
from functools import partial

import pytest

from workshop_lib.classroom import generate
from workshop_lib.exercises.judge import Verdict
from workshop_lib.notebook.take_home import diff
from workshop_lib.paths import SCRIPTS

from lessons.ddp import judge_script as script

pytestmark = [pytest.mark.lesson("05"), pytest.mark.usefixtures("healthy")]

FINISHED = (SCRIPTS / "ddp.py").read_text(encoding="utf-8")
MAIN = "def main():\n"
SAVES = "        if rank == 0:\n"
SAMPLER = "DistributedSampler(train, seed=1)"
LOADER = "DataLoader(train, BATCH, sampler=sampler, drop_last=True)"
WRONG = {
    "all images": ([(LOADER, "DataLoader(train, BATCH, shuffle=True, drop_last=True)")], "each rank takes 64 images"),
    "a part of the batch": ([("train, BATCH,", "train, BATCH // size,")], "there were batches of 32"),
    "for two ranks": ([("len(test), size", "len(test), 2")], "when a rank is alone"),
    "the same images": ([(SAMPLER, "DistributedSampler(train, size, 0, seed=1)")], "no image comes twice"),
    "one order": ([("sampler.set_epoch(epoch)", "sampler.set_epoch(1)")], "each epoch has an order of its own"),
    "not wrapped": ([("(ddp(images", "(model(images")], "all ranks end with the same weights"),
    "tested twice": ([("Subset(test, range(rank,", "Subset(test, range(0,")], "each test image is tested once"),
    "its own share": ([("        dist.all_reduce(right)\n", "")], "rank 0 prints the accuracy on all test images"),
    "all save": ([(SAVES, "        if True:\n"), (" print(", " rank or print(")], "no other rank prints or saves"),
    "the wrapper's names": ([("model.state_dict()", "ddp.state_dict()")], "one process can load it"),
}
RIGHT = {
    "finished": [],
    "in blocks": [
        (SAMPLER, "torch.utils.data.RandomSampler(range(rank * len(train) // size, (rank + 1) * len(train) // size))"),
        (LOADER, "DataLoader(Subset(train, sampler.data_source), BATCH, shuffle=True, drop_last=True)"),
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


@pytest.mark.full
def test_a_collective_on_one_rank_alone_gets_the_hint_even_if_gloo_aborts(team):
    alone = "        if rank == 0:\n            dist.all_reduce(right)\n"
    verdict = judged([("        dist.all_reduce(right)\n", alone)])
    assert verdict.passed is False
    assert script.ON_EVERY_RANK in verdict.hint


def test_an_error_of_the_script_names_its_file_and_line_once(team):
    verdict = judged([("Parallel(model)", "Parallel(modell)")])
    line = 1 + FINISHED[: FINISHED.index("Parallel(model)")].count("\n")
    assert verdict.details.count(f"    my_script.py, line {line}, in main\n        ddp = Distributed") == 1, verdict


@pytest.mark.parametrize("title", WRONG)
def test_a_wrong_script_is_rejected(team, title):
    replacements, failed = WRONG[title]
    verdict = judged(replacements)
    assert verdict.passed is False
    assert failed in f"{verdict.failed}\n{verdict.hint}", verdict


def written(solved: bool) -> str:
    """The cell of the notebook that holds the script."""
    source = (generate.NOTEBOOKS / "source" / "05_ddp.py").read_text(encoding="utf-8")
    text = generate.split(source, "05_ddp.py")[solved]
    return text.split(f"{script.NAME}\n", 1)[1].split("\n# %%", 1)[0]


def code(text: str) -> list[str]:
    """The lines of main(), without comments, and however wide they are."""
    function = ast.parse(MAIN + text.partition(MAIN)[2]).body[0]
    return ast.unparse(function).splitlines()[1:]


TOO_FEW = ["    if steps < 2:", "        raise SystemExit(f'--images"]  # a check that the notebook leaves out


def without(lines: list[str], some: list[str]) -> list[str]:
    return [line for line in lines if not any(line.startswith(each) for each in some)]


def test_the_solution_is_the_finished_script():
    assert code(written(solved=True)) == without(code(FINISHED), TOO_FEW)


def test_the_stub_is_the_script_for_one_process_and_not_solved_yet(tmp_path):
    group = [
        "    device = ",
        "    rank = ",
        "    size = ",
        "    dist.destroy",
        "        for buffer",
        "            dist.broad",
    ]
    given = [*group, "    torch.manual_seed(1000", "    ...", "        ...", "        speed = "]
    known = (SCRIPTS / "one_process.py").read_text(encoding="utf-8")
    assert without(code(written(solved=False)), given) == without(code(known), [*TOO_FEW, *given])
    path = tmp_path / script.NAME
    path.write_text(written(solved=False))
    assert script.script(path).passed is None
    assert script.own_or_finished(path) == SCRIPTS / "ddp.py"


def test_a_right_script_starts_from_its_folder(team):
    path = script.folder_for_scripts() / script.NAME
    path.write_text(written(solved=True))
    assert script.script(path).passed is True
    assert script.own_or_finished(path) == path
    assert {*script.HELPERS} <= {file.name for file in path.parent.iterdir()}


def test_the_difference_of_two_scripts_is_shown_in_colors_with_a_little_of_what_they_share():
    shown = diff("one_process.py", "ddp.py")
    assert "\n     model = cnn().to(device)\n+    ddp = DistributedDataParallel(model)\n" in repr(shown)
    assert "optimizer.step()" not in repr(shown)
    green, red, plain = "rgba(0, 158, 115, 0.25)", "rgba(213, 94, 0, 0.25)", "transparent"
    rows = dict.fromkeys((green, red, plain), 0)
    for line in shown.lines:
        rows[{"+": green, "-": red}.get(line[0], plain)] += 1
    assert {color: shown._repr_html_().count(color) for color in rows} == rows
