"""The forecast of a mesh: its formulas against cases that can be worked out by hand, and against published runs."""

import math
from dataclasses import replace

import pytest
from drawn import check_layout

from workshop_lib.forecast import figures, meshes, published
from workshop_lib.forecast.forecast import Collective, Mesh, Settings, collective_s, forecast
from workshop_lib.forecast.meshes import Gpt, Plan
from workshop_lib.machine.catalogue import Link, Machine, machine, model

GPT = Gpt(layers=4, width=8, parameters=4000, tokens=10)
GPT3 = Gpt(layers=96, width=12_288, parameters=174.6e9, tokens=2048, vocabulary=51_200)
SMALLER = Gpt(layers=32, width=4096, parameters=6.65e9, tokens=2048, vocabulary=50_304, tied=False)
MACHINE = Machine(
    "m", "M", "", "", 8, "cheapest", Link(0.0, 1e-9), Link(0.0, 1e-8), "", {}, {"bf16": 1e9}, {"transformer": 0.5}
)


def test_work_is_what_can_be_worked_out_by_hand():
    made = meshes.work(GPT, Mesh(4, 2), Plan(micro_batch=3))
    assert made.flops == 3 * (6 * 4000 * 10 + 12 * 4 * 8 * 100) / 2
    over = {(each.kind, each.over): each for each in made.collectives}
    assert over["allreduce", "tensor"].handed_bytes == 4 * 4 * 2 * 3 * 10 * 8
    assert over["allgather", "data"].handed_bytes == 2 * 2 * 4000 / 2
    assert over["reduce-scatter", "data"].handed_bytes == 4 * 4000 / 2
    again = meshes.work(GPT, Mesh(4, 2), Plan(micro_batch=3, recompute="full"))
    assert again.flops == 4 / 3 * made.flops and again.peak_bytes < made.peak_bytes
    assert meshes.work(GPT, Mesh(1), Plan()).collectives == []
    copied = meshes.work(GPT, Mesh(4, 2, copies=3), Plan(micro_batch=3)).collectives
    assert copied[:-1] == made.collectives
    assert (copied[-1].over, copied[-1].ranks, copied[-1].handed_bytes) == ("copies", 3, 4 * 4000 / 2 / 4)


def test_an_embedding_that_is_only_looked_up_multiplies_nothing():
    untied = replace(GPT, vocabulary=100, tied=False)
    assert GPT.flops - untied.flops == 6 * 100 * 8 * 10


@pytest.mark.parametrize(
    ("ranks", "stride", "expected_s"),
    [
        (8, 1, 2 * 7 / 8 * 1e-9),  # inside a node
        (4, 8, 2 * 3 / 4 * 8e-8),  # one rank per node, and seven other groups share its network
        (8, 2, 2 * 7 / 8 * 2e-8),  # four ranks per node, two groups
    ],
)
def test_groups_share_the_network_of_their_nodes(ranks, stride, expected_s):
    one = Collective("allreduce", "data", ranks, 1, 1000)
    assert collective_s(MACHINE, one, stride) == pytest.approx(1000 * expected_s)
    half = replace(one, kind="allgather", calls=10)
    assert collective_s(MACHINE, half, stride) == pytest.approx(500 * expected_s)


def test_data_parallelism_is_a_mesh_without_tensor_ranks_and_stages():
    """The same bytes and the same computing give the same step, by the settings of 08c and by a plan of 12."""
    gpt2, h100 = model("gpt2"), machine("h100")
    [point] = forecast(gpt2, h100, Settings("mpi", 8), [64])
    sums = Collective("allreduce", "data", 64, 1, gpt2.gradient_bytes)
    peak = h100.peak_flops_per_s["bf16"]
    work = meshes.Work(point.compute_s * peak * h100.utilization["transformer"], 0, [sums])
    made = meshes.forecast(work, 1, h100, Mesh(64), Plan(sharding="none"))
    assert made.step_s == pytest.approx(point.step_s, rel=1e-12)
    assert (made.least_s, made.most_s) == pytest.approx((point.least_s, point.most_s), rel=1e-12)


