"""What the texts say about measured numbers is on their pages, and true of the run that the gallery shows."""

import nbformat
import pytest

from workshop_lib.classroom import generate

from tools import claims, gallery

NAMES = generate.chosen(())


@pytest.mark.parametrize("name", NAMES)
def test_the_sentence_of_each_claim_is_on_its_page_and_its_cell_can_be_told(name):
    assert len(claims.of_notebook(name)) >= 5 and not claims.misplaced(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_run_in_the_gallery_contradicts_no_sentence(name):
    found = claims.contradicted(name, nbformat.read(gallery.GALLERY / f"{name}.ipynb", as_version=4))
    assert not found, "\n".join(["run `make gallery` for this notebook", *found])


def run(name, value_was):
    """An executed notebook that gives every claim this value."""
    ran = nbformat.from_dict(generate.pristine(name)[1])
    for cell in ran.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    kept = [{"after": claim.after, "value": claim.value, "value_was": value_was} for claim in claims.of_notebook(name)]
    ran.metadata.claims = kept
    return ran


def test_a_notebook_that_contradicts_its_text_runs_once_more_and_then_its_sentence_is_named(
    monkeypatch, tmp_path, capsys
):
    claim = claims.Claim("start real MPI ranks", "ranks.start(2)", "2 + 2", "value > 4")
    monkeypatch.setattr(claims, "of_notebook", lambda name: [claim])
    monkeypatch.setattr(claims, "misplaced", lambda name: [])
    monkeypatch.setattr(gallery, "GALLERY", tmp_path)
    monkeypatch.setattr(gallery, "wait_until_quiet", lambda patience_s: patience_s)
    monkeypatch.setattr(gallery, "record_seconds", lambda name: None)
    values = [4, 4, 4, 5]
    monkeypatch.setattr(gallery, "run", lambda name: run(name, values.pop(0)))
    assert gallery.main(["00"]) == 1 and values == [4, 5]
    assert "says “start real MPI ranks”, but 2 + 2 is 4, not value > 4." in capsys.readouterr().err
    assert gallery.main(["00"]) == 0 and values == []


def test_a_sentence_that_was_changed_and_a_cell_that_is_gone_are_found(monkeypatch):
    claim = claims.Claim("nobody says this", "nobody.runs(this)", "1")
    monkeypatch.setattr(claims, "of_notebook", lambda name: [claim])
    found = claims.misplaced("00_start_here")
    assert len(found) == 2 and "doesn't say this" in found[0] and "0 cells have" in found[1]
    assert "didn't evaluate it" in claims.contradicted("00_start_here", nbformat.v4.new_notebook())[0]


def test_the_wait_for_a_quiet_machine_ends(monkeypatch, capsys):
    monkeypatch.setattr(gallery, "LISTEN_S", 0.01)
    warnings = iter(["Busy.", "Busy.", ""])
    monkeypatch.setattr(gallery.load.Meter, "warning", lambda *_: next(warnings))
    assert gallery.wait_until_quiet(60) > 0 and capsys.readouterr().out.count("We wait until they end") == 1
    monkeypatch.setattr(gallery.load.Meter, "warning", lambda *_: "Busy.")
    assert gallery.wait_until_quiet(0.02) == 0 and "We go on all the same" in capsys.readouterr().out
