"""The first exercise of 12: right answers pass, and wrong ones are rejected with a hint."""

import pytest
from judge.verdicts import Verdicts
from lessons.thousand_ranks import alternatives

from workshop_lib.lessons.thousand_ranks import judge

pytestmark = pytest.mark.usefixtures("healthy")


class TestThousandRanks(Verdicts):
    check, notebook, names = judge, judge.NOTEBOOK, ["mesh_bytes"]
    right = alternatives.RIGHT
