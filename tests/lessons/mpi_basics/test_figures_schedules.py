"""The picture of a schedule has each rank's calls in order, the messages, and who waits for whom."""

from drawn import check_layout, texts
from matplotlib.patches import FancyArrowPatch

from workshop_lib.lessons.mpi_basics import schedule_figures as schedules
from workshop_lib.lessons.mpi_basics.schedule_report import Box, Picture


def both_send(comm):
    comm.ssend(1, dest=1 - comm.rank)
    return comm.recv(source=1 - comm.rank)


def passes_on(comm):
    if comm.rank:
        comm.recv(source=comm.rank - 1)
    if comm.rank < comm.size - 1:
        comm.send(1, dest=comm.rank + 1)


def test_a_deadlock_shows_who_waits_and_is_told_in_words_too():
    figure = schedules.explore(both_send, ranks=2)
    assert texts(figure).count("ssend") == 2
    assert "waits for\nrank 1 to receive" in texts(figure)
    assert "ends" not in texts(figure)
    assert repr(figure).startswith("Deadlock. Rank 0 waits in line")
    check_layout(figure)


def test_every_message_is_an_arrow_and_every_rank_ends():
    figure = schedules.explore(passes_on, ranks=4)
    arrows = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == 3
    assert texts(figure).count("ends") == 4
    check_layout(figure)


def test_calls_that_end_together_fake_machine_one_column_and_a_buffered_message_arrives_later():
    together = Picture(
        [[Box("Send", 1, 5, "")], [Box("Isend", 1, 2, ""), Box("Recv", 2, 5, "")]], [((0, 0), (1, 1))], [True, True]
    )
    assert schedules.columns(together) == {(0, 0): 1, (1, 0): 0, (1, 1): 1}
    buffered = Picture([[Box("Send", 1, 1, "")], [Box("Recv", 2, 5, "")]], [((0, 0), (1, 0))], [True, True])
    assert schedules.columns(buffered) == {(0, 0): 0, (1, 0): 1}


def test_an_unsolved_exercise_is_not_drawn(capsys):
    def stub(comm):
        raise NotImplementedError("your code here")

    assert schedules.explore(stub) is None
    assert "isn't solved yet" in capsys.readouterr().out
