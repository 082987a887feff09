"""The exercise in which a learner edits mesh.py: what becomes of the script, and what the verdict says of a dry run."""

import math
from functools import reduce as combined

import pytest

from workshop_lib.course.solutions import Solution
from workshop_lib.lessons.thousand_ranks import edited
from workshop_lib.lessons.thousand_ranks import judge as check
from workshop_lib.lessons.thousand_ranks.step_report import Collective, Report, Shard

WRAP = "blocks = [checkpoint_wrapper(block) for block in blocks]"
UNITS = "for unit in (*blocks, model):"
ONE_UNIT = "for unit in (model,):"
PARAMETERS = round(check.whole_model())

LIMIT = 3


def uses_much(args):
    """What a learner may write, with a module, a function and a constant of the notebook."""
    return combined(math.hypot, args, LIMIT)


def source(*replacements) -> str:
    return Solution(check.NOTEBOOK, "build", replacements).text()


def test_a_learners_function_takes_the_place_of_the_scripts_own(tmp_path, monkeypatch):
    monkeypatch.setattr(edited, "FOLDER", tmp_path)
    text = edited.with_source(source()).read_text()
    compile(text, "mesh.py", "exec")
    assert text.count("def build(") == 1 and "checkpoint_wrapper(block)" in text
    assert "import checkpoint_wrapper" in text and 'if __name__ == "__main__":' in text
    one = edited.one_unit().read_text()
    assert ONE_UNIT in one and UNITS not in one


def test_what_a_learners_function_uses_is_imported_or_copied():
    text = edited.source_of(uses_much)
    for line in ("import math as math", "from _functools import reduce as combined", "LIMIT = 3", "def uses_much("):
        assert line in text


def dry_run(parameters=PARAMETERS, held=13e6, peak_bytes=36.6e9, sent_bytes=check.SENT_BYTES, calls=160) -> Report:
    """What the dry run of an edited script says; by default, of the solution."""
    sent = [Collective("allreduce", "tensor", 8, calls, 1.0), Collective("gather", "data", 64, 1, sent_bytes)]
    return Report(0, 512, [Shard("", [parameters], [held], [])], {}, peak_bytes, 10**12, sent)


def failed(**seen) -> list[tuple[str, str]]:
    """The rules that such a dry run breaks, with their hints."""
    return [(text, hint) for text, hint in check.rules(dry_run(**seen)) if hint]


@pytest.mark.parametrize(
    ("seen", "text", "hint"),
    [
        ({"parameters": 7}, "the same model", "Are all blocks in `model`"),
        ({"held": 130_000_000}, "its part of the weights", "keep `parallelize_module`"),
        ({"peak_bytes": 75.2e9, "calls": 128}, "it fits", "no block computes"),
        ({"peak_bytes": 72.5e9, "calls": 129}, "it fits", "too few"),
        ({"peak_bytes": 77e9, "sent_bytes": 4e9}, "it fits", "call `fully_shard` for each block"),
        ({"sent_bytes": 13e9}, "sends no more", "more than twice"),
    ],
)
def test_each_mistake_has_its_hint(seen, text, hint):
    [(broken, said)] = failed(**seen)
    assert text in broken and hint in said


def test_a_model_that_fits_passes_and_a_stub_is_not_judged():
    assert failed() == []

    def build(args, mesh, device):
        raise NotImplementedError

    assert check.build(build).passed is None


@pytest.mark.parametrize(("peak_bytes", "fits"), [(40e9, True), (74e9, False)])
def test_what_there_is_to_beat_has_a_score_if_it_fits(monkeypatch, peak_bytes, fits):
    monkeypatch.setattr(check, "dry_run_with", lambda source: dry_run(peak_bytes=peak_bytes))
    verdict = check.verdict_on("")
    assert verdict.passed is fits and (verdict.score is not None) is fits


@pytest.mark.full
@pytest.mark.parametrize(
    ("replacements", "hint"),
    [
        ((), ""),
        ((("fully_shard(unit,", "fully_shard(units,"),), "NameError"),
        (((WRAP, "blocks[::4] = [checkpoint_wrapper(block) for block in blocks[::4]]"),), ""),
        pytest.param(((WRAP, "pass"),), "no block computes", marks=pytest.mark.exhaustive),
        pytest.param(
            (("    for unit", "    model = checkpoint_wrapper(model)\n    for unit"), (WRAP, "pass")),
            "",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            ((UNITS, "for unit in (model,):"), (WRAP, "pass")), "for each block", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_the_dry_run_tells_a_script_that_fits_from_one_that_does_not(tmp_path, monkeypatch, replacements, hint):
    monkeypatch.setattr(edited, "FOLDER", tmp_path)
    verdict = check.verdict_on(source(*replacements))
    assert verdict.passed is not bool(hint), repr(verdict)
    assert hint in verdict.hint
