"""Cells on ranks behave as a notebook's own: display, plots, progress bars, magics, the last value, one rank alone."""

import importlib
import sys
import time

import pytest

from workshop_lib import ranks
from workshop_lib.errors import InputError
from workshop_lib.ranks.call import cells
from workshop_lib.ranks.call.view import TextView

pytestmark = pytest.mark.full


class Kept(TextView):
    """Keeps what is shown: lines, and rows as what each rank displayed."""

    items: list = []
    unfinished_lines: list = []

    def output(self, items):
        Kept.items += [item if isinstance(item, str) else item.parts for item in items]

    def unfinished(self, lines):
        Kept.unfinished_lines += lines


@pytest.fixture(scope="module", autouse=True)
def as_in_a_kernel(no_ranks_afterwards):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MPLBACKEND", raising=False)  # a kernel has its own, and its ranks, too
        patch.setattr(ranks.Ranks, "view", Kept)
        ranks.stop()  # those of an earlier test
        yield


@pytest.fixture
def team():
    team = ranks.start(2)
    team.run_cell("import time\nfrom mpi4py import MPI\nrank = MPI.COMM_WORLD.rank")
    return team


@pytest.fixture
def run(team):
    """Runs a cell; returns what is shown: lines without what other ranks than 0 print, and the rows."""

    def run_cell(source, **options):
        Kept.items, Kept.unfinished_lines = [], []
        team.run_cell("\n" + source, "In[1]", **options)
        return [item for item in Kept.items if not str(item).startswith("[1]")]

    return run_cell


PLOT = """\
import matplotlib.pyplot as plt
print("before")
plt.plot([rank, 1])
plt.show()
print("after")
plt.plot([1, rank])
display(3)
"the last value"
"""


def test_plots_and_the_last_value_come_in_their_order(run):
    before, plot, after, shown, value, open_figure = run(PLOT)
    assert [before, after, shown, value] == ["[0] before", "[0] after", "[0] 3", "[0] 'the last value'"]
    for figure in plot, open_figure:
        assert [part["data"]["image/png"][:10] for _, part in sorted(figure.items())] == ["iVBORw0KGg"] * 2
    assert plot[0]["data"]["image/png"] != plot[1]["data"]["image/png"]


def test_the_last_value_brings_its_html_unless_a_semicolon_ends_it(run):
    html = "class Rich:\n    def _repr_html_(self):\n        return f'<b>{rank}</b>'\nRich()"
    (row,) = run(html)
    assert [row[rank]["data"]["text/html"] for rank in (0, 1)] == ["<b>0</b>", "<b>1</b>"]
    assert run(html + ";") == [] == run("x = 1")


def test_magics_and_commands_work_and_lines_keep_their_numbers(run):
    assert run("!echo from {rank}") == ["[0] from 0"]
    assert "per loop" in run("%timeit -n 2 -r 2 rank")[0]
    with pytest.raises(ranks.RankError, match=r"In\[1\], line 5, in <module>\n        1/0"):
        run("\n%pwd\n!true\n1/0")
    with pytest.raises(ranks.RankError, match='raised SyntaxError:\n    File "In\\[1\\]", line 3\n'):
        run("x = 1\ny = (")


def test_autoreload_reads_an_edited_module_again(run, tmp_path):
    module = tmp_path / "edited_module.py"
    module.write_text("def answer(): return 1\n")
    load = f"import sys; sys.path.append({str(tmp_path)!r})\n%load_ext autoreload\n%autoreload 2\nimport edited_module"
    assert run(f"{load}\nedited_module.answer()") == ["[0] 1"]
    module.write_text("def answer(): return 222\n")
    assert run("edited_module.answer()") == ["[0] 222"]
    run("%autoreload 0")


def test_a_cell_can_await_and_run_event_loops(run):
    coroutine = "import asyncio\nasync def double(x):\n    await asyncio.sleep(0)\n    return 2 * x"
    assert run(f"{coroutine}\nbegun = asyncio.create_task(double(1))\nawait double(2)") == ["[0] 4"]
    assert run("asyncio.run(double(3))") == ["[0] 6"]
    assert run("await begun") == ["[0] 2"]
    with pytest.raises(ranks.RankError, match=r"In\[1\], line 2, in <module>\n        await double"):
        run("await double(double)")


def test_the_ranks_find_what_the_notebook_finds_in_its_search_path(run, team, tmp_path, monkeypatch):
    for folder in ("first", "last"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}_module.py").write_text("def name(): return __name__\n")
        (tmp_path / folder / "wave.py").write_text(f"folder = '{folder}'\n")  # hides Python's own, if it comes first
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "last")])
    assert team.run(importlib.import_module("last_module").name) == ["last_module"] * 2
    assert run("import first_module, wave\nwave.folder") == ["[0] 'first'"]


