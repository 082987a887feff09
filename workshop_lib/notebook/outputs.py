"""What ranks displayed, side by side, as HTML that stays in the saved notebook."""

import base64
import html
from typing import Any

from workshop_lib.ranks.messages import Displayed
from workshop_lib.ranks.output import Row

SIDE_BY_SIDE = 3  # ranks; more are stacked, to be opened one by one
IMAGES = ("image/png", "image/jpeg", "image/gif")
COLUMNS = "display: flex; gap: 12px"
COLUMN = "flex: 1 1 0; min-width: 0; overflow-x: auto"


def bundle(row: Row) -> dict[str, str]:
    """A row as a MIME bundle: HTML, and text for where there is none."""
    if not row.parts:
        return {"text/plain": ""}
    texts = {rank: part["data"].get("text/plain", "") for rank, part in sorted(row.parts.items())}
    plain = "\n".join(f"[{rank}] {text}" for rank, text in texts.items())
    return {"text/html": f'<div class="workshop-ranks">{_html(row)}</div>', "text/plain": plain}


def _html(row: Row) -> str:
    parts = [(f"rank {rank}", part_html(part)) for rank, part in sorted(row.parts.items())]
    if len(parts) > 1 and row.is_the_same:
        parts = [(f"the same on all {len(parts)} ranks", parts[0][1])]
    if len(parts) > SIDE_BY_SIDE:
        return "".join(
            f"<details{' open' * (number == 0)}><summary>{name}</summary>{shown}</details>"
            for number, (name, shown) in enumerate(parts)
        )
    columns = [f'<div style="{COLUMN}"><b>{name}</b><br>{shown}</div>' for name, shown in parts]
    return f'<div style="{COLUMNS}">{"".join(columns)}</div>'


def part_html(part: Displayed) -> str:
    """The richest representation of what one rank displayed."""
    data, metadata = part["data"], part["metadata"]
    for mime in ("text/html", "image/svg+xml"):
        if mime in data:
            return data[mime]
    for mime in IMAGES:
        if mime in data:
            return _image(mime, data[mime], metadata.get(mime, {}))
    if "text/latex" in data:
        return f"<p>{html.escape(data['text/latex'])}</p>"  # the page sets the formula
    text = data.get("text/markdown", data.get("text/plain", f"({', '.join(data)} cannot be shown for a rank)"))
    return f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'


def _image(mime: str, image: Any, metadata: dict) -> str:
    encoded = base64.b64encode(image).decode() if isinstance(image, bytes) else image
    width = f' width="{metadata["width"]}"' if "width" in metadata else ""
    return f'<img src="data:{mime};base64,{encoded}"{width} style="max-width: 100%; height: auto">'
