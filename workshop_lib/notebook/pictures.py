"""Pictures that never change: SVG files in assets/pictures, which a notebook shows by name."""

import base64
import html

from workshop_lib.errors import InputError
from workshop_lib.paths import ROOT

PICTURES = ROOT / "assets" / "pictures"


class Drawing:
    """A picture as the value of a cell. Its title, in words, is for people who can't see it."""

    def __init__(self, svg: str):
        self.svg = svg
        self.in_words = html.unescape(svg.partition("<title>")[2].partition("</title>")[0])

    def __repr__(self) -> str:
        return self.in_words

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        """An image with the class by which custom.css and book.css darken figures in a dark theme."""
        source = base64.b64encode(self.svg.encode()).decode()
        words = html.escape(self.in_words)
        return f'<img class="workshop-figure workshop-wide" alt="{words}" src="data:image/svg+xml;base64,{source}">'


def picture(name: str) -> Drawing:
    """Return the picture assets/pictures/NAME.svg. Raises InputError when there is none of this name."""
    path = PICTURES / f"{name}.svg"
    if not path.is_file():
        names = ", ".join(sorted(each.stem for each in PICTURES.glob("*.svg")))
        raise InputError(f"there is no picture {name!r}; there are {names}.")
    return Drawing(path.read_text(encoding="utf-8"))
