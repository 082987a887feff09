"""Rank cells in the notebook: order of output, what stands side by side, options, completion, a new kernel."""

import io
import sys
import types
from unittest import mock

import cloudpickle
import numpy
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from workshop_lib import learner
from workshop_lib.notebook import live, magics, unfinished
from workshop_lib.paths import ROOT
from workshop_lib.ranks import RankError, session
from workshop_lib.ranks.call import cells, engine, printed, watch
from workshop_lib.ranks.call.messages import Text, output_key
from workshop_lib.ranks.call.output import Output, Row
from workshop_lib.ranks.faults import rank_errors

from tools import bootstrap

PNG = b"\x89PNG"


class Rank:
    """The answer of one rank, as it arrives."""

    def __init__(self, *output, over=False):
        """output: texts, or what it displays."""
        self.over = over
        sent = [Text("stdout", each) if isinstance(each, str) else each for each in output]
        self.data = {output_key(number): each for number, each in enumerate(sent)}

    def ready(self):
        return self.over


def shown(html):
    return {"data": {"text/html": html, "text/plain": "<object at 0x1>"}, "metadata": {}}


def news(ranks, whole=True):
    output = Output(dict(enumerate(ranks)))
    return [item if isinstance(item, str) else sorted(item.parts) for item in output.news(whole)]


def test_what_is_displayed_stands_between_what_is_printed_before_and_after():
    ranks = [Rank("before\n", shown("a"), "after\n"), Rank("ear", "ly\n", shown("b"), "late\n")]
    assert news(ranks) == ["[0] before", "[1] early", [0, 1], "[0] after", "[1] late"]


