"""A machine of one's own, described in a file, and the label of imagined machines."""

import re

import pytest

from workshop_lib.errors import InputError
from workshop_lib.machine import catalogue
from workshop_lib.paths import ROOT
from workshop_lib.training.options import TrainOptions

EXAMPLE = re.search(r"```toml\n(.*?)```", (ROOT / "book/emulated.md").read_text(), re.DOTALL)[1]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mycluster.toml"
    path.write_text(EXAMPLE)
    return path


def test_the_example_of_the_page_is_a_machine_wherever_a_name_goes(file):
    machine = catalogue.emulated_machine(str(file))
    assert machine == catalogue.machine(str(file)) and machine.name == "mycluster"
    assert (machine.devices_a_node, machine.adapters, machine.between.s_per_byte) == (4, 2, pytest.approx(1 / 45e9))
    assert TrainOptions(machine=str(file), stands_for="bert-base").machine == str(file)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("title = ", "titel = ", "the machine mycluster lacks title"),
        ("bytes_per_s = 45e9", "", "'bytes_per_s' is missing in a table of the machine mycluster"),
        ("bytes_per_s = 45e9", "bytes_per_s = 0", "bytes_per_s is 0: give a number above 0"),
        ("devices_a_node = 4", "devices_a_node = -4", "devices_a_node is -4"),
        ('"cheapest"', '"best"', "collectives 'best': use ring across nodes"),
        ("[mycluster]", "[mycluster", "isn't a TOML file"),
        ("[mycluster.inside]", "[other.inside]", "has one table with a name"),
    ],
)
def test_a_mistake_in_the_file_is_named(file, old, new, sentence):
    file.write_text(EXAMPLE.replace(old, new, 1))
    with pytest.raises(InputError, match=f"mycluster.toml.*({sentence})"):
        catalogue.machine(str(file))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="none.toml can't be read as a machine: there is no such file"):
        catalogue.emulated_machine(str(tmp_path / "none.toml"))


TABLE = catalogue.read(catalogue.HERE / "machines.toml")
IMAGINED = [name for name, entry in TABLE.items() if entry["source"].startswith("Imagined")]


def test_an_imagined_machine_is_called_imagined_by_its_title_and_label_and_no_other_is():
    for name, machine in catalogue.emulated_machines().items():
        shown = [machine.title, machine.what, catalogue.label(name)]
        assert {text.endswith("(imagined)") for text in shown} == {machine.imagined} == {name in IMAGINED}
    assert catalogue.label("mycluster.toml") == "mycluster.toml"


def test_whatever_says_where_times_were_emulated_shows_the_label():
    folders = [ROOT / "workshop_lib", ROOT / "notebooks/lessons"]
    lines = [line for folder in folders for file in folder.rglob("*.py") for line in file.read_text().splitlines()]
    named = [line for line in lines if re.search(r"[Ee]mulat(ed on|ing)( |\\n)\{", line)]
    assert len(named) > 8 and [line for line in named if "label" not in line] == []


def test_pages_that_use_an_imagined_machine_say_so():
    for page in (ROOT / "README.md", *ROOT.glob("book/*.md"), *ROOT.glob("notebooks/source/*.py")):
        text = page.read_text()
        assert "imagined" in text or not any(name in text for name in IMAGINED), page
