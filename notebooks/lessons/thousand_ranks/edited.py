"""Copies of mesh.py with a change, one of them with a function of the learner's: 12_thousand_ranks runs them dry."""

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from workshop_lib.dryrun.dry_run import dry_runs
from workshop_lib.dryrun.step_report import Report
from workshop_lib.exercises.judge import own_or_library
from workshop_lib.exercises.solutions import Solution
from workshop_lib.forecast import meshes
from workshop_lib.forecast.forecast import Mesh
from workshop_lib.forecast.meshes import Work
from workshop_lib.machine.catalogue import Machine
from workshop_lib.paths import BUILD, SCRIPTS, replacing

NOTEBOOK = "12_thousand_ranks"
SCRIPT = SCRIPTS / "mesh.py"
FOLDER = BUILD / NOTEBOOK
EMBEDDING = "        embedding = nn.Embedding("  # in mesh.py's `build`, the line below the one that makes the blocks


def one_unit() -> Path:
    """A copy of mesh.py that calls `fully_shard` for the whole model only."""
    text = SCRIPT.read_text(encoding="utf-8")
    return _written("one_unit.py", text.replace("for unit in (*blocks, model):", "for unit in (model,):"))


def micro_batches() -> Path:
    """A copy of mesh.py that computes two micro-batches, and reduces the gradients after the second one only."""
    text = SCRIPT.read_text(encoding="utf-8")
    start, end = text.index("        logits = model("), text.index("        if args.clip")
    body = """        optimizer.zero_grad()
        for part, samples in enumerate(window.chunk(2)):
            model.set_requires_gradient_sync(part == 1)
            logits = model(samples[:, :-1]).float()
            loss = cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())
            (loss / 2).backward()
"""
    return _written("micro_batches.py", text[:start] + body + text[end:])


def costs(runs: Mapping[str, Report]) -> dict[str, dict[str, float | str]]:
    """What each dry run costs a rank, and whether it fits: one row each."""
    return {
        name: {
            "peak, GB": run.peak_bytes / 1e9,
            "fits in 72 GB": "yes" if run.peak_bytes < 72e9 else "no",
            "operations, 10¹²": run.flops / 1e12,
            "over data, GB": run.sent_bytes("data") / 1e9,
            "over tensor, GB": run.sent_bytes("tensor") / 1e9,
        }
        for name, run in runs.items()
    }


def works(options: list, shapes: Mapping[str, Mesh]) -> dict[str, Work]:
    """The work of mesh.py with these options and 32 layers, by shape: from dry runs of three layers and of four."""
    few, more = (dry_runs(SCRIPT, *options, "--layers", layers, meshes=list(shapes)) for layers in (3, 4))
    return {shape: meshes.with_layers(few[shape], more[shape], 29) for shape in shapes}


def with_less_latency(machine: Machine, line: Work, grid: Work, step_s: Callable) -> None:
    """Print how 1024x1 compares with 128x8, which do this work, if the latency of all links were lower."""
    data_s = []
    for factor in (1, 0.5, 0):
        inside = replace(machine.inside, latency_s=factor * machine.inside.latency_s)
        between = replace(machine.between, latency_s=factor * machine.between.latency_s)
        changed = replace(machine, inside=inside, between=between)
        on_line = meshes.forecast(line, 1, changed, Mesh(1024), meshes.Plan()).by(step_s)
        on_grid = meshes.forecast(grid, 1, changed, Mesh(128, 8), meshes.Plan()).by(step_s)
        data_s.append(on_line.data_s)
        ratio = on_line.step_s / on_grid.step_s
        print(f"{factor:g} times the latency: 1024x1 takes {ratio:.2f} times as long as 128x8")
    print(f"On 1024x1, latency is {1 - data_s[-1] / data_s[0]:.0%} of the data messages' time.")


def source_of(recompute: Callable) -> str:
    """The text of the learner's function; the solution's while it's a stub."""
    if own_or_library(recompute, None) is None:
        return Solution(NOTEBOOK, recompute.__name__).text()
    return textwrap.dedent(inspect.getsource(recompute))


def with_source(source: str) -> Path:
    """A copy of mesh.py whose `build` hands its blocks to `recompute`, the function with this text."""
    text = SCRIPT.read_text(encoding="utf-8")
    text = text.replace("def build(", f"{source.strip()}\n\n\ndef build(", 1)
    return _written("mesh.py", text.replace(EMBEDDING, f"        blocks = recompute(blocks)\n{EMBEDDING}", 1))


def _written(name: str, text: str) -> Path:
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / name
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
