"""What 06c says about activations and 16 bits."""

import sys

import cloudpickle
import pytest
import torch

from workshop_lib.paths import SOURCES

from lessons import fitting_more
from lessons.fitting_more import judge as check
from lessons.fitting_more import recompute
from lessons.fitting_more.saved import SavedForBackward, kept_for_backward
from lessons.zero_and_fsdp import by_hand

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file


def test_autocast_keeps_16_bit_copies_of_the_weights_for_the_backward_pass():
    model = by_hand.perceptron()
    images, labels = by_hand.batch()
    kept = {}
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            few = images[:4].clone().requires_grad_()  # so that the first layer's weights are needed, too
            _, kept[enabled] = kept_for_backward(
                lambda few=few: torch.nn.functional.cross_entropy(model(few), labels[:4]), model
            )
    parameters = sum(p.numel() for p in model.parameters())
    assert kept[True] - kept[False] == pytest.approx(2 * parameters, rel=0.02)


def run_cell(names: dict, with_text: str) -> None:
    """Run the notebook's cell that contains this text."""
    source = (SOURCES / f"{check.NOTEBOOK}.py").read_text(encoding="utf-8")
    [code] = [cell for cell in source.split("# %%\n") if with_text in cell]
    exec(code, names)


def shard_from_the_meta_device() -> list[float]:
    """On a rank: the first values in its shard of a layer that the notebook builds on the meta device."""
    names = {"torch": torch, "lesson": fitting_more, "comm": by_hand.join()}
    run_cell(names, 'torch.device("meta")')
    return names["first"].to_local().flatten()[:100].tolist()


def test_ranks_do_not_draw_the_same_shards(team):
    first, second = team.run(shard_from_the_meta_device)
    assert len(first) == 100
    assert first != second


def bytes_kept_in_bf16() -> int:
    """On a rank: bytes of activations per sample that the notebook's network in bf16 keeps for the backward pass."""
    names: dict = {"lesson": fitting_more}
    run_cell(names, "policy = MixedPrecisionPolicy")
    images, _ = by_hand.batch()
    kept = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[0] == len(images):  # an activation, not a weight
            kept[tensor.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        names["in_bf16"](images)
    return sum(tensor.nbytes for tensor in kept.values()) // len(images)


def test_the_policy_halves_the_activations(team):
    assert team.run(bytes_kept_in_bf16) == [2 * (784 + 3 * 1024)] * 2, "the input, and the outputs of three layers"


def infinity_on_one_rank() -> float:
    """On a rank: how far a step of `GradScaler` moves the weights if a gradient on rank 0 alone is infinite."""
    comm = by_hand.join()
    model = by_hand.with_fsdp(by_hand.perceptron(width=16))
    images, labels = by_hand.batch(0, comm.rank, comm.size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.nn.functional.cross_entropy(model(images), labels)).backward()
    if comm.rank == 0:
        model[1].weight.grad.to_local()[0] = torch.inf
    before = model[1].weight.to_local().clone()
    scaler.step(optimizer)
    return (model[1].weight.to_local() - before).abs().max().item()


def test_under_fsdp_all_ranks_skip_a_step_if_one_has_an_infinite_gradient(team):
    assert team.run(infinity_on_one_rank) == [0, 0]


def test_ways_that_lead_to_different_gradients_are_refused():
    blocks = torch.nn.Sequential(torch.nn.Linear(3, 3))
    x = torch.ones(2, 3, requires_grad=True)
    ways = {"right": lambda block, x: block(x), "wrong": lambda block, x: 2 * block(x)}
    assert list(recompute.compare(blocks, x, {"right": ways["right"]}).index) == ["right"]
    with pytest.raises(AssertionError, match="not close"):
        recompute.compare(blocks, x, ways)


def test_what_autograd_keeps_is_counted_until_backward_drops_it():
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh())
    one = 4 * (2 * 8 + 2 * 4)  # the input of the layer and the output of tanh, without the parameters
    saved = SavedForBackward([model])
    with saved:
        outputs = [model(torch.ones(2, 8, requires_grad=True)) for _ in range(3)]
        assert saved.bytes == 3 * one
        outputs.pop().sum().backward()
        assert saved.bytes == 2 * one
        outputs.append(model(torch.ones(2, 8, requires_grad=True)))
    del outputs
    assert (saved.bytes, saved.most_bytes) == (0, 3 * one)
