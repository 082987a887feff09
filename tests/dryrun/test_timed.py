"""The time of a dry run, against a step that is worked out by hand."""

import pytest
from benchmarks.emulated_dry_run import SCRIPT, beside

from workshop_lib import ranks
from workshop_lib.dryrun.dry_run import dry_run
from workshop_lib.machine import catalogue
from workshop_lib.machine.emulation.links import Network
from workshop_lib.paths import SCRIPTS

WIDTH, LAYERS, BATCH, RANKS = 8192, 8, 16384, 64
FSDP = f"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("data",))
net = nn.Sequential(*[nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS})])
for layer in net:
    fully_shard(layer, mesh=mesh)
model = fully_shard(net, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones({BATCH}, {WIDTH}, requires_grad=True)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("machine", ["ethernet-10g", "thetagpu"])
def test_a_dry_run_takes_the_time_that_its_gathers_and_its_computing_take(tmp_path, machine):
    script = tmp_path / "fsdp.py"
    script.write_text(FSDP)
    report = dry_run(script, world_size=RANKS, machine=machine)
    known = catalogue.emulated_machine(machine)
    slowness = report.compute_s / (6 * LAYERS * BATCH * WIDTH**2 * known.flop_s("transformer"))
    assert slowness == pytest.approx(1 + known.lateness * 2.344, abs=1e-3), "the slowest of 64"
    gather_s = Network(known, RANKS).collective_s("allgather", tuple(range(RANKS)), 4 * WIDTH**2)
    pass_s = report.compute_s / (3 * LAYERS)
    hidden_s = report.compute_s + 2 * gather_s  # only the first gather and the last reduce-scatter show
    shown_s = 3 * LAYERS * gather_s  # two gathers and a reduce-scatter per layer, one after another
    expected_s = hidden_s if gather_s < pass_s else shown_s
    assert report.step_s == pytest.approx(expected_s, rel=0.01)


@pytest.mark.full
def test_a_dry_run_and_emulated_ranks_take_the_same_time():
    team = ranks.start(4, machine="ethernet-10g")
    small = ("--mesh", "2x2", "--width", "256")
    for script, options in ((SCRIPT, ("ddp",)), (SCRIPTS / "mesh.py", small)):
        emulated_s, dry_s = beside(team, "ethernet-10g", script, options, 1)
        assert dry_s == pytest.approx(emulated_s, rel=0.01)
