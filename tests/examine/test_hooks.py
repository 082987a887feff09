"""What the hooks tell the recorder, and what it looks at, in this process."""

import faulthandler
import signal
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from workshop_lib.examine.observations import read_records
from workshop_lib.examine.on_ranks import digests, hooks
from workshop_lib.examine.on_ranks.first_step import join
from workshop_lib.examine.on_ranks.recorder import RankRecorder, TrackedModel
from workshop_lib.examine.records import StepRecord, UnseenRecord
from workshop_lib.paths import ROOT


@pytest.mark.parametrize(
    ("value", "decides"), [(torch.tensor(1), True), (torch.tensor(True), True), (torch.tensor(45), False)]
)
def test_a_yes_or_no_is_told_from_a_count(value, decides):
    assert hooks.is_decision([value]) is decides
    assert not hooks.is_decision([value.float()]), "a loss may be 1.0"


def test_labels_are_the_integers_of_each_sample():
    batch = {"images": torch.ones(2, 3), "label": torch.tensor([7, 8]), "masks": torch.ones(2, 3, dtype=torch.int64)}
    assert hooks.labels_of(batch) == [(7,), (8,)]
    assert hooks.labels_of([torch.ones(2, 3)]) == []


@pytest.fixture
def recorder(tmp_path):
    before = signal.getsignal(signal.SIGUSR1)
    yield RankRecorder(tmp_path, 0, 0, "")
    faulthandler.unregister(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_gradients_that_another_loss_leaves_alone_may_be_zeroed_later(recorder):
    """A critic's backward pass comes before the generator's zero_grad in each step."""
    weight = nn.Linear(1, 1, bias=False).weight
    model = recorder.active = TrackedModel(0, nn.ParameterList([weight]))
    for zeroes in (True, False):
        weight.grad = torch.ones(1, 1)
        recorder.used[model.number] = digests.of_each([weight.grad])
        recorder.now = StepRecord()
        for reaches in (False, True):
            weight.grad *= not (reaches and zeroes)
            recorder.backward_begins(())
            weight.grad += 2.0 * reaches
            recorder.backward(0.0, 0.0)
            assert recorder.now.kept == (not zeroes if reaches else None)


def test_a_watched_loss_can_be_scripted(recorder, monkeypatch):
    for name in hooks.LOSSES:
        monkeypatch.setattr(nn.functional, name, getattr(nn.functional, name))
    hooks.watch_losses(recorder)

    def loss(values: torch.Tensor, labels: torch.Tensor):
        return nn.functional.cross_entropy(values, labels)

    with warnings.catch_warnings(action="ignore"):
        scripted = torch.jit.script(loss)
    assert scripted(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)) == 0


def test_nothing_is_looked_at_inside_of_vmap(recorder):
    on = []
    torch.func.vmap(lambda x: x if on.append(recorder.is_on()) else 2 * x)(torch.ones(2))
    assert on == [False] and recorder.is_on()


# Everything that a hook looks at, with looks that fail.
BLIND = """\
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

from workshop_lib.examine.on_ranks import digests, hooks
from workshop_lib.examine.on_ranks.recorder import RankRecorder

folder = Path(sys.argv[1])
recorder = RankRecorder(folder, 0, 0, str(folder))
hooks.install(recorder)


def fail(*args, **kwargs):
    raise TypeError("blind")


for name in ("forward_begins", "optimizer_stepped", "gradients_are_ready", "random_states", "flush_indices", "backward",
             "last_collective", "collective", "keep_indices", "loss"):
    setattr(recorder, name, fail)
for name in ("of_each", "tensors_in", "samples"):
    setattr(digests, name, fail)

distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu")
data = TensorDataset(torch.ones(8, 3), torch.ones(8, dtype=torch.int64))
for inputs, labels in DataLoader(data, 4, num_workers=1):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    distributed.all_reduce(loss.detach())
    loss.item()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "model.pt")
model.load_state_dict(torch.load(folder / "model.pt")["model"])
open(str(folder).encode() + b"/bytes", "w").close()
distributed.destroy_process_group()
print("trained")
"""


@pytest.mark.full
def test_no_look_that_fails_raises_into_the_script_and_each_is_written_down_once(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", BLIND, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (0, "trained\n"), ended.stderr
    unseen = [each.what for each in read_records(tmp_path / "rank.0.jsonl") if isinstance(each, UnseenRecord)]
    assert len(unseen) == len(set(unseen))
    assert {"DDP", "a DataLoader", "forward passes", "optimizers", "collectives", "gradients"} <= set(unseen)


@pytest.mark.parametrize("batch", [["a", "b"], [(64, 0), (64, 1)], [None, None], [torch.tensor(3)], [3]])
def test_a_sampler_may_yield_anything_that_a_dataset_takes(recorder, batch):
    recorder.attempt("the order of samples", recorder.keep_indices, (0, 1), batch)
    assert not recorder.unseen
    assert recorder.indices == ({(0, 1): [3]} if batch[0] in (3, torch.tensor(3)) else {})


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"reduction": "sum"}, (6, "sum")),
        ({"ignore_index": 0}, (4, "mean")),
        ({"reduction": "none"}, None),
        ({"weight": torch.ones(3)}, None),
    ],
)
def test_the_targets_of_a_loss_are_those_that_count(given, found):
    target = torch.tensor([0, 0, 1, 1, 2, 2])
    assert hooks.targets_of_loss("cross_entropy", torch.ones(6, 3), target, **given) == found
    assert hooks.targets_of_loss("cross_entropy", torch.ones(6, 3), target=torch.ones(6, 3)) == (6, "mean")
    assert hooks.targets_of_loss("mse_loss", torch.ones(6, 3), torch.ones(6, 3)) == (18, "mean")


def test_the_ranks_batches_become_one():
    ones, names = torch.ones(2, 3), ["a", "b"]
    joined = join([{"x": (ones, ones[:, 0]), "names": names, "size": 64}] * 2)
    assert [each.shape for each in joined["x"]] == [(4, 3), (4,)]
    assert joined["names"] == names * 2 and joined["size"] == 64
    for parts in ([ones, ones[:, :2]], [1, 2], [None, 1]):
        with pytest.raises(ValueError, match="the ranks' batches"):
            join(parts)