def test_a_rank_with_nothing_to_display_delays_no_other_for_long(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("workshop_lib.ranks.call.output.time.monotonic", lambda: clock[0] + 1)
    output = Output({0: Rank("x\n", shown("a"), "y\n", shown("b")), 1: Rank("z\n")})
    assert output.news() == ["[0] x", "[1] z"]
    clock[0] = 0.6
    assert [str(item)[:3] for item in output.news()] == ["Row", "[0]", "Row"], "the second at once"


def test_the_line_that_is_being_written_is_its_last_state():
    ranks = {0: Rank(Text("stderr", "10%\r 20%")), 1: Rank("done\n"), 2: Rank("ta", "il")}
    output = Output(ranks)
    assert output.news() == ["[1] done"]
    assert output.unfinished() == ["[0]  20%", "[2] tail"]
    assert output.news(whole=True) == ["[0]  20%", "[2] tail"]
    assert output.news(whole=True) == []


def row(bundles):
    parts = {rank: shown("") | {"data": data} for rank, data in enumerate(bundles)}
    return Row(list(parts), parts)


def test_few_ranks_stand_side_by_side_and_many_are_opened_one_by_one():
    two = live.bundle(row([{"image/png": PNG, "text/plain": "<Figure>"}, {"text/plain": "a < b"}]))
    assert "display: flex" in two["text/html"]
    assert '<img alt="plot of a rank" src="data:image/png;base64,iVBORw==' in two["text/html"]
    assert "<b>rank 1</b>" in two["text/html"] and "a &lt; b" in two["text/html"]
    assert two["text/plain"] == "[0] <Figure>\n[1] a < b"
    four = live.bundle(row([{"text/html": str(rank)} for rank in range(4)]))["text/html"]
    assert (four.count("<details"), four.count(" open>")) == (4, 1)


def test_what_is_the_same_on_all_ranks_is_shown_once():
    bundles = [{"text/html": "<i>x</i>", "text/plain": f"<object at {rank}>"} for rank in range(4)]
    html = live.bundle(row(bundles))["text/html"]
    assert html.count("<i>x</i>") == 1 and "the same on all 4 ranks" in html
    part = Row([0, 1], {0: shown("x")})
    assert "the same" not in live.bundle(part)["text/html"], "one rank alone"


@pytest.mark.parametrize("text", ["x" * 2 * printed.MAX_CHARACTERS, "x\n" * 2 * printed.MAX_LINES])
def test_what_a_cell_prints_is_cut_off_and_says_so_once(text):
    written = []
    stream = printed.Printed(types.SimpleNamespace(write=written.append))
    for _ in range(3):
        stream.write(text)
    stream.write("\r 50%")
    whole = "".join(written)
    assert len(whole) < printed.MAX_CHARACTERS + 200 and whole.count("\n") == stream.lines <= printed.MAX_LINES + 2
    assert whole.count("cut off here") == 1


def test_every_call_is_limited_and_lines_reach_the_page_in_one_message(capsys, monkeypatch):
    engine.call(cloudpickle.dumps((print, ("x\n" * 2 * printed.MAX_LINES,), {})))
    assert capsys.readouterr().out.count("x") == printed.MAX_LINES
    page = mock.Mock(wraps=io.StringIO())  # IPython's kernel sends what was written as a message when it's flushed
    monkeypatch.setattr(sys, "stdout", page)
    live.NotebookView(2).output([f"[0] line {number}" for number in range(1000)])
    written = "".join(call.args[0] for call in page.write.call_args_list)
    assert page.flush.call_count == 1 and written.endswith("line 998\n[0] line 999\n")


def test_a_large_transfer_is_announced_with_its_size(monkeypatch, capsys):
    published: dict = {}
    monkeypatch.setattr("ipyparallel.engine.datapub.publish_data", published.update)
    engine.call(cloudpickle.dumps((bytes, (engine.LARGE_BYTES // 2,), {})))
    assert published == {}
    engine.call(cloudpickle.dumps((bytes, (engine.LARGE_BYTES,), {})))
    call = types.SimpleNamespace(answers={}, running=[0, 1], published_by=lambda rank: published)
    screen = watch._Screen(None, call)
    screen.note_large_results()
    screen.note_large_results()
    assert capsys.readouterr().err == "Receiving 50 MB from ranks 0, 1 …\n"
    team = types.SimpleNamespace(n=2, client=None, give_up=str, wait_until_ended=str)
    with pytest.raises(TypeError):  # these ranks can't be sent anything
        watch.watch(team, bytes(engine.LARGE_BYTES), 1.0, None)
    assert capsys.readouterr().err == "Sending 50 MB to ranks 0, 1 …\n"


def test_the_ranks_of_a_cell_are_chosen_by_number():
    assert magics.PARSER.parse_args(["--on", "2,0"]).on == [0, 2]
    with pytest.raises(RankError, match="--on: a is neither a rank nor several, as 0,2 is. Usage: %%ranks"):
        magics.PARSER.parse_args(["--on", "a"])


@pytest.mark.parametrize("text", ["NotImplementedError: your code here", "NotImplementedError: no such device"])
def test_a_cell_that_calls_a_stub_names_it_and_goes_on(monkeypatch, capsys, text):
    failure = RankError("rank 0 raised NotImplementedError")
    frames = [{"file": "In[2]", "line": line, "name": name} for line, name in ((1, "<module>"), (3, "average"))]
    failure.reports = ({"what": "raised NotImplementedError", "text": text, "frames": frames},)
    team = types.SimpleNamespace(run_cell=lambda *args: (_ for _ in ()).throw(failure))
    monkeypatch.setattr(magics, "current", lambda: team)
    shell = types.SimpleNamespace(displayhook=types.SimpleNamespace(prompt_count=2))
    run_on_ranks = magics.RanksMagics.run_on_ranks
    if "your code" in text:
        run_on_ranks(types.SimpleNamespace(shell=shell), "", "average()")
        assert capsys.readouterr().out == "average isn't written yet. Write it above, then run this cell again.\n"
    else:
        with pytest.raises(RankError):
            run_on_ranks(types.SimpleNamespace(shell=shell), "", "average()")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("NameError: name 'z' is not defined", "which ranks don't see. Send it with `team.push(z=z)` in a cell"),
        ("NameError: name 'np' is not defined. Did you mean: 'mp'?", "Import numpy in a %%ranks cell"),
        ("NameError: name 'team' is not defined", "Use it in a cell without %%ranks"),
        ("NameError: name 'nowhere' is not defined", ""),
        ("ModuleNotFoundError: No module named 'made_here'", "has `made_here` without a file, where the ranks can't"),
        ("ModuleNotFoundError: No module named 'nowhere'", ""),
    ],
)
def test_what_only_the_notebook_has_is_explained(monkeypatch, error, advice):
    team = object.__new__(session.Ranks)
    shell = types.SimpleNamespace(user_ns={"z": 1, "np": numpy, "team": team})
    monkeypatch.setattr(learner, "shell", lambda: shell)
    monkeypatch.setitem(sys.modules, "made_here", types.ModuleType("made_here"))
    _, *lines = rank_errors.traceback_text({"what": "", "text": error, "frames": []}).splitlines()
    assert advice in "".join(lines) if advice else lines == []


def test_a_rank_between_two_calls_and_one_at_an_await_are_told_apart():
    names = ["select", "run_forever", "run_until_complete", "run_cell", "run"]
    files = ["lib/python3.13/x.py"] * 3 + [
        "workshop_lib/ranks/call/cells.py",
        "workshop_lib/ranks/launch/node_agent.py",
    ]
    frames = [{"file": f"/{file}", "line": 1, "name": name} for file, name in zip(files, names, strict=True)]
    assert rank_errors.where(frames) == "at an `await`"
    assert rank_errors.where([*frames[:2], frames[-1]]) == "done with its part"


class Team:
    def __init__(self, reply=None):
        self.reply = reply

    def ask(self, function, *args, limit_s):
        self.asked = function, *args
        return self.reply


def answers(monkeypatch, team):
    kernel = types.SimpleNamespace(do_complete=lambda *args: args, do_inspect=lambda *args: args)
    monkeypatch.setattr(magics, "current", lambda: team)
    magics.RankAnswers(kernel)
    return kernel


def test_rank_0_completes_and_inspects_inside_a_rank_cell_and_the_kernel_elsewhere(monkeypatch):
    match = {"start": 0, "end": 2, "text": "comm"}
    reply = {"matches": ["comm"], "cursor_start": 0, "cursor_end": 2}
    team = Team(reply | {"metadata": {"_jupyter_types_experimental": [match]}})
    kernel = answers(monkeypatch, team)
    code = "%%ranks --on 1\nco"
    assert kernel.do_complete(code, len(code))["cursor_start"] == match["start"] == 15
    assert match["end"] == len(code)
    assert team.asked == (cells.complete, "co", 2)
    assert kernel.do_complete(code, 4) == (code, 4), "in the magic's own line"
    assert kernel.do_complete("co", 2) == ("co", 2)
    assert kernel.do_inspect("co", 2) == ("co", 2, 0, ())
    team.reply = {"found": True}
    assert kernel.do_inspect(code, 17, 1) == {"found": True}
    assert team.asked == (cells.inspect, "co", 2, 1)


def test_busy_ranks_complete_nothing(monkeypatch):
    kernel = answers(monkeypatch, Team())
    assert kernel.do_complete("%%ranks\nco", 10)["matches"] == []
    assert kernel.do_inspect("%%ranks\nco", 10)["found"] is False


def test_a_rank_cell_in_a_new_kernel_says_how_to_start_ranks(monkeypatch):
    monkeypatch.setattr(session.CURRENT, "team", None)  # an earlier test may have left ranks
    with pytest.raises(RankError, match=r"Start some with `ranks.start\(2\)`. After a kernel restart, Run >"):
        magics.current_team()


def test_an_editor_that_is_not_jupyter_names_the_notebook_too(monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    shell = types.SimpleNamespace(user_ns={"__vsc_ipynb_file__": "/a.ipynb"})
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    assert learner.notebook().name == "a.ipynb"


@pytest.mark.parametrize(
    ("cell", "advice"),
    [
        ("# a comment\n%%ranks\n1", "`%%ranks` must be the first line of the cell: move what stands above it"),
        ("%%rank\n1", "Cell magic `%%rank` not found. Did you mean `%%ranks`, as the first line of the cell?"),
        ("# a comment\n%%Ranks\n1", "Did you mean `%%ranks`"),
        ("%%rnks\n1", "Did you mean `%%ranks`"),
        ("%rank", "Did you mean `%%ranks`"),
        ("%ranks\n1", "(But cell magic `%%ranks` exists, did you mean that instead?).\n"),
        ("%%unknown\n1", "Cell magic `%%unknown` not found.\n"),
    ],
)
def test_a_rank_cell_that_ipython_does_not_recognize_is_explained(capsys, cell, advice):
    shell = InteractiveShell()
    shell.register_magics(magics.RanksMagics)
    shell.set_custom_exc(magics.EXPLAINED, magics.explain_error)
    shell.run_cell(cell)
    assert advice in capsys.readouterr().err


def test_a_cell_that_fails_names_the_unfinished_cell_above_that_its_variable_depends_on(capsys):
    shell = InteractiveShell()
    shell.register_magics(magics.RanksMagics)
    unfinished.Unfinished(shell)
    shell.push({"team": types.SimpleNamespace(pull=lambda name: {})})
    note = "` may be incomplete, because cell [1] has not run to its end. Run it again.\n"
    for cell, noted in [
        ("%%ranks\ntimes = {}\ntimes[1] = measure()", ""),  # there are no ranks
        ("seconds = team.pull('times')", ""),
        ("seconds[1]", "`seconds" + note),
        ("times = team.pull('times')[1]", "`times" + note),
        ("def total(times, seconds): return 0\ntotal.nowhere", ""),
        ("two = 1 / 0", ""),
        ("seconds, two", "`two" + note.replace("1", "6")),
        ("seconds = {}", ""),
        ("seconds[1]", ""),
    ]:
        shell.run_cell(cell, store_history=True)
        out = capsys.readouterr().out
        assert out.endswith(noted) and ("may be incomplete" in out) == bool(noted), cell


def test_a_new_kernel_has_the_magic_from_a_startup_file(monkeypatch, tmp_path):
    monkeypatch.setattr(bootstrap, "VENV", str(tmp_path))
    bootstrap.add_startup_file()
    registered = {}
    monkeypatch.setattr(
        "IPython.core.magic.register_cell_magic", lambda name: lambda function: registered.update({name: function})
    )
    shell = types.SimpleNamespace(run_cell_magic=lambda *args: args, showtraceback=lambda *_, **__: None)
    shell.set_custom_exc = lambda kinds, explain: registered.update(explain=explain)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    namespace = {"__builtins__": __builtins__}
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    exec((tmp_path / "etc/ipython/startup/workshop.py").read_text(), namespace)
    assert set(namespace) <= {"__builtins__", "__doc__"}, "nothing is left in the learner's namespace"
    assert sys.path.index("") == len(sys.path) - 1, "a file beside the notebook hides no package"
    error = NameError("name 'team' is not defined")
    registered["explain"](shell, NameError, error, None)
    assert "Run All Above Selected Cell" in error.__notes__[0]
    error = UsageError("Cell magic `%%rank` not found.")
    registered["explain"](shell, UsageError, error, None)
    assert "Did you mean" in str(error)
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    import workshop_lib.notebook  # noqa: F401

    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    assert registered["ranks"]("--on 1", "1 + 1") == ("ranks", "--on 1", "1 + 1")
    assert (ROOT / "workshop_lib/notebook/startup.py").is_file()
