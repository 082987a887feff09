"""`workshop calibrate`: a script's measured steps, as a share of a machine's peak."""

import pytest
from command_line import workshop

from workshop_lib.dryrun import calibrate as calibration
from workshop_lib.dryrun.calibrate import Calibration, calibrate
from workshop_lib.dryrun.dry_run import dry_run
from workshop_lib.paths import SCRIPTS

SCRIPT = SCRIPTS / "one_process.py"


@pytest.mark.full
def test_steps_are_timed_and_operations_counted(tmp_path):
    found = calibrate(SCRIPT, "--out", tmp_path / "x.pt", machine="h100")
    assert len(found.step_s) == 20 and 0 < min(found.step_s) <= found.median_s < 10
    assert found.flops == dry_run(SCRIPT, world_size=1).flops
    assert found.share == pytest.approx(found.flops / found.median_s / 989e12)


@pytest.mark.parametrize(("step_s", "said"), [(0.02, "transformer = 0.5  # train.py on A GPU"), (0.005, "exceeds")])
def test_what_is_printed_can_be_kept_in_the_file(monkeypatch, step_s, said):
    found = Calibration("mycluster", "A GPU", [step_s] * 20, 1e12, 100e12)
    monkeypatch.setattr(calibration, "calibrate", lambda *words, **how: found)
    shown = workshop("calibrate", "train.py", "--machine", "mycluster.toml")
    assert shown.exit_code == (step_s < 0.01) and said in shown.output
    assert ("[mycluster.utilization]" in shown.output) == (shown.exit_code == 0)


@pytest.mark.parametrize(
    ("script", "machine", "said"),
    [("none.py", "h100", "there is no script"), (SCRIPT, "laptop", "no peak_flops_per_s"), (SCRIPT, "h1", "h100")],
)
def test_mistakes_are_answered_in_a_sentence(script, machine, said):
    refused = workshop("calibrate", script, "--machine", machine)
    assert refused.exit_code == 1 and refused.output.startswith("workshop: ") and said in refused.output


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\ntorch.optim.SGD([torch.ones(1, requires_grad=True)]).step()", "it took 1 optimizer steps"),
        ("import sys\nimport os\nif 'TORCHELASTIC_RUN_ID' in os.environ: raise ValueError('mine')", "mine"),
    ],
)
def test_a_script_that_cannot_be_timed_says_why(monkeypatch, tmp_path, text, said):
    script = tmp_path / "short.py"
    script.write_text(text)
    monkeypatch.setattr(calibration, "dry_run", lambda *words, **how: Calibration("h100", "", [1.0], 1.0, 1.0))
    refused = workshop("calibrate", script, "--machine", "h100")
    assert refused.exit_code == 1 and said in refused.output