def test_a_pipeline_is_idle_as_long_as_the_paper_says():
    plan = Plan(micro_batches=8, sharding="none")
    made = meshes.of_formulas(GPT, MACHINE, Mesh(1, 1, 4), plan)
    assert made.bubble_s == pytest.approx(3 / 8 * made.compute_s)
    interleaved = meshes.of_formulas(GPT, MACHINE, Mesh(1, 1, 4), replace(plan, interleaved=2))
    assert interleaved.bubble_s == pytest.approx(made.bubble_s / 2)
    alone = meshes.of_formulas(GPT, MACHINE, Mesh(1), Plan())
    assert alone.mfu == pytest.approx(0.5) and alone.step_s == alone.compute_s


def test_every_plan_fills_the_ranks_and_the_batch():
    choices = list(meshes.plans(GPT3, 1024, 2048))
    assert len(choices) == len(set(choices)) > 50 and any(mesh.copies > 1 for mesh, _ in choices)
    for mesh, plan in choices:
        assert mesh.ranks == 1024
        assert mesh.copies * mesh.data * plan.micro_batch * plan.micro_batches == 2048


def test_latency_makes_a_line_slow_and_short_rings_do_not():
    """What the notebook says about 6.7 billion weights on 1,024 H100: HSDP, then the grid, then the line."""
    h100 = machine("h100")
    no_latency = replace(h100, inside=replace(h100.inside, latency_s=0), between=replace(h100.between, latency_s=0))
    shapes = {Mesh(64, copies=16): 1, Mesh(128, 8): 8, Mesh(1024): 1}
    hsdp, grid, line = (meshes.of_formulas(SMALLER, h100, mesh, Plan(batch)) for mesh, batch in shapes.items())
    assert [round(made.step_s, 2) for made in (hsdp, grid, line)] == [0.25, 0.31, 0.57]
    _, grid, line = (meshes.of_formulas(SMALLER, no_latency, mesh, Plan(batch)) for mesh, batch in shapes.items())
    assert line.data_s < 1.05 * grid.data_s


def test_for_175_billion_parameters_the_line_ties_with_a_grid_and_beats_every_pipeline():
    rows = [row for row in meshes.forecasts(GPT3, machine("h100"), 1024, 2048) if row["peak_GB"] < 72]
    first, second, third = sorted(rows, key=lambda row: row["step_s"])[:3]
    assert (first["data"], first["tensor"]) == (1024, 1) and (second["data"], second["tensor"]) == (512, 2)
    assert first["step_s"] == second["step_s"] and third["pipeline"] > 1
    assert third["step_s"] / first["step_s"] == pytest.approx(1.06, abs=0.005)


def test_selective_recomputing_keeps_more_than_full_and_less_than_none():
    kept = [meshes.memory_bytes(GPT, Mesh(1), Plan(recompute=each)) for each in ("full", "selective", "none")]
    assert kept == sorted(kept) and len(set(kept)) == 3
    flops = [meshes.work(GPT, Mesh(1), Plan(recompute=each)).flops for each in ("none", "selective", "full")]
    assert flops[0] == flops[1] < flops[2]


def test_forecasts_of_published_runs_are_as_far_off_as_the_notebook_says():
    rows = published.meshes_beside_forecast()
    assert len(rows) == 29 and rows["error"].abs().median() < 0.08
    check_layout(figures.beside_published(rows))
    of_megatron = rows["table"].isin(["Narayanan et al., table 1", "Narayanan et al., 175B"])
    large = rows[of_megatron & (rows["devices"] >= 128)]
    assert len(large) == 11 and large["error"].between(-0.205, -0.105).all(), "11 to 20 % too low"
    assert (large["published"] > large["high"]).all() and rows["inside"].sum() == 16
    zero = rows[rows["table"] == "Narayanan et al., ZeRO-3"]
    assert zero["error"].max() == pytest.approx(2, abs=0.01), "three times too fast"
    for name, (first, *_) in published.MESHES.items():
        if first.like == name:
            assert math.isclose(first.forecast(published.share_of(name)).mfu, first.mfu, rel_tol=1e-6)
    [titan, _] = published.MESHES["torchtitan, Llama 3.1 8B"]
    assert titan.mfu == pytest.approx(0.39, abs=0.001), "as torchtitan counts it"


def test_more_layers_cost_what_one_more_costs_each_time():
    one, two, eight = (meshes.work(replace(GPT, layers=n, parameters=1000 * n), Mesh(4, 2), Plan()) for n in (1, 2, 8))
    grown = meshes.with_layers(one, two, 7)
    assert grown.flops == pytest.approx(eight.flops) and grown.collectives == eight.collectives
