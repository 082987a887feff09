"""The tables of 08 say what the records say, with the learner's function, and a sentence where there's nothing yet."""

import pytest
from record_fixtures import run

from workshop_lib.notebook.results.curves import strong_scaling, to_frame

from lessons.scaling_curves import tables


def serial_fraction(speedup, n):
    return (1 / speedup - 1 / n) / (1 - 1 / n)


def scaling_table(seconds):
    return {n: (10 * n, 0.25) for n in seconds}


def measured(backend: str, ranks: int, *seconds: float) -> list[dict]:
    """A run of two epochs for each of these seconds. The first epoch takes a minute."""
    return [run(backend, ranks, (1000.0, 60_000 / each)) for each in seconds]


RUNS = measured("ddp", 1, 20, 20, 20) + measured("ddp", 2, 10, 10, 10)
RUNS += measured("mpi", 1, 10, 12, 30) + measured("mpi", 2, 8, 6, 24) + measured("mpi", 4, 12, 12, 12)


def test_speedups_are_the_learners_with_the_spread_of_the_runs():
    table = tables.speedups(RUNS, scaling_table)
    assert list(table.index) == [("mpi", "2"), ("mpi", "4*"), ("ddp", "2")], "a star for more ranks than cores"
    assert list(table.loc["mpi", "2"]) == ["20.00", "25%", "3,750", "0.50 to 2.00"]


def test_a_result_that_no_machine_can_have_is_noticed(capsys):
    tables.speedups(RUNS, lambda seconds: {2: (2.2, 1.1), 4: (4.0, 1.0)})
    printed = capsys.readouterr().out
    assert "2 ranks with ddp seem 2.20 times as fast as one. That's almost certainly wrong" in printed
    assert "4 ranks" not in printed, "perfect scaling can be"


def test_a_table_of_emulated_times_says_so():
    runs = measured("ddp", 1, 20) + measured("ddp", 2, 10)
    for record in runs:
        record["what"]["machine"] = "polaris"
    assert tables.losses(runs, serial_fraction).index.names == ["emulated on polaris", "ranks"]


def test_while_the_exercise_is_open_the_notebooks_solution_takes_its_place(capsys):
    def scaling_table(seconds):
        raise NotImplementedError("your code here")

    assert list(tables.speedups(RUNS, scaling_table).loc["mpi", "2"]) == ["1.50", "75%", "3,750", "0.50 to 2.00"]
    assert "scaling_table isn't solved yet" in capsys.readouterr().out


def test_losses_are_next_to_the_share_of_allreduce():
    table = tables.losses(RUNS, serial_fraction)
    assert list(table.loc["mpi", "2"]) == ["33.3%", "25%", "3,750", "10%"]
    assert list(table.loc["ddp", "2"]) == ["0.0%", "0%", "3,000", "–"]


def test_the_figure_and_both_tables_show_one_efficiency_even_of_two_runs():
    runs = measured("ddp", 1, 20, 24) + measured("ddp", 2, 10, 16)
    median_times = {2: (22 / 13, 22 / 26)}
    drawn = strong_scaling(to_frame(runs)).set_index("world_size").loc[2, "efficiency"]
    written = tables.speedups(runs, lambda seconds: median_times).loc[("ddp", "2"), "efficiency"]
    lost = tables.losses(runs, serial_fraction).loc[("ddp", "2"), "efficiency lost"]
    assert (f"{drawn:.0%}", written, lost) == ("85%", "85%", "15%")


def test_published_fractions_can_be_negative():
    table = tables.serial_fractions({"DDP": {1: 11.7, 4: 2.64}}, serial_fraction)
    assert list(table.loc["DDP", 4]) == ["4.43", "111%", "-3.2%"]


@pytest.mark.parametrize("runs", [[], RUNS[:3], RUNS[3:6]], ids=["none", "1 rank alone", "no baseline"])
def test_after_an_early_stop_a_sentence_says_that_nothing_can_be_compared(runs, capsys):
    assert tables.speedups(runs, scaling_table) is None
    assert tables.losses(runs, serial_fraction) is None
    assert capsys.readouterr().out.count("No run on more than one rank is done") == 2
    assert tables.speedups_of_runs(runs, "ddp", 2) == []
