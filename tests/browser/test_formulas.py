"""The book's calculators and simulators: their JavaScript computes what the library computes."""

import itertools
import json

import pytest

from workshop_lib.lessons.forecasting import report
from workshop_lib.lessons.forecasting.forecast import BACKENDS, Settings, forecast
from workshop_lib.lessons.zero_and_fsdp import calculator as calculators
from workshop_lib.lessons.zero_and_fsdp import zero_memory
from workshop_lib.lessons.zero_and_fsdp.figures import memory_answer
from workshop_lib.machine import catalogue, cost_model
from workshop_lib.machine.catalogue import Link, Machine
from workshop_lib.maintain import book
from workshop_lib.paths import ROOT

STATIC = ROOT / "book" / "_static"


@pytest.fixture(scope="module")
def compute(browser):
    """Evaluates a function of JavaScript for each of a list of cases, on a page with all of the book's scripts."""
    page = browser.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.evaluate(f"window.workshopData = {json.dumps(book.data())}")
    for name in ("cost", "memory", "forecast", "ring", "buckets"):
        page.add_script_tag(path=STATIC / f"{name}.js")
    yield lambda function, cases: page.evaluate(f"cases => cases.map(({function}))", cases)
    page.close()
    assert errors == []


def test_the_scripts_are_short_and_ask_nobody():
    for path in STATIC.glob("*.js"):
        text = path.read_text()
        assert len(text.splitlines()) < 200, path.name
        assert not any(word in text.replace("http://www.w3.org/2000/svg", "") for word in ("http", "fetch(", "import "))


def test_allreduces_and_overlapped_steps(compute):
    cases = [
        {"name": name, "p": p, "n": n, "alpha": alpha, "beta": beta}
        for name in cost_model.ALGORITHMS
        for p, n, alpha, beta in itertools.product(
            (1, 2, 3, 5, 8, 12, 64), (0, 1, 4096, 10**9), (0, 2e-6), (1e-11, 1e-9)
        )
    ]
    computed = compute(
        "({name, p, n, alpha, beta}) => workshop.allreduceS(name, p, n, {latency_s: alpha, s_per_byte: beta})", cases
    )
    assert computed == pytest.approx([cost_model.allreduce_s(*case.values()) for case in cases])
    steps = list(itertools.product((0.01, 0.1), (0.02, 0.3), (1e-5, 0.004, 0.2), (1, 2, 7, 160)))
    computed = compute("step => workshop.overlappedStepS(...step)", steps)
    assert computed == pytest.approx([cost_model.overlapped_step_s(*step) for step in steps])
    # The messages that the simulator draws, one after another, end with the step that the formula gives.
    ends = compute("step => workshop.buckets.schedule(...step).at(-1).end", steps)
    assert ends == pytest.approx(computed)


def test_rings_through_nodes(compute):
    inside, between = Link(3e-6, 1 / 2e11), Link(5e-6, 1 / 2.5e10)
    links = [{"latency_s": link.latency_s, "s_per_byte": link.s_per_byte} for link in (inside, between)]
    cases = list(itertools.product((1, 2, 9), (1, 4, 8), (4, 10**8)))
    computed = compute(f"shape => workshop.ringAcrossNodesS(...shape, ...{json.dumps(links)})", cases)
    expected = []
    for nodes, a_node, nbytes in cases:
        machine = Machine("", "", "", "", a_node, "ring across nodes", inside, between, "")
        expected.append(machine.ring_s(nodes * a_node, nbytes))
    assert computed == pytest.approx(expected)


def test_the_ring_ends_with_the_sum_everywhere_and_begins_as_the_library_does(compute):
    for p in range(2, 9):
        start, middle, end = compute(
            "([p, steps]) => workshop.ring.held(p, steps)", [(p, 0), (p, p - 1), (p, 2 * p - 2)]
        )
        assert start == [[[rank]] * p for rank in range(p)]
        whole = list(range(p))
        complete = [[chunk for chunk in range(p) if sorted(middle[rank][chunk]) == whole] for rank in range(p)]
        assert complete == [[(rank + 1) % p] for rank in range(p)], "one chunk each after the reduce-scatter"
        assert all(sorted(chunk) == whole for rank in end for chunk in rank)


