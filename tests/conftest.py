"""For all tests: settings stay in the checkout, no process of ours outlives the run, which run, and beside whom.

`make test` runs the tests in two lanes (pytest-xdist), because a test with ranks waits for a third of its time.
"""

import contextlib
import fcntl
import functools
import os
from pathlib import Path

import pytest
import tiers
from our_ranks import left_after, our_ranks
from ranks.ladder import write_small_mnist
from xdist.scheduler import LoadScopeScheduling

from workshop_lib.paths import BUILD, ROOT
from workshop_lib.ranks import processes

os.environ.setdefault("MPLBACKEND", "Agg")
for variable, folder in (("IPYTHONDIR", "ipython"), ("MPLCONFIGDIR", "matplotlib")):
    os.environ.setdefault(variable, str(BUILD / folder))
quick_start = str(Path(__file__).with_name("quick_start"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [quick_start, os.environ.get("PYTHONPATH")]))


class Lanes(LoadScopeScheduling):
    """What stays together goes to the lane that is free next."""

    def _split_scope(self, nodeid: str) -> str:
        """Tests of one name stay in one lane, one after another: those of a file, as a rule."""
        path = nodeid.partition("::")[0]
        if path.endswith("notebooks/test_run.py"):
            return nodeid  # each notebook is on its own
        if "/slurm/" in path:
            return "slurm"  # one Slurm
        return "trainings" if uses_trainings(path) else path


@functools.cache
def uses_trainings(path: str) -> bool:
    """Whether a file looks at the trainings of ranks/trainings.py, which start once for all of them."""
    return "def trainings(" in (ROOT / path).read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return Lanes(config, log)


def pytest_addoption(parser):
    parser.addoption("--tier", choices=tiers.TIERS, help="run the tests of this tier alone (see tests/tiers.py)")
    parser.addoption("--lesson", help="run the tests of this lesson alone, given as the number of its notebook: 06")


def pytest_configure(config):
    lesson = config.getoption("lesson")
    if lesson and lesson not in tiers.LESSONS:
        raise pytest.UsageError(f"there is no lesson {lesson}: choose one of {', '.join(tiers.LESSONS)}")


COLLECTED = pytest.StashKey[list[pytest.Item]]()


def pytest_collection_modifyitems(config, items):
    """Keep the tests that were asked for. Files with a test that has the machine to itself come first: later, it would
    wait for the other lane's test."""
    config.stash[COLLECTED] = list(items)
    tier, lesson = config.getoption("tier"), config.getoption("lesson")
    if tier:
        keep(config, items, lambda item: tiers.tier_of(item) == tier)
    if lesson:
        keep(config, items, lambda item: lesson in tiers.lessons_of(item))
    alone = {item.path for item in items if item.get_closest_marker("alone")}
    items.sort(key=lambda item: item.path not in alone)


def keep(config, items, wanted) -> None:
    """Leave out the tests that are not wanted."""
    left_out = [item for item in items if not wanted(item)]
    items[:] = [item for item in items if wanted(item)]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def all_tests(pytestconfig) -> list[pytest.Item]:
    """All tests there are, chosen or not."""
    if pytestconfig.args != pytestconfig.getini("testpaths"):
        pytest.skip("looks at all tests, and this run was given some of their files")
    return pytestconfig.stash[COLLECTED]


@contextlib.contextmanager
def locked(name: str, how: int):
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / name, "a") as file:
        with contextlib.suppress(OSError):  # some network file systems have no locks: the lanes then don't wait
            fcntl.flock(file, how)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest-timeout: waiting for the other lane does not count
def pytest_runtest_protocol(item):
    """A test that compares times has the machine to itself: the other lane waits meanwhile."""
    how = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with contextlib.ExitStack() as running:
        with locked("tests.turn", fcntl.LOCK_EX):  # nobody overtakes the one that waits to be alone
            running.enter_context(locked("tests.lock", how))
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left_behind():
    yield
    left = left_after(10)
    processes.kill(left)
    assert not left, f"processes left by the tests: {left}"


@pytest.fixture(scope="session")
def small_mnist(tmp_path_factory) -> str:
    """A folder with the first 1,600 training and 502 test images: loading and testing on all takes seconds."""
    folder = tmp_path_factory.mktemp("mnist")
    write_small_mnist(folder, 1_600)
    return str(folder)


@pytest.fixture
def nothing_left():
    """The test leaves no process behind. Ranks that an earlier test kept may live on."""
    before = set(our_ranks())
    yield
    assert set(our_ranks()) <= before
