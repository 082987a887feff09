"""`breakpoint()` in a rank cell: one prompt for all ranks, and every promise about faults holds at it too."""

import builtins
import signal
import time

import pytest

from workshop_lib import ranks

CELL = """
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
def double(value):
    breakpoint()
    result = 2 * value
    return result
double(rank + 10)
"""
ON_RANK_0 = "\nif rank == 0: breakpoint()\ntotal = MPI.COMM_WORLD.allreduce(1)\nprint('total', total)"


pytestmark = [pytest.mark.full, pytest.mark.usefixtures("no_ranks_afterwards")]


@pytest.fixture
def debug(monkeypatch, capfd):
    """Runs a cell on two ranks and answers at its prompts; returns what was to be read, prompts included."""

    def run(cell, *answers, timeout=20, on=None):
        left = iter(answers)

        def answer(prompt):
            print(prompt)
            reply = next(left)
            if callable(reply):
                reply = reply()
            if isinstance(reply, BaseException):
                raise reply
            return reply

        monkeypatch.setattr(builtins, "input", answer)
        capfd.readouterr()
        team = ranks.start(2)
        try:
            team.run_cell("\nfrom mpi4py import MPI\nrank = MPI.COMM_WORLD.rank", "In[1]")
            team.run_cell(cell, "In[2]", timeout, on)
        finally:
            assert next(left, None) is None, "not every answer was asked for"
        return capfd.readouterr().out

    return run


def after(seconds, command):
    """An answer that takes its time."""

    def answer():
        time.sleep(seconds)
        return command

    return answer


def last_lines(said):
    """Of the two ranks, in their order: whichever prints first is shown first."""
    return sorted(said.splitlines()[-2:])


def test_all_ranks_step_together_and_one_may_be_asked_alone(debug):
    said = debug(CELL, "v", "n", "@1 p result", "c")
    assert "[0] > In[2](6)double()\n[0] -> result = 2 * value\n" in said, "the line after the breakpoint"
    assert said.count("pdb on ranks 0, 1") == 4
    assert "[0] value = 10\n" in said
    assert "[1] value = 11\n" in said
    assert "[1] 22\n" in said
    assert "[0] 20\npdb" not in said, "rank 0 wasn't asked"
    assert last_lines(said) == ["[0] 20", "[1] 22"]


def test_a_rank_may_wait_while_the_others_wait_for_it_for_longer_than_the_time_out(debug):
    said = debug(ON_RANK_0, after(3.5, "p rank"), "@1 p rank", "c", timeout=3)
    assert "Rank 1 isn't at a breakpoint. At one: rank 0.\n" in said
    assert last_lines(said) == ["[0] total 2", "[1] total 2"]


def test_stepping_ends_with_the_cell_and_does_not_slow_the_next(debug):
    debug("\nbreakpoint()\nx = 1", "n", "n")
    ranks.current().run_cell("\nimport sys\ntraced = sys.gettrace() is not None")
    assert ranks.current().pull("traced") == [False, False]


def test_a_breakpoint_without_anybody_there_shows_the_variables_and_goes_on(debug):
    said = debug(CELL, EOFError())
    assert "Nobody's there to answer" in said
    assert "[1] value = 11\n" in said
    assert "[0] 20\n" in said
    assert "[1] 22\n" in said


def test_quitting_ends_the_cell_and_keeps_the_ranks(debug):
    with pytest.raises(
        ranks.RankError, match=r"ranks 0, 1 quit at a breakpoint:\n    In\[2\], line 8, .*\n.*\n    In\[2\], line 6"
    ):
        debug(CELL, "q")


def test_the_stop_button_works_at_the_prompt(debug):
    with pytest.raises(ranks.RankError, match="interrupted. The ranks stopped what they did and are ready"):
        debug(CELL, KeyboardInterrupt())
    with pytest.raises(ranks.RankError, match=r"rank 1: at In\[2\], line 3.*\nFresh ranks were started"):
        debug(ON_RANK_0, KeyboardInterrupt())


def test_a_rank_that_is_killed_at_its_breakpoint_is_reported_after_the_answer(debug):
    def kill():
        ranks.current().send_signal([1], signal.SIGKILL)
        return "c"

    with pytest.raises(ranks.RankError, match=r"rank 1 on .* was killed by SIGKILL"):
        debug(CELL, kill)
    ranks.stop()


def test_a_rank_that_nobody_answers_goes_on_by_itself(debug):
    shorten = "import workshop_lib.ranks.call.debugger as debugger\ndebugger.ANSWER_LIMIT_S = {}\n"
    said = debug(shorten.format(0.5) + CELL + shorten.format(600.0), after(1.5, "c"))
    assert "[0] No command came for 0.5 s: this rank goes on." in said
    assert ranks.current().healthy
