"""What is said about a hundred ranks: what is equal is said once, the odd one out comes first, and it fits a screen."""

from types import SimpleNamespace

import pytest
from test_failures import RECEIVING, Call, Team, frame

from workshop_lib.ranks import RankError
from workshop_lib.ranks.call.messages import Loss, Text, output_key
from workshop_lib.ranks.call.output import Output
from workshop_lib.ranks.faults import failures, rank_errors
from workshop_lib.ranks.faults.losses import after_a_loss

N = 128
LINES = 15
BARRIER = [frame("comm.Barrier()", line=8)]


def lines_of(raised, *arguments):
    with pytest.raises(RankError) as caught:
        raised(*arguments)
    return str(caught.value).splitlines()


def failed(text="boom", line=4, frames=1):
    calls = [frame("f(x + 1)", line=line)] * frames
    return {"error": {"what": "raised ValueError", "text": f"ValueError: {text}", "frames": calls}}


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([3], "rank 3"),
        ([4, 2, 3, 0], "ranks 0, 2–4"),
        (range(0, N, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, … (64 in all)"),
    ],
)
def test_ranks_in_a_row_are_named_as_a_range(ranks, said):
    assert rank_errors.named(ranks) == said


def test_one_rank_fails_and_the_others_wait_in_one_line():
    call = Call(dict.fromkeys(range(N), BARRIER), {5: failed()})
    lines = lines_of(failures.raise_stuck, call, call.stacks())
    assert lines[0] == "rank 5 raised ValueError:"
    assert "  ranks 0–4, 6–127: still at In[3], line 8, in <module>:  comm.Barrier()" in lines
    assert len(lines) <= LINES


def test_ranks_at_a_hundred_places_are_not_all_listed_but_can_be_looked_up():
    call = Call({rank: [frame("comm.recv()", line=rank)] for rank in range(N)})
    lines = lines_of(failures.raise_timeout, call, 20)
    assert len(lines) <= LINES
    assert "  ranks 6–127: elsewhere (`team.positions` has the place of each rank)" in lines
    assert "line 127" in call.team.positions[127]


def test_a_hundred_errors_are_told_as_three():
    lines = failures.errors_text(Call(dict.fromkeys(range(N), []), {rank: failed(line=rank) for rank in range(N)}))
    assert lines.splitlines()[-1] == "ranks 3–127 raised other errors" and len(lines.splitlines()) <= LINES


def test_a_thousand_calls_of_one_function_are_cut_in_the_middle():
    text = rank_errors.traceback_text(failed(frames=1000)["error"])
    assert "    … 995 more calls …" in text and len(text.splitlines()) <= LINES


def test_after_a_loss_the_errors_and_places_of_the_others_are_grouped():
    record = {"rank": 11, "host": "node7", "pid": 1, "returncode": -9, "asked": False, "time": 0.0}
    raised = {rank: failed(f"lost {rank}")["error"] for rank in range(20, 40)}
    stacks = dict.fromkeys(range(N), RECEIVING)
    lines = str(after_a_loss(Team(), Loss([record], stacks, raised), {})).splitlines()
    assert lines[0] == "rank 11 on node7 was killed by SIGKILL."
    assert any(line.startswith("  ranks 20–39 raised ValueError at In[3]") for line in lines)
    assert any(line.startswith("  ranks 0–10, 12–19, 40–127: at In[3]") for line in lines)
    assert len(lines) <= LINES


def printed(texts):
    answers = {}
    for rank, text in texts.items():
        answers[rank] = SimpleNamespace(data={output_key(0): Text("stdout", text)}, ready=lambda: True)
    return Output(answers)


def test_what_many_ranks_print_is_shown_once_and_what_few_print_for_each():
    texts = dict.fromkeys(range(N), "hello\n") | {7: "good bye\n"}
    assert printed(texts).news() == ["[7] good bye", "[0–6, 8–127] hello"]
    assert printed({0: "hello\n", 1: "hello\n"}).news() == ["[0] hello", "[1] hello"]
