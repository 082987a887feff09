"""The exercise in which a learner edits mesh.py: what becomes of the script, and what the verdict says of a dry run."""

import math
from functools import reduce as combined

import pytest

from workshop_lib.course.solutions import Solution
from workshop_lib.lessons.thousand_ranks import edited
from workshop_lib.lessons.thousand_ranks import judge as check
from workshop_lib.lessons.thousand_ranks.judge import Edited

WRAP = "blocks = [checkpoint_wrapper(block) for block in blocks]"
UNITS = "for unit in (*blocks, model):"
ONE_UNIT = "for unit in (model,):"
RECOMPUTED = Edited("", round(check.whole_model()), 13_000_000, 36.6e9, check.SENT_BYTES, 160, 6.0)

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


@pytest.mark.parametrize(
    ("seen", "failed", "hint"),
    [
        (RECOMPUTED._replace(error="NameError in line 93"), "runs dry", "NameError"),
        (RECOMPUTED._replace(parameters=7), "the same model", "are all blocks in `model`"),
        (RECOMPUTED._replace(held=10 * 13_000_000), "its part of the weights", "keep `parallelize_module`"),
        (RECOMPUTED._replace(peak_bytes=75.2e9, allreduces=128), "it fits", "no block computes"),
        (RECOMPUTED._replace(peak_bytes=72.5e9, allreduces=129), "it fits", "too few"),
        (RECOMPUTED._replace(peak_bytes=77e9, sent_bytes=4e9), "it fits", "call `fully_shard` for each block"),
        (RECOMPUTED._replace(sent_bytes=13e9), "sends no more", "more than twice"),
    ],
)
def test_each_mistake_has_its_hint(seen, failed, hint):
    verdict = check.verdict_of(seen)
    assert verdict.passed is False and verdict.score is None
    assert failed in verdict.failed and hint.lower() in verdict.hint.lower()


def test_a_model_that_fits_passes_and_a_stub_is_not_judged():
    assert check.verdict_of(RECOMPUTED).passed

    def build(args, mesh, device):
        raise NotImplementedError

    assert check.build(build).passed is None


@pytest.mark.full
@pytest.mark.parametrize(
    ("replacements", "hint"),
    [
        ((), ""),
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
    verdict = check.verdict_of(check.observe(source(*replacements)))
    assert verdict.passed is not bool(hint), repr(verdict)
    assert hint in verdict.hint
