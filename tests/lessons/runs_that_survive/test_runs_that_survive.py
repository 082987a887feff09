"""The exercises of 13b accept every right way, and reject wrong answers with the hint that names the mistake."""

import runpy

import pytest
from judge.answers import variant, written
from judge.verdicts import Verdicts

from workshop_lib.lessons.runs_that_survive import judge as check
from workshop_lib.paths import SCRIPTS

pytestmark = pytest.mark.usefixtures("healthy")

NOTEBOOK = check.NOTEBOOK
REPLACE = 'os.replace(f"{path}.part", path)'
IMPORTS = "import os, pathlib, shutil, signal, tempfile\nimport torch"


def answer(head, *lines):
    return lambda: written(IMPORTS, head, *lines)


def supervisor(*changes):
    return lambda: variant(NOTEBOOK, "supervise", *changes)


SAVE = "save(state, path)"
SUPERVISE = "supervise(start, ranks, restarts)"
RIGHT = {
    "a temporary file": answer(
        SAVE,
        "with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:",
        "    torch.save(state, file)",
        "os.rename(file.name, path)",
    ),
    "pathlib": answer(SAVE, "part = path.with_suffix('.new')", "torch.save(state, part)", "part.replace(path)"),
    "moved": answer(SAVE, "torch.save(state, f'{path}.new')", "shutil.move(f'{path}.new', path)"),
    "my_share": {
        "split": """
            def my_share(batch, rank, size):
                mine = np.array_split(batch, size)[rank]
                return mine, len(mine) / len(batch)
            """,
        "bounds": """
            def my_share(batch, rank, size):
                first = len(batch) * rank // size
                last = len(batch) * (rank + 1) // size
                return list(batch[first:last]), torch.tensor((last - first) / len(batch))
            """,
    },
    "interval_s": {
        "Daly": """
            def interval_s(save_s, mtbf_s):
                x = save_s / (2 * mtbf_s)
                return np.sqrt(2 * save_s * mtbf_s) * (1 + x**0.5 / 3 + x / 9) - save_s
            """,
        "tried out": """
            def interval_s(save_s, mtbf_s):
                tried = np.geomspace(1e-3 * mtbf_s, mtbf_s, 1000)
                return tried[np.argmin(save_s / tried + tried / (2 * mtbf_s))]
            """,
    },
    "kills all, then waits": supervisor(
        (
            "for pid in running:\n            os.kill(pid, signal.SIGKILL)\n            os.waitpid(pid, 0)",
            "for pid in running:\n            os.kill(pid, signal.SIGKILL)\n"
            "        for pid in running:\n            os.waitpid(pid, 0)",
        )
    ),
    "looks now and then": answer(
        SUPERVISE,
        "import time",
        "for attempt in range(restarts + 1):",
        "    running = [start(rank, attempt) for rank in range(ranks)]",
        "    lost = False",
        "    while running and not lost:",
        "        time.sleep(0.01)",
        "        for pid in list(running):",
        "            done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)",
        "            if done and status == 0: running.remove(pid)",
        "            elif done:",
        "                lost = True",
        "                if not os.WIFSTOPPED(status): running.remove(pid)",
        "    if not lost: return attempt",
        "    for pid in running:",
        "        os.kill(pid, signal.SIGKILL)",
        "        os.waitpid(pid, 0)",
        "raise RuntimeError('too many restarts')",
    ),
}
WRONG = {
    "straight into the file": (answer(SAVE, "torch.save(state, path)"), check.DIRECT_HINT),
    "deleted first": (
        answer(
            SAVE, "torch.save(state, f'{path}.part')", "path.unlink(missing_ok=True)", "os.rename(f'{path}.part', path)"
        ),
        "would find no checkpoint",
    ),
    "copied": (
        answer(SAVE, "torch.save(state, f'{path}.part')", "shutil.copyfile(f'{path}.part', path)"),
        "would find half a checkpoint",
    ),
    "silent": (
        answer(SAVE, "try:", "    torch.save(state, f'{path}.part')", f"    {REPLACE}", "except OSError:", "    pass"),
        check.SILENT_HINT,
    ),
    "the weights alone": (answer(SAVE, "torch.save(state['weights'], f'{path}.part')", REPLACE), "save all of `state`"),
    "no kill of a stopped one": (supervisor((", os.WUNTRACED", ", 0")), "os.WUNTRACED"),
    "no error at the end": (
        supervisor(('raise SystemExit(f"given up after {restarts} restarts")', "return")),
        check.ERROR_HINT,
    ),
    "waits for one rank after the other": (
        answer(
            SUPERVISE,
            "for attempt in range(restarts + 1):",
            "    pids = [start(rank, attempt) for rank in range(ranks)]",
            "    if not any([os.waitpid(pid, 0)[1] for pid in pids]): return",
            "raise SystemExit('given up')",
        ),
        "it waits for rank 0",
    ),
    "starts the lost one alone": (
        answer(
            SUPERVISE,
            "rank_of, attempt = {start(rank, 0): rank for rank in range(ranks)}, 0",
            "while rank_of:",
            "    pid, status = os.waitpid(-1, os.WUNTRACED)",
            "    rank = rank_of.pop(pid)",
            "    if status:",
            "        attempt += 1",
            "        rank_of[start(rank, attempt)] = rank",
        ),
        "(0, 0), (0, 1), (0, 2), (1, 2), and",
    ),
    "kills nobody": (supervisor(("for pid in running:", "for pid in ():")), check.KILL_HINT),
    "never gives up": (supervisor(("range(restarts + 1)", "__import__('itertools').count()")), "after `restarts`"),
}


@pytest.fixture(scope="module", autouse=True)
def short_scenes():
    """A scene that never ends takes the whole limit, and many a wrong answer has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "LIMIT_S", 2.0)
        yield


class TestBreaking(Verdicts):
    check, notebook = check, NOTEBOOK
    names = ("save", "interval_s", "my_share", "supervise")
    right, wrong = RIGHT, WRONG
    at_once = {"supervise": 4}  # each in a process of its own, which mostly waits


def test_fault_injection_gets_the_learners_function_and_the_modules_it_uses(tmp_path):
    mine = written(IMPORTS, SAVE, "torch.save(state, f'{path}.mine')", "shutil.move(f'{path}.mine', path)")
    text = check.script("elastic.py", tmp_path / "elastic.py", mine).read_text()
    assert "shutil.move" in text and "import shutil as shutil" in text and "os.replace" not in text
    assert text.count("def save(") == text.count("def train(") == 1
    compile(text, "elastic.py", "exec")


def test_an_open_exercise_leaves_the_scripts_own_function(tmp_path, capsys):
    stub = written("", SAVE, "raise NotImplementedError('your code here')")
    assert check.script("elastic.py", tmp_path / "mine.py", stub).read_text() == (SCRIPTS / "elastic.py").read_text()
    assert "save isn't solved yet" in capsys.readouterr().out


def test_the_script_to_take_home_has_the_solution():
    supervise = runpy.run_path(str(SCRIPTS / "survive.py"), run_name="script")["supervise"]
    verdict = check.supervise.verdict([check.supervise.observe(None, supervise)])
    assert verdict.passed is True, verdict
