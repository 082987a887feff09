"""The faces of packages: names that are imported when they are first used."""

import inspect
import subprocess
import sys

import pytest

import workshop_lib

from lessons import start_here as lesson


def test_a_process_loads_only_what_it_uses_of_a_face():
    heavy = ["matplotlib", "pandas", "torch", "IPython", "ipywidgets", "lessons.zero_and_fsdp.judge"]
    code = (
        "import sys, workshop_lib; from lessons import zero_and_fsdp as lesson;"
        f"print(lesson.ring.part(8, 1, 2), *set({heavy}) & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60) == "slice(4, 8, None)\n"


def test_a_face_gives_modules_and_what_is_in_them():
    assert "def doubt" in inspect.getsource(lesson.load)
    assert inspect.getsource(lesson.overview).startswith("def overview")
    assert dir(lesson) == ["check", "load", "machine", "overview"]


@pytest.mark.parametrize(
    ("face", "typo", "said"),
    [
        (lesson, "chek", "`lessons.start_here` has no `chek`, but it has `check`."),
        (lesson, "xyz", "`lessons.start_here` has no `xyz`, but it has `check`, `load`, `machine`, `overview`."),
        (workshop_lib, "TrainOption", "`workshop_lib` has no `TrainOption`, but it has `TrainOptions`."),
    ],
)
def test_a_misspelled_name_is_answered_with_those_near_it(face, typo, said):
    with pytest.raises(AttributeError) as raised:
        getattr(face, typo)
    assert str(raised.value) == said
