"""The forecast of a mesh: its formulas against cases that can be worked out by hand, and against published runs."""

import math
from dataclasses import replace

import pytest
from drawn import check_layout, texts

from workshop_lib.errors import InputError
from workshop_lib.lessons.thousand_ranks import figures as draw
from workshop_lib.lessons.thousand_ranks import mesh_report, meshes, published_meshes
from workshop_lib.lessons.thousand_ranks.meshes import Gpt, Mesh, Plan
from workshop_lib.lessons.thousand_ranks.step_report import Collective, Report
from workshop_lib.machine.catalogue import Link, Machine, machine

GPT = Gpt(layers=4, width=8, parameters=4000, tokens=10)
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
    assert [each.kind for each in meshes.work(GPT, Mesh(1), Plan()).collectives] == []


@pytest.mark.parametrize(
    ("ranks", "stride", "expected_s"),
    [
        (8, 1, 2 * 7 / 8 * 1e-9),  # inside a node
        (4, 8, 2 * 3 / 4 * 8e-8),  # one rank per node, and seven other groups share its network
        (16, 1, 2 * 15 / 16 * 1e-8),  # two whole nodes: one ring, which has the network for itself
        (8, 2, 2 * 7 / 8 * 2e-8),  # four ranks per node, two groups
    ],
)
def test_groups_share_the_network_of_their_nodes(ranks, stride, expected_s):
    one = Collective("allreduce", "data", ranks, 1, 1000)
    assert meshes.collective_s(MACHINE, one, stride) == pytest.approx(1000 * expected_s)
    half = replace(one, kind="allgather", calls=10)
    assert meshes.collective_s(MACHINE, half, stride) == pytest.approx(500 * expected_s)


def test_a_pipeline_is_idle_as_long_as_the_paper_says():
    plan = Plan(micro_batches=8, sharding="none")
    made = meshes.of_formulas(GPT, MACHINE, Mesh(1, 1, 4), plan)
    assert made.bubble_s == pytest.approx(3 / 8 * made.compute_s)
    interleaved = meshes.of_formulas(GPT, MACHINE, Mesh(1, 1, 4), replace(plan, interleaved=2))
    assert interleaved.bubble_s == pytest.approx(made.bubble_s / 2)
    alone = meshes.of_formulas(GPT, MACHINE, Mesh(1), Plan())
    assert alone.mfu == pytest.approx(0.5) and alone.step_s == alone.compute_s


def test_what_is_no_mesh_is_refused():
    with pytest.raises(InputError, match="tensor is 0"):
        Mesh(4, 0)
    with pytest.raises(InputError, match="sharding 'some'"):
        Plan(sharding="some")
    with pytest.raises(InputError, match="recompute 'half'"):
        Plan(recompute="half")
    with pytest.raises(InputError, match="two can be drawn"):
        draw.mesh(Report(0, 8, [], {}, 0, 0), "2x2x2")


def test_every_plan_fills_the_ranks_and_the_batch():
    choices = meshes.plans(Gpt(96, 12288, 174.6e9, 2048, 51_200), 1024, 2048)
    assert len(choices) == len(set(choices)) > 50
    for mesh, plan in choices:
        assert mesh.ranks == 1024
        assert mesh.data * plan.micro_batch * plan.micro_batches == 2048


def test_fp8_gains_what_torchtitan_measured():
    gpt = Gpt(layers=32, width=4096, parameters=8.03e9, tokens=8192, vocabulary=128_256)
    share = published_meshes.share_of("torchtitan, Llama 3.1 8B")
    for ranks, before, after in ((8, 6667, 8532), (128, 6514, 8380)):
        plans = (Plan(2), Plan(2, precision="fp8"))
        seconds = [meshes.of_formulas(gpt, machine("h100"), Mesh(ranks), plan, share).step_s for plan in plans]
        assert seconds[0] / seconds[1] == pytest.approx(after / before, rel=0.01)
    with pytest.raises(InputError, match="has no FP8"):
        meshes.of_formulas(gpt, machine("polaris"), Mesh(8), Plan(precision="fp8"))


def test_a_larger_nvlink_domain_helps_wide_tensor_groups():
    gpt = Gpt(layers=96, width=12_288, parameters=174.6e9, tokens=2048, vocabulary=51_200)
    slower = {}
    for name in ("b200", "gb200-nvl72"):
        rows = mesh_report.forecasts(gpt, machine(name), 1024, 2048)
        least = {tensor: min(row["step_s"] for row in rows if row["tensor"] == tensor) for tensor in (8, 16)}
        slower[name] = least[16] / least[8]
    assert slower["b200"] > 1.3 > 1.15 > slower["gb200-nvl72"]


