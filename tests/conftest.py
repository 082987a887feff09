"""For all tests: settings stay in the checkout, no process of ours outlives the run, which run, and beside whom.

`make test` runs the tests in two lanes (pytest-xdist), because a test with ranks waits for a third of its time.
"""

import contextlib
import fcntl
import functools
import os
import subprocess
import sys
from pathlib import Path

import needs
import pytest
import tiers
from hosts import CannotCreate, Hosts
from our_ranks import left_after, our_ranks
from training.ladder import write_small_mnist
from training.training_runs import train_all
from xdist.scheduler import LoadScopeScheduling

from workshop_lib import ranks
from workshop_lib.paths import BUILD, ROOT
from workshop_lib.ranks.launch import processes

os.environ.setdefault("MPLBACKEND", "Agg")
for variable, folder in (("IPYTHONDIR", "ipython"), ("MPLCONFIGDIR", "matplotlib")):
    os.environ.setdefault(variable, str(BUILD / folder))
quick_start = str(Path(__file__).with_name("quick_start"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [quick_start, str(ROOT), os.environ.get("PYTHONPATH")]))


class Lanes(LoadScopeScheduling):
    """What stays together goes to the lane that is free next."""

    def _split_scope(self, nodeid: str) -> str:
        """Tests of one name stay in one lane, one after another: those of a file, as a rule."""
        path = nodeid.partition("::")[0]
        if path.endswith("notebooks/test_run.py"):
            return nodeid  # each notebook is on its own
        if path.endswith("exercises/test_every_exercise.py"):
            return nodeid.partition("[")[2].partition("-")[0]  # the notebook, whose exercises share their ranks
        if "/slurm/" in path:
            return "slurm"  # one Slurm
        return "training_runs" if uses_training_runs(path) else path


@functools.cache
def uses_training_runs(path: str) -> bool:
    """Whether a file looks at the training runs of training/training_runs.py, which start once for all of them."""
    return "def training_runs(" in (ROOT / path).read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return Lanes(config, log)


def pytest_addoption(parser):
    parser.addoption("--tier", choices=tiers.TIERS, help="run the tests of this tier alone (see tests/tiers.py)")
    parser.addoption("--layer", choices=["unit"], help="leave out the tests that start another process")
    parser.addoption("--lesson", help="run the tests of this lesson alone, given as the number of its notebook: 06")


def pytest_configure(config):
    config.pluginmanager.register(needs)
    if config.getoption("layer") == "unit":
        sys.addaudithook(leave_out_tests_with_processes)
    lesson = config.getoption("lesson")
    if lesson and lesson not in tiers.LESSONS:
        raise pytest.UsageError(f"there is no lesson {lesson}: choose one of {', '.join(tiers.LESSONS)}")


STARTS_A_PROCESS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")


def leave_out_tests_with_processes(event: str, _) -> None:
    """A test is left out at the moment when it wants to start a process, so no list says which tests do."""
    if event in STARTS_A_PROCESS and "PYTEST_CURRENT_TEST" in os.environ:
        pytest.skip("starts another process")


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
    with contextlib.ExitStack() as turn:
        with locked("tests.turn", fcntl.LOCK_EX):  # nobody overtakes the one that waits to be alone
            turn.enter_context(locked("tests.lock", how))
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left_behind():
    yield
    ranks.stop()  # those that tests of exercises handed on to each other
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


@pytest.fixture
def dead_mark():
    """The mark of a process of this host that has ended."""
    owner = subprocess.Popen(["true"])
    mark = processes.mark("abc").replace(f"/{os.getpid()}/", f"/{owner.pid}/")
    owner.wait(10)
    return mark


@pytest.fixture(scope="module")
def no_ranks_afterwards():
    """The module's tests may hand their ranks on to the next; after the last one, none are left."""
    yield
    ranks.stop()
    assert not our_ranks(), "processes were left behind"


@pytest.fixture(scope="module")
def hosts(request):
    """Hosts with the module's NAMES; skips where there can be none."""
    try:
        made = Hosts(*request.module.NAMES)
    except CannotCreate as error:
        needs.missing("cluster", str(error))
    yield made
    made.close()


@pytest.fixture(scope="module")
def only_small_mnist(small_mnist):
    """The commands that the module's tests run find nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKSHOP_MNIST", small_mnist)
        yield


@pytest.fixture(scope="session")
def trained(request, tmp_path_factory):
    """What came of all training runs that the chosen tests ask for (see training_runs.py)."""
    items = request.session.items
    modules = dict.fromkeys(item.module for item in items if hasattr(item.module, "training_runs"))
    chosen = {tiers.tier_of(item) for item in items if item.module in modules}
    return train_all(modules, tmp_path_factory.mktemp("trained"), chosen)


@pytest.fixture(scope="module")
def team(request):
    """Healthy ranks of the same number are kept from file to file."""
    return ranks.start(getattr(request.module, "RANKS", 2))


@pytest.fixture
def healthy(team):
    """A wrong answer that left the ranks stuck does not reach the next test."""
    if not team.healthy:
        team.restart()
