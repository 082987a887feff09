"""A dry run says of each rank what the same script does on real ranks: shards, bytes, calls, operations and memory."""

import math
from collections import Counter

import pytest

from workshop_lib.dryrun.dry_run import dry_run, real_run
from workshop_lib.paths import SCRIPTS

pytestmark = pytest.mark.full

SAME = ("shards", "state_bytes", "collectives", "flops")
CASES = [
    ("mesh.py", ["--mesh", "1x2"], 2),
    *(
        pytest.param(script, options, n, marks=pytest.mark.exhaustive)
        for script, options, n in [
            ("mesh.py", ["--mesh", "2x1"], 2),
            ("mesh.py", ["--mesh", "2x2"], 4),
            ("mesh.py", ["--mesh", "4x1", "--dtype", "bfloat16"], 4),
            ("mesh.py", ["--mesh", "1x4", "--layers", 3], 4),
            ("ddp.py", ["--images", 6400], 2),
            ("ddp.py", ["--images", 6400], 4),
            ("fsdp2.py", ["--images", 6400], 2),
            ("fsdp2.py", ["--images", 6400], 4),
        ]
    ),
]


@pytest.mark.parametrize(("script", "options", "ranks"), CASES)
def test_a_dry_run_is_equal_to_the_real_one(script, options, ranks):
    reports = real_run(SCRIPTS / script, *options, ranks=ranks)
    for rank in range(ranks) if ranks == 4 else [1]:
        real = reports[rank]
        dry = dry_run(SCRIPTS / script, *options, world_size=ranks, rank=rank)
        for name in SAME:
            assert getattr(dry, name) == getattr(real, name), f"{name} of rank {rank}"
        # A real collective keeps what it sends until the others have come: at most the gradients of one module more.
        gradients_bytes: Counter[str] = Counter()
        for shard in real.shards:
            gradients_bytes[shard.name.partition(".")[0]] += 4 * math.prod(shard.shape)
        more_bytes = real.peak_bytes - dry.peak_bytes
        assert min(abs(more_bytes - kept) for kept in (0, *gradients_bytes.values())) <= 0.1 * real.peak_bytes
