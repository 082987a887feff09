from workshop_lib.classroom import generate


def test_the_notebooks_are_what_their_sources_say():
    assert generate.sources(), "no notebook source found in notebooks/source"
    differing = [str(path.relative_to(generate.NOTEBOOKS)) for path in generate.drifted()]
    assert not differing, f"run `make notebooks`: {differing} differ from notebooks/source"