def test_memory_of_every_model_on_every_gpu(compute):
    shapes = {name: shape for name, (_, shape) in calculators.MODELS.items() if shape}
    cases = [
        {"model": model, "recipe": recipe, "gpu": gpu, "ranks": ranks, "sequence": sequence, "batch": batch,
         "checkpointing": checkpointing, "offload": offload}
        for model, recipe, gpu in itertools.product(shapes, zero_memory.RECIPES, ("V100, 16 GB", "H200, 141 GB"))
        for ranks, (sequence, batch), checkpointing, offload in itertools.product(
            (1, 8, 1024), ((2048, 1), (32768, 4)), (False, True), (False, True)
        )
    ]  # fmt: skip
    function = """(c) => {
        const data = workshopData, model = data.models[c.model], recipe = data.recipes[c.recipe];
        const bytes = [model.shape, c.sequence, c.batch, recipe.parameter_bytes, c.checkpointing];
        const kept = workshop.memory.activationBytes(...bytes);
        const plan = workshop.memory.plan(model.parameters, c.ranks, data.gpus[c.gpu], recipe, kept, c.offload);
        return [plan.stages.map((at) => at.total), plan.stages.map((at) => at.host), workshop.memory.answer(plan)];
    }"""
    for case, (totals, hosts, answer) in zip(cases, compute(function, cases), strict=True):
        recipe = zero_memory.RECIPES[case["recipe"]]
        kept = zero_memory.activation_bytes(
            shapes[case["model"]], case["sequence"], case["batch"],
            value_bytes=recipe["parameter_bytes"], checkpointing=case["checkpointing"],
        )  # fmt: skip
        size = (calculators.MODELS[case["model"]][0], case["ranks"], zero_memory.GPUS[case["gpu"]], recipe)
        plan = zero_memory.plan(*size, activations=kept, offload=case["offload"])
        assert totals == [at.total_gpu_bytes for at in plan.stages], case
        assert hosts == [at.host_bytes for at in plan.stages], case
        assert answer == memory_answer(plan), case


def test_forecasts_of_every_model_on_every_machine(compute):
    cases = []
    for model, machine in itertools.product(catalogue.models().values(), catalogue.machines().values()):
        known = model.name in machine.compute or model.kind in machine.utilization
        options = ((32, 1, 1, None), (256, 2, 4, False), (1, 100, 0.25, True), (64, 1, 1, None))
        for backend, (batch, compression, network, overlap) in zip(BACKENDS, itertools.cycle(options), strict=False):
            settings = {"backend": backend, "batch_size": batch, "compression": compression, "network": network}
            settings |= {"overlap": overlap, "samples_per_s": None if known else 750}
            cases.append({"model": model.name, "machine": machine.name, "settings": settings})
    function = """(c) => {
        const model = workshopData.networks[c.model], machine = workshopData.machines[c.machine];
        const points = workshop.forecast.forecast(model, machine, c.settings);
        return [points, workshop.forecast.answer(points)];
    }"""
    for case, (points, answer) in zip(cases, compute(function, cases), strict=True):
        settings = dict(case["settings"])
        model, machine, speed = (
            catalogue.model(case["model"]),
            catalogue.machine(case["machine"]),
            settings.pop("samples_per_s"),
        )
        expected = forecast(model, machine if speed is None else machine.with_speed(model, speed), Settings(**settings))
        for point, ours in zip(points, expected, strict=True):
            for name, value in point.items():
                assert value == (pytest.approx(getattr(ours, name)) if value is not None else getattr(ours, name)), (
                    case,
                    name,
                )
        assert answer == report.answer(expected), case
