"""A handwritten loop in the dashboard: the same weights as without it, every batch counted, and Stop ends it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from torch.nn.functional import cross_entropy

from lessons.synchronous_sgd import own_loop

STEPS, EPOCHS, BATCH = 10, 3, 4
ONE_RANK = SimpleNamespace(size=1, rank=0, allgather=lambda value: [value], allreduce=lambda value: value)


class Publisher:
    """In place of the one that sends to the notebook."""

    def __init__(self, stop_asked):
        self.info, self.points, self.rows = None, [], []

    def on_start(self, info):
        self.info = info

    def on_step(self, event):
        self.points.append({**event, "sums": event["sums"], "trace": len(event["trace"])})

    def on_epoch(self, row):
        self.rows.append(row)


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """Whether somebody has pressed Stop."""
    asked = []
    monkeypatch.setattr(own_loop, "Publisher", Publisher)
    monkeypatch.setattr(own_loop, "stop_asked", lambda: bool(asked))
    return asked


def batches():
    draw = torch.Generator().manual_seed(1)
    return [(torch.rand(BATCH, 5, generator=draw), torch.randint(3, (BATCH,), generator=draw)) for _ in range(STEPS)]


def loop(model, optimizer, batches, average):
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        average(model, None)
        optimizer.step()


def network():
    torch.manual_seed(1)
    model = torch.nn.Linear(5, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_watched_loop_ends_with_the_same_weights_and_every_batch_is_counted():
    alone, optimizer = network()
    for _ in range(EPOCHS):
        loop(alone, optimizer, batches(), lambda *_: None)
    model, optimizer = network()
    watched = own_loop.WatchedLoop(model, optimizer, ONE_RANK, EPOCHS, STEPS)
    for epoch in watched.epochs():
        loop(model, optimizer, watched.batches(batches()), watched.average(lambda *_: None))
        watched.tested(0.1 * epoch)
    assert torch.equal(model.weight, alone.weight)
    sent = watched.publisher
    assert (sent.info["epochs"], sent.info["steps_per_epoch"]) == (EPOCHS, STEPS)
    assert [point["step"] for point in sent.points] == [*range(1, STEPS + 1)] * EPOCHS
    assert [point["sums"][2] for point in sent.points[:STEPS]] == [BATCH * k for k in range(1, STEPS + 1)]
    assert [row["test_accuracy"] for row in sent.rows] == pytest.approx([0.1, 0.2, 0.3])
    assert sent.rows[2]["train_loss"] < sent.rows[0]["train_loss"]
    assert len(watched.tracer.last) == EPOCHS * STEPS and all(
        len(step.collectives) == 1 for step in watched.tracer.last
    )
    assert not model._forward_hooks, "nothing watches the network any more"


def test_stop_ends_the_epoch_and_the_run(asked):
    model, optimizer = network()
    watched = own_loop.WatchedLoop(model, optimizer, ONE_RANK, EPOCHS, STEPS)
    epochs = []
    for epoch in watched.epochs():
        epochs.append(epoch)
        asked.append(True)
        loop(model, optimizer, watched.batches(batches()), watched.average(lambda *_: None))
        watched.tested(0.5)
    assert epochs == [1] and watched.publisher.points[-1]["step"] == own_loop.STEPS_BETWEEN_STOP_CHECKS


def test_the_accuracy_counts_the_answers_of_all_ranks():
    images = np.zeros((4, 28, 28), dtype=np.uint8)
    always_0 = lambda images: torch.eye(1, 10).repeat(len(images), 1)  # noqa: E731
    test = SimpleNamespace(images=images, labels=np.array([0, 0, 0, 7]), total=8)
    two_ranks = SimpleNamespace(allreduce=lambda right: 2 * right)
    assert own_loop.accuracy(always_0, test, two_ranks) == 0.75


def test_the_picture_has_a_panel_for_each_gradient_with_its_column_of_the_3():
    gradient = np.tile(np.arange(10.0), (784, 1))
    with pyplot.rc_context({"text.usetex": True}):
        own_loop.show_threes(my_gradient=gradient, our_mean=2 * gradient)
    pyplot.gcf().draw_without_rendering()  # without LaTeX, whatever a personal matplotlibrc asks for
    mine, ours = pyplot.gcf().axes
    pyplot.close()
    assert [mine.get_title(), ours.get_title()] == ["my gradient", "our mean"]
    assert (mine.images[0].get_array() == 3).all() and (ours.images[0].get_array() == 6).all()
