"""Judges an exercise of 05_ddp: learners turn one_process.py, a plain script, into one for many processes.

Their script runs on every rank with a small part of MNIST, inside the process group that the ranks already have.
"""

import contextlib
import functools
import gzip
import hashlib
import io
import linecache
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing import errors

from workshop_lib.exercises.judge import Exercise, Property, Verdict
from workshop_lib.exercises.network import weights_of
from workshop_lib.paths import BUILD, SCRIPTS
from workshop_lib.training.data import mnist
from workshop_lib.training.models import torch_cnn

from lessons.ddp import process_group

BLANK = re.compile(r"^.*(?<!\w)\.\.\.(?!\w).*$", re.MULTILINE)
HELPERS = ("mnist_data.py", "ddp.py")  # what the learner's script imports
NOTEBOOK = "05_ddp"
NAME = "my_script.py"
# Training and test images, epochs, and batch per rank of a check.
IMAGES = 650  # the last batch of each rank is a small one
TESTED = 401  # so 2 and 4 ranks can't share the test images evenly
EPOCHS = 2
BATCH = 64


def folder_for_scripts() -> Path:
    """A folder for the learner's script, with the files that it imports."""
    folder = BUILD / NOTEBOOK
    folder.mkdir(parents=True, exist_ok=True)
    for name in HELPERS:
        shutil.copy(SCRIPTS / name, folder)
    return folder


@dataclass
class Ran:
    """What the script did on one rank."""

    trained: list[bytes]  # a digest of each image, in the order in which the network saw them
    batches: set[int]  # the batch sizes that occurred
    tested: list[bytes]  # the same for one test
    weights: str  # a digest of the final weights
    printed: str
    saved: list[str] | None  # the parameter names in the checkpoint; None without a checkpoint
    accuracy: float = field(compare=False)  # accuracy of the final weights on all test images


def observe_script(comm, function: Callable[[], str]) -> Ran:
    """Run the text that `function` returns as a program on every rank."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "mnist"
        script = folder / NAME
        out = folder / "out.pt"
        _small_mnist(data)
        text = function()
        # Errors name the learner's file, and show the line that failed.
        linecache.cache[NAME] = (len(text), None, text.splitlines(keepends=True), NAME)
        main = ModuleType("__main__")
        main.__file__ = str(script)
        words = ["--data", data, "--images", IMAGES, "--epochs", EPOCHS, "--out", out]
        trained: list[torch.Tensor] = []
        tested: list[torch.Tensor] = []
        networks: list[nn.Sequential] = []
        hook = nn.modules.module.register_module_forward_pre_hook(functools.partial(_note, trained, tested, networks))
        output = io.StringIO()
        try:
            with _this_group([str(script), *map(str, words)], main), contextlib.redirect_stdout(output):
                exec(compile(text, NAME, "exec"), vars(main))
        finally:
            hook.remove()
        saved = list(torch.load(out, weights_only=True)["model"]) if out.exists() else None
    tests = _digests(tested)
    digest = hashlib.sha256(weights_of(networks[-1]).tobytes()).hexdigest()
    sizes = {len(batch) for batch in trained}
    one_test = tests[: len(tests) // EPOCHS]
    return Ran(_digests(trained), sizes, one_test, digest, output.getvalue(), saved, _accuracy(networks[-1]))


def _digests(batches: list[torch.Tensor]) -> list[bytes]:
    """A digest of each image."""
    return [hashlib.sha256(image.numpy().tobytes()).digest()[:8] for batch in batches for image in batch]


def _note(trained: list, tested: list, networks: list, module: nn.Module, inputs: tuple) -> None:
    """Record the network and the images that enter its first layer; called before the forward pass of every layer."""
    if isinstance(module, nn.Sequential):
        networks[:] = [module]
    if isinstance(module, nn.Conv2d) and module.in_channels == 1:
        (images,) = inputs
        if torch.is_grad_enabled():
            trained.append(images.contiguous())
        else:
            tested.append(images.contiguous())


@contextlib.contextmanager
def _this_group(argv: list[str], main: ModuleType) -> Iterator[None]:
    """Make a script, which runs as the module `main`, use the process group that the ranks keep, on the CPU.

    The script neither joins nor leaves that group. It finds its imports where all scripts do, and its errors stay with
    the check, instead of in torchrun's report.
    """
    threads = torch.get_num_threads()
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.dict(sys.modules, {"__main__": main}),
        mock.patch.object(dist, "init_process_group"),
        mock.patch.object(dist, "destroy_process_group"),
        mock.patch.object(torch.accelerator, "current_accelerator", return_value=None),
        mock.patch.object(sys, "path", [str(SCRIPTS), *sys.path]),
        mock.patch.object(errors, "record", lambda main: main),
        mock.patch.object(time, "perf_counter", time.monotonic),  # real time, also on ranks that emulate a machine
    ):
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _small_mnist(folder: Path) -> None:
    """Write the first images of MNIST into `folder`, in files of MNIST's format."""
    folder.mkdir()
    for split, count in (("train", IMAGES), ("test", TESTED)):
        loaded = mnist.load(split)
        for name, array in zip(mnist.FILES[split], (loaded.images[:count], loaded.labels[:count]), strict=True):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            (folder / f"{name}.gz").write_bytes(gzip.compress(header + array.tobytes(), compresslevel=1))


