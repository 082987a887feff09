"""The map from the topics of the documents that this workshop grew out of to where they are taught."""

import csv
import re

from workshop_lib.notebook import generate
from workshop_lib.paths import ROOT

TOPICS = list(csv.DictReader((ROOT / "assets" / "coverage.csv").open(encoding="utf-8", newline="")))
HEADING = re.compile(r"^# #+ (.+)$", re.MULTILINE)


def places(row: dict[str, str]) -> list[str]:
    return [place for place in row["where"].split("; ") if place]


def exists(place: str) -> bool:
    """A file or folder of the checkout; a notebook, or NOTEBOOK#HEADING."""
    stem, _, heading = place.partition("#")
    source = generate.NOTEBOOKS / "source" / f"{stem}.py"
    if not source.is_file():
        return not heading and (ROOT / place).exists()
    return not heading or heading in HEADING.findall(source.read_text(encoding="utf-8"))


def test_each_topic_is_listed_once_with_a_status():
    assert len(TOPICS) == 225 == len({(row["document"], row["topic"]) for row in TOPICS})
    assert {row["status"] for row in TOPICS} == {"well", "thin", "absent"}


def test_each_place_exists_and_each_topic_that_is_not_absent_has_one():
    missing = {row["topic"]: [place for place in places(row) if not exists(place)] for row in TOPICS}
    assert {topic: where for topic, where in missing.items() if where} == {}
    assert [row["topic"] for row in TOPICS if bool(places(row)) == (row["status"] == "absent")] == []
