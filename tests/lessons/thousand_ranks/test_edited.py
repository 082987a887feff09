"""The exercise in which a function of the learner's changes mesh.py, and what the verdict says of a dry run."""

import pytest

from workshop_lib.dryrun.step_report import Report, Shard
from workshop_lib.exercises.solutions import Solution
from workshop_lib.forecast.forecast import Collective
from workshop_lib.paths import ROOT

from lessons.thousand_ranks import edited
from lessons.thousand_ranks import judge as check

SOLVED = "[checkpoint_wrapper(block) for block in blocks]"


def source(*replacements) -> str:
    return Solution(check.NOTEBOOK, "recompute", replacements).text()


def test_a_learners_function_gets_the_scripts_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(edited, "FOLDER", tmp_path)
    text = edited.with_source(source()).read_text()
    compile(text, "mesh.py", "exec")
    assert text.index(SOLVED) < text.index("def build(") < text.index("blocks = recompute(blocks)")
    assert "for unit in (model,):" in edited.one_unit().read_text()

    def recompute(blocks):
        return blocks

    assert edited.source_of(recompute).startswith("def recompute(blocks):")


def dry_run(parameters=check.PARAMETERS, peak_bytes=36.6e9, calls=160) -> Report:
    """What the dry run of a changed script says; by default, of the solution."""
    sums = [Collective("allreduce", "tensor", 8, calls, 1.0)]
    shards = [Shard("", [parameters], [13_000_000], [])]
    return Report(rank=0, world_size=512, shards=shards, peak_bytes=peak_bytes, flops=10**12, collectives=sums)


@pytest.mark.parametrize(
    ("seen", "text", "hint"),
    [
        ({"parameters": 7}, "the same model", "as many blocks as you get"),
        ({"peak_bytes": 75.2e9, "calls": 128}, "it fits", "no block computes"),
        ({"peak_bytes": 72.5e9, "calls": 129}, "it fits", "too few"),
    ],
)
def test_each_mistake_has_its_hint(seen, text, hint):
    [(broken, said)] = [(text, hint) for text, hint in check.rules(dry_run(**seen)) if hint]
    assert text in broken and hint in said


def test_a_stub_is_not_judged_and_the_page_shows_the_exercises_model():
    def recompute(blocks):
        raise NotImplementedError

    assert check.recompute(recompute).passed is None
    page = (ROOT / "notebooks" / "source" / f"{check.NOTEBOOK}.py").read_text().replace("50_304", "50304")
    for option, value in zip(check.OPTIONS[::2], check.OPTIONS[1::2], strict=True):
        assert f'"{option}", {value}' in page.replace('"bfloat16"', "bfloat16")


@pytest.mark.full
@pytest.mark.parametrize(("replacements", "hint"), [((), ""), (((SOLVED, "block"),), "NameError")])
def test_the_dry_run_tells_a_script_that_fits_from_one_that_does_not(tmp_path, monkeypatch, replacements, hint):
    monkeypatch.setattr(edited, "FOLDER", tmp_path)
    verdict = check.verdict_on(source(*replacements))
    assert verdict.passed is not bool(hint), repr(verdict)
    assert hint in verdict.hint
