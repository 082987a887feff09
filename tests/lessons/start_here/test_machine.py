"""What the doctor found is one line if all is well; what isn't stands in full, with its remedy."""

import pytest

from workshop_lib.cli.doctor import Finding
from workshop_lib.lessons.start_here.machine import Examination

FINE = Finding("cores", "ok", "2 usable of 2")
SMALL = Finding("memory", "warn", "1 GB <free>", "close something")
NO_MPI = Finding("mpiexec", "fail", "none", "install one")


@pytest.mark.parametrize(
    ("findings", "headline"),
    [([FINE], "Ready."), ([FINE, SMALL], "Ready, with 1 warning."), ([SMALL, NO_MPI], "Something is missing: ")],
)
def test_what_is_fine_is_folded_up_and_what_is_not_says_what_to_do(findings, headline):
    examination = Examination(findings)
    shown, folded = examination._repr_html_().split("<details>")
    assert repr(examination).startswith(headline) and headline in shown
    for finding in findings:
        assert (finding.name in shown, finding.name in folded) == (finding is not FINE, finding is FINE)
        assert finding.remedy in repr(examination)
    assert "<free>" not in shown
