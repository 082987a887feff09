"""What the doctor found is one line if all is well; what isn't stands in full, with its remedy."""

import pytest

from workshop_lib.findings import Finding

from lessons.start_here.machine import Examination

FINE = Finding("ok", "cores", "2 usable of 2")
SMALL = Finding("look", "memory", "1 GB <free>", remedy="close something")
NO_MPI = Finding("wrong", "mpiexec", "none", remedy="install one")


@pytest.mark.parametrize(
    ("findings", "headline"),
    [
        ([FINE], "Ready."),
        ([FINE, SMALL], "Ready, with 1 thing to look at."),
        ([SMALL, NO_MPI], "Something is missing: "),
    ],
)
def test_what_is_fine_is_folded_up_and_what_is_not_says_what_to_do(findings, headline):
    examination = Examination(findings)
    shown, folded = examination._repr_html_().split("<details>")
    assert repr(examination).startswith(headline) and headline in shown
    for finding in findings:
        assert (finding.check in shown, finding.check in folded) == (finding is not FINE, finding is FINE)
        assert finding.remedy in repr(examination)
    assert "<free>" not in shown
