"""Whatever lists backends has all of them. A backend that is only a file and an entry in REGISTRY fails here, with what
is missing; its rungs of the ladder follow from the registry (see training/ladder.py).
"""

import re

import pytest
from training.ladder import HOROVOD, REPLICATED, SHARDED

from workshop_lib.cli import doctor
from workshop_lib.machine.installation import NEEDED_BY
from workshop_lib.notebook import figures
from workshop_lib.notebook.results.records import all_names
from workshop_lib.paths import ROOT
from workshop_lib.training import backends, record

PACKAGES = {package for entry in backends.REGISTRY.values() for package in entry.packages}
TABLE = (ROOT / "book" / "command_line.md").read_text().partition("| `--backend` |")[2]
IN_TABLE = re.findall(r"^\| `([\w-]+)` \|", TABLE, re.M)


@pytest.mark.parametrize(
    ("place", "listed", "wanted"),
    [
        ("book/command_line.md: a row in the table of --backend", IN_TABLE, backends.REGISTRY),
        (
            "notebook/figures/__init__.py: a style in NUMBER_OF_NAME, and its color (palette.py), marker and dash",
            figures.NUMBER_OF_NAME,
            all_names(),
        ),
        ("training/ladder.py, in tests: a file with its rungs", [*SHARDED, *HOROVOD, *REPLICATED], all_names()),
    ],
    ids=["table", "styles", "ladder"],
)
def test_every_backend_is_listed_and_no_other(place, listed, wanted):
    lacking, unknown = set(wanted) - set(listed), set(listed) - set(wanted)
    assert not lacking, f"{', '.join(sorted(lacking))}: missing in {place}"
    assert not unknown, f"{', '.join(sorted(unknown))}: not in REGISTRY, but in {place}"


@pytest.mark.parametrize(
    ("place", "listed"),
    [
        ("cli/doctor.py: REQUIRED, or training/backends/__init__.py: EXTRAS", {*doctor.REQUIRED, *backends.EXTRAS}),
        ("training/record.py: PACKAGES, whose versions a record holds", record.PACKAGES),
    ],
    ids=["doctor", "record"],
)
def test_every_package_of_a_backend_is_listed(place, listed):
    assert not PACKAGES - set(listed), f"{', '.join(sorted(PACKAGES - set(listed)))}: missing in {place}"


def test_every_extra_is_one_of_the_set_up():
    assert set(backends.EXTRAS.values()) == set(NEEDED_BY)


@pytest.mark.parametrize("name", backends.REGISTRY)
def test_a_backend_s_class_has_its_name(name):
    entry = backends.REGISTRY[name]
    code = (ROOT / "workshop_lib/training/backends" / f"{entry.file}.py").read_text()
    body = code.partition(f"class {entry.class_name}(")[2]
    assert f'name = "{name}"' in body, f"{entry.file}.py: give {entry.class_name} the name {name!r}"
