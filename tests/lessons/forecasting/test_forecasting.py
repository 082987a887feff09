"""The exercises of 08c: right answers pass, and wrong ones are rejected with a hint."""

import pytest
from judge.verdicts import Verdicts
from lessons.forecasting import alternatives

from workshop_lib.lessons.forecasting import judge

pytestmark = pytest.mark.usefixtures("healthy")


class TestForecasting(Verdicts):
    check, notebook, names = judge, judge.NOTEBOOK, ["fit_and_test", "overlapped_step"]
    right = alternatives.RIGHT
