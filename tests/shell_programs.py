"""Programs that stand in for others in a test."""

from pathlib import Path


def program(path: Path, *lines: str) -> Path:
    """A shell script of these lines that can be run; its folder is made if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path