def test_what_a_thread_prints_between_two_cells_is_shown_with_the_next(run, team):
    assert run("import threading\nthreading.Timer(0.05, print, ['late']).start()\nprint('begun')") == ["[0] begun"]
    time.sleep(0.5)
    team.push(x=1)
    assert run("print(x)") == ["[0] (between cells) late", "[0] 1"]
    assert run("print(x)") == ["[0] 1"]


FORKS = """\
import os, sys, time
child = os.fork()
if child == 0:
    print("from a fork")
    sys.exit()
time.sleep(0.2)
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def test_a_fork_made_on_a_rank_ends_where_its_call_ends_and_prints_there(team, run, monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # with it, ipykernel doesn't read a rank's files
    team.restart()
    assert sorted(run(FORKS)) == ["[0] 0", "[0] from a fork"]


def test_a_second_magic_in_a_cell_is_named(run):
    with pytest.raises(ranks.RankError, match="`%%ranks` stands in this cell twice: keep the first one"):
        run("%%ranks\n1")


def test_progress_bars_are_text_that_moves(run):
    bars = "for _ in trange(2, desc='outer'):\n    for _ in tqdm(range(3), desc='inner', leave=False): time.sleep(0.06)"
    lines = run(f"from tqdm.auto import tqdm, trange\n{bars}")
    assert [line.split("|")[0] for line in lines] == ["[0] outer: 100%"]
    assert any("inner" in line for line in Kept.unfinished_lines)
    assert run("from tqdm.notebook import tqdm\nfor _ in tqdm([1]): pass")[0].startswith("[0] 100%")


@pytest.mark.parametrize("cell", ["input('name?')", "import pdb; pdb.set_trace()\nrank"])
def test_what_asks_for_a_keyboard_says_why_there_is_none(run, cell):
    with pytest.raises(ranks.RankError, match="A rank has no keyboard.*\nThe ranks are still in step"):
        run(cell)


def test_what_is_too_large_too_often_or_alive_is_said(run):
    (large,) = run("from IPython.display import HTML\nHTML('x' * 3_000_000)")
    assert "not shown: a cell shows 50 displays of at most 2 MB" in large[0]["data"]["text/plain"]
    rows = run("for _ in range(60): display(HTML('x'))")
    assert len(rows) == cells.MAX_DISPLAYS + 1 and "not shown" in rows[-1][0]["data"]["text/plain"]
    assert "IntSlider(value=3" in run("import ipywidgets\nipywidgets.IntSlider(value=3)")[0]


def test_an_error_that_ipython_keeps_to_itself_is_shown(run):
    assert any(
        "bad repr" in line for line in run("class Bad:\n    def __repr__(self): raise ValueError('bad repr')\nBad()")
    )


def test_one_rank_alone_and_a_message_between_two_cells(run):
    assert run("print(rank)", on=[0]) == ["[0] 0"]
    assert run("MPI.COMM_WORLD.send('kept', dest=0)", on=[1]) == []
    assert run("MPI.COMM_WORLD.recv()", on=[0]) == ["[0] 'kept'"]
    with pytest.raises(InputError, match="no rank 2: the ranks are 0 to 1"):
        run("rank", on=[2])


def test_rank_0_completes_and_inspects_and_nothing_is_asked_while_ranks_are_busy(team):
    assert ".allreduce" in team.ask(cells.complete, "MPI.COMM_WORLD.allr", 19, limit_s=10)["matches"]
    assert (
        "Reduce to All" in team.ask(cells.inspect, "MPI.COMM_WORLD.allreduce", 20, 0, limit_s=10)["data"]["text/plain"]
    )
    team.busy = True
    assert team.ask(max, 1, 2, limit_s=10) is None
    team.busy = False
    assert team.ask(max, 1, limit_s=10) is None, "an error"


@pytest.mark.parametrize(
    ("collective", "reported"),
    [
        ("MPI.COMM_WORLD.Barrier()", "rank 1 cannot go on: .*\n  rank 1: at In.1., line 3"),
        ("MPI.COMM_WORLD.bcast(1, root=1)", "rank 1 took part in a collective that the others never joined"),
    ],
)
def test_a_collective_on_some_ranks_is_reported(run, collective, reported):
    with pytest.raises(ranks.RankError, match=reported):
        run(f"rank\n{collective}", on=[1], timeout=20)
