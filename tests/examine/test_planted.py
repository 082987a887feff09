"""Planted faults are found on real ranks, with their rank, step and cause; correct scripts have nothing wrong."""

import json

import correct
import planted
import pytest
from command_line import workshop

from workshop_lib.examine import checks
from workshop_lib.findings import worst

# Some faults, 5 to 10 s each; the others are exhaustive. Every check has a quick test in test_findings.py.
IN_FULL = {"no sampler", "never wrapped", "checkpoint of a share"}
CORRECT_IN_FULL = {"as it is", "recomputed", "FSDP2 as it is"}


def _tier(name: str, in_full: set[str]):
    return pytest.mark.full if name in in_full else pytest.mark.exhaustive


@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, id=str(each), marks=_tier(each.name, IN_FULL)) for each in (*planted.DDP, *planted.FSDP)],
)
def test_a_planted_fault_is_found(fault):
    run = planted.run(fault.script, *fault.edits)
    assert not planted.missing(fault, checks.examine(run)), "\n".join(run.last_lines)


@pytest.mark.parametrize("name", [pytest.param(name, marks=_tier(name, CORRECT_IN_FULL)) for name in correct.CORRECT])
def test_a_correct_script_has_nothing_wrong(name):
    script, edits = correct.CORRECT[name]
    run = planted.run(script, *edits)
    findings = checks.examine(run)
    assert worst(findings) != "wrong", [(each.check, each.seen) for each in findings if each.level == "wrong"]
    if name in correct.SILENT:
        seen = [f"{each.check}: {each.seen}" for each in findings if each.level == "look" and each.check != "straggler"]
        assert not seen
    assert run.how == "ended" and len(run.common_steps) > 5, "\n".join(run.last_lines)


@pytest.mark.full
@pytest.mark.parametrize(
    ("edits", "level", "says"),
    [
        ((), "ok", "would compute on cuda:0, cuda:1, and ran on the CPU"),
        (
            (("    torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n", ""),),
            "wrong",
            "ranks 0, 1 compute on cuda:0",
        ),
    ],
)
def test_a_script_for_cuda_is_examined_without_a_gpu(edits, level, says):
    run = planted.run("ddp", *planted.CUDA, *edits, pretend_gpu=True)
    findings = checks.examine(run)
    assert [each.level for each in findings if says in each.seen] == [level], "\n".join(run.last_lines)
    assert worst([each for each in findings if each.check != "devices"]) != "wrong"


QUIET = (planted.ONE, ("nn.BatchNorm1d(32)", "nn.Identity()"), ("nn.Dropout(0.1)", "nn.Identity()"))


@pytest.mark.parametrize(
    ("edits", "level", "says"),
    [
        pytest.param((), "ok", "one process with the same samples has the same gradient", marks=pytest.mark.full),
        pytest.param(
            ((planted.CLIP, planted.DIVIDE + planted.CLIP),), "wrong", "is 0.5 times", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_the_first_step_is_compared_with_one_process(tmp_path, monkeypatch, edits, level, says):
    script = tmp_path / "train.py"
    script.write_text(planted.edited("ddp", *QUIET, *edits).replace(" + self.noise * torch.randn(16)", ""))
    monkeypatch.setenv("OUT", str(tmp_path))
    ran = workshop("examine", "--against-one", "--json", "--steps", 4, "--", script)
    [found] = [
        each for each in json.loads(ran.output[ran.output.index("{\n") :])["findings"] if each["check"] == "against one"
    ]
    assert found["level"] == level and says in found["seen"]
