"""Copies of mesh.py with a change, one of them with a function of the learner's: 12_thousand_ranks runs them dry."""

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path

from workshop_lib.exercises.judge import own_or_library
from workshop_lib.exercises.solutions import Solution
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