def test_a_line_of_1024_ranks_is_slow_because_of_latency_alone():
    gpt = Gpt(layers=32, width=4096, parameters=6.65e9, tokens=2048, vocabulary=50_304)
    h100 = machine("h100")
    no_latency = replace(h100, inside=replace(h100.inside, latency_s=0), between=replace(h100.between, latency_s=0))

    def data_s(on, mesh, micro_batch):
        return meshes.of_formulas(gpt, on, mesh, Plan(micro_batch)).data_s

    line = Mesh(1024)
    grid = Mesh(128, 8)
    assert data_s(h100, line, 1) > 1.8 * data_s(h100, grid, 8)
    assert data_s(no_latency, line, 1) < 1.05 * data_s(no_latency, grid, 8)


def test_for_175_billion_parameters_the_line_ties_with_a_grid_and_beats_every_pipeline():
    gpt = Gpt(layers=96, width=12_288, parameters=174.6e9, tokens=2048, vocabulary=51_200)
    rows = [row for row in mesh_report.forecasts(gpt, machine("h100"), 1024, 2048) if row["peak_GB"] < 72]
    first, second, third = sorted(rows, key=lambda row: row["step_s"])[:3]
    assert (first["data"], first["tensor"]) == (1024, 1) and (second["data"], second["tensor"]) == (512, 2)
    assert first["step_s"] == second["step_s"] and third["pipeline"] > 1
    assert third["step_s"] / first["step_s"] == pytest.approx(1.04, abs=0.005)


def test_selective_recomputing_keeps_more_than_full_and_less_than_none():
    kept = [meshes.memory_bytes(GPT, Mesh(1), Plan(recompute=each)) for each in ("full", "selective", "none")]
    assert kept == sorted(kept) and len(set(kept)) == 3
    flops = [meshes.work(GPT, Mesh(1), Plan(recompute=each)).flops for each in ("none", "selective", "full")]
    assert flops[0] == flops[1] < flops[2]


def test_forecasts_of_published_runs_are_as_far_off_as_the_notebook_says():
    rows = published_meshes.beside_forecast()
    assert len(rows) >= 20 and rows["table"].nunique() >= 5
    assert rows["error"].abs().median() < 0.1
    check_layout(draw.beside_published(rows))
    of_megatron = rows["table"].isin(["Narayanan et al., table 1", "Narayanan et al., 175B"])
    errors = rows[of_megatron & (rows["ranks"] >= 128)]["error"]
    assert len(errors) == 11 and errors.between(-0.205, -0.105).all(), "11 to 20 % too low"
    zero = rows[rows["table"] == "Narayanan et al., ZeRO-3"]
    assert zero["error"].max() > 0.3, "the bad one"
    for name, (first, *_) in published_meshes.TABLES.items():
        if first.like == name:
            assert math.isclose(first.forecast_mfu(published_meshes.share_of(name)), first.mfu, rel_tol=1e-6)


def test_more_layers_cost_what_one_more_costs_each_time():
    one, two, eight = (meshes.work(replace(GPT, layers=n, parameters=1000 * n), Mesh(4, 2), Plan()) for n in (1, 2, 8))
    grown = meshes.with_layers(one, two, 7)
    assert grown.flops == pytest.approx(eight.flops)
    assert [each.handed_bytes for each in grown.collectives] == [each.handed_bytes for each in eight.collectives]
    assert [each.calls for each in grown.collectives] == [each.calls for each in eight.collectives]


def test_the_drawn_mesh_has_the_rank_its_groups_and_what_it_sends():
    sent = [Collective("allreduce", "tensor", 8, 16, 4e6), Collective("allgather", "data", 128, 9, 8e6)]
    figure = draw.mesh(Report(18, 1024, [], {}, 0, 0, sent), "128x8", a_node=8)
    ranks, beside = figure.axes
    assert {"0", "7", "18", "1023", "⋮"} <= set(texts(ranks))
    [sent] = texts(beside)
    for line in ("over tensor: sends 7.00 MB", "16 × allreduce", "9 × allgather", "dashed: a node of 8 ranks"):
        assert line in sent
    check_layout(figure)