@torch.no_grad()
def _accuracy(network: nn.Module) -> float:
    test = mnist.load("test")
    answers = network(torch_cnn.normalize(torch.tensor(test.images[:TESTED]))).argmax(1).numpy()
    return float((answers == test.labels[:TESTED]).mean())


def script_properties(observations: list[Ran]) -> Iterator[Property]:
    size = len(observations)
    epoch = IMAGES // (BATCH * size) * BATCH  # images per rank and epoch
    batches = set().union(*(each.batches for each in observations))
    images = {len(each.trained) // EPOCHS for each in observations}
    hint = (
        f"a rank took {max(images)} images per epoch, and its share is {epoch}: in part 1, make a "
        "`DistributedSampler(train, seed=1)`, and give it to the loader instead of `shuffle=True`."
    )
    if batches != {BATCH}:
        hint = (
            f"there were batches of {', '.join(map(str, sorted(batches)))}. The loader's batch is one rank's, so it "
            "stays `BATCH`, and `drop_last=True` leaves out a smaller one at the end of an epoch."
        )
    right = batches == {BATCH} and images == {epoch}
    yield Property(f"in every step of every epoch, each rank takes {BATCH} images", right, hint)
    everywhere = [image for each in observations for image in each.trained[:epoch]]
    hint = (
        "some images come twice in an epoch, and others never. A `DistributedSampler` knows its rank and the number of "
        "ranks by itself, and its seed must be the same on all of them."
    )
    yield Property("no image comes twice in an epoch, on any rank", len(set(everywhere)) == len(everywhere), hint)
    reshuffled = all(each.trained[:epoch] != each.trained[epoch:] for each in observations)
    hint = "the second epoch has the order of the first: call `sampler.set_epoch(epoch)` before each epoch."
    yield Property("each epoch has an order of its own", reshuffled, hint)
    alike = len({each.weights for each in observations}) == 1
    hint = "each rank trained a network of its own: wrap it, `ddp = DistributedDataParallel(model)`, and call `ddp`."
    yield Property("all ranks end with the same weights, to the last bit", alike, hint)
    hint = (
        "every test image should be tested once: in part 1, begin at `rank`, and take every `size`-th of them. (A "
        "`DistributedSampler` may repeat some.)"
    )
    tested = [image for each in observations for image in each.tested]
    once = len(tested) == len(set(tested)) == TESTED
    yield Property("each test image is tested once", once, hint)
    first, *others = observations
    reported = re.findall(r"([\d.]+)%", first.printed)
    right = bool(reported) and abs(float(reported[-1]) / 100 - first.accuracy) < 0.5 / TESTED
    hint = (
        f"on all test images it's {first.accuracy:.2%}. Add up all ranks' counts, with `dist.all_reduce(right)`, and "
        "divide by `len(test)`."
    )
    yield Property("rank 0 prints the accuracy on all test images", right, hint)
    alone = first.saved is not None and not any(each.printed or each.saved is not None for each in others)
    yield Property("rank 0 saves, and no other rank prints or saves", alone, "print and save inside `if rank == 0:`.")
    plain = not any(name.startswith("module.") for name in first.saved or [])
    hint = "the names begin with `module.`, so only a wrapped network could load them: save the network inside."
    yield Property("one process can load it", plain, hint)


ON_EVERY_RANK = "every rank must call `dist.all_reduce`, so it can't be inside `if rank == 0:`."
converted = Exercise(
    NAME,
    observe_script,
    script_properties,
    group_of=1,
    grouped=process_group.alone,
    group_hint=process_group.GROUP_HINT,
    ready=process_group.join,
    timeout_s=30.0,
    stuck=f"a rank waits for others: {ON_EVERY_RANK}",
    raised={"SIGABRT": f"the ranks sent each other different things: {ON_EVERY_RANK}"},  # gloo aborts them
)


def script(path: str | Path) -> Verdict:
    """Judge the learner's script."""
    text = Path(path).read_text(encoding="utf-8")
    if _open(text):
        return Verdict(NAME, to_do="Fill in the lines that are missing")
    verdict: Verdict = converted(functools.partial(str, text))
    return verdict


def own_or_finished(path: str | Path) -> Path:
    """The path of the learner's script, and of the finished script while parts of theirs are open."""
    mine = Path(path)
    return SCRIPTS / "ddp.py" if _open(mine.read_text(encoding="utf-8")) else mine


def _open(text: str) -> bool:
    return "your code here" in text and BLANK.search(text) is not None
