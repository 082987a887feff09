"""The mean of the ranks' gradients and the norms for the noise scale, in one message."""

import json
from pathlib import Path

from ranks.launching import run_script

SCRIPT = Path(__file__).with_name("noise_runs.py")


def test_the_mean_and_both_norms_take_one_allreduce_with_one_number_more(tmp_path):
    file = tmp_path / "found.json"
    run_script(3, SCRIPT, file, timeout_s=60)
    for dtype, rounding in (("float64", 1e-12), ("float32", 1e-5)):
        for of_rank in json.loads(file.read_text())[dtype]:
            assert of_rank["dtype"] == dtype
            assert max(of_rank[name] for name in ("off", "small off", "big off")) < rounding
            assert of_rank["elements"] == [7 + 1]
            assert of_rank["kept"]
