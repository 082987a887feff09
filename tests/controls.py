"""What the tests of the calculators do with their controls."""

import pytest

from workshop_lib.notebook.figures import RecordFigure


def picture(figure) -> bytes:
    """In place of a PNG, which takes long to draw: all that the figure says and how long its bars and lines are."""
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    drawn = [[bar.get_width() for bar in axes.patches] for axes in figure.axes]
    lines = [line.get_xydata().tolist() for axes in figure.axes for line in axes.lines]
    return repr(([text.get_text() for text in figure.texts], said, drawn, lines)).encode()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(RecordFigure, "png", picture)


def changed(shown, **controls) -> list[str]:
    """Set one control after another, check that each changes the figure, and return the sentences shown."""
    sentences = []
    for control, value in controls.items():
        image = shown.image.value
        getattr(shown, control).value = value
        assert shown.image.value not in (b"", image), control
        assert shown.shown_sentence.value == "", "the figure says it"
        sentences.append(shown.sentence)
    return sentences
