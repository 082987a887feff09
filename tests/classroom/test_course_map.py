"""The map: each notebook names its track, the tables follow from the notebooks, and the picture has them all."""

from xml.etree import ElementTree

import pytest

from workshop_lib.classroom import course_map, generate
from workshop_lib.exercises import exercises
from workshop_lib.exercises.sources import SourceError

FIRST_CELL = "# Title: a subtitle\n\n**Time** 38 minutes for the core, 9 more for the rest. **Needs** nothing."
STOPS = [
    course_map.stop("00_start", FIRST_CELL, exercises.CORE_PATH),
    course_map.stop("06_shards", FIRST_CELL, exercises.CORE_PATH),
    course_map.stop("06c_new", FIRST_CELL, "large models"),
    course_map.stop("11_layers", FIRST_CELL.replace("38", "60"), "large models"),
]


def test_a_stop_is_read_from_the_first_cell():
    assert STOPS[0] == course_map.Stop("00_start", "Title: a subtitle", exercises.CORE_PATH, 38)
    assert (STOPS[2].number, STOPS[2].label) == ("06c", "Title")


def test_the_table_links_each_notebook_and_adds_up_the_minutes():
    rows = course_map.course_table(STOPS, here="00_start", link="notebooks/{}".format).splitlines()
    assert rows[2:] == [
        "| **core path** | 00 Title (40) · [06 Title](notebooks/06_shards.ipynb) (40) | 1.5 h |",
        "| large models | [06c Title](notebooks/06c_new.ipynb) (40) · [11 Title](notebooks/11_layers.ipynb) (60) "
        "| 1.5 h |",
    ]


def test_all_notebooks_are_on_the_picture_that_is_drawn_by_hand():
    drawn = ElementTree.fromstring((generate.NOTEBOOKS / generate.MAP).read_text(encoding="utf-8"))
    titles = [circle.find("{*}title").text for circle in drawn.findall(".//{*}circle")]
    numbers = [text.text for text in drawn.findall(".//{*}text") if text.get("class") == "number"]
    shown = sorted(zip(numbers, titles, strict=True))
    assert shown == sorted((each.number, each.title) for each in generate.stops()), "draw them in notebooks/map.svg"


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a README and the sources `01_a` and `06c_new`."""
    (tmp_path / "README.md").write_text("# R\n<!-- the map -->\nold\n<!-- end of the map -->\nrest\n")
    folder = tmp_path / "notebooks"
    (folder / "source").mkdir(parents=True)
    for name, track in (("01_a", exercises.CORE_PATH), ("06c_new", "large models")):
        source = folder / "source" / f"{name}.py"
        source.write_text(f'# %% [markdown] track="{track}"\n# # Title\n# **Time** is computed. **Needs** nothing.\n')
    return folder


def test_a_new_notebook_is_in_the_table_without_a_change_to_the_code(checkout):
    written = generate.write(checkout)
    readme = checkout.parent / "README.md"
    assert readme in written
    assert "[06c Title](assets/gallery/06c_new.ipynb) (0)" in readme.read_text()
    assert readme.read_text().startswith("# R\n") and readme.read_text().endswith("<!-- end of the map -->\nrest\n")
    assert generate.drifted(checkout) == []
    readme.write_text(readme.read_text().replace("06c Title", "06c Old"))
    assert generate.drifted(checkout) == [readme]


def test_a_notebook_without_a_known_track_is_answered_with_all_tracks(checkout):
    (checkout / "source" / "09_x.py").write_text("# %% [markdown]\n# # Title\n# **Time** is computed. **Needs** a.\n")
    with pytest.raises(SourceError, match=r"09_x.py: begin it with .*track=.*core path, frameworks"):
        generate.write(checkout)
