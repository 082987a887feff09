"""The memory of ZeRO's stages against the papers' own numbers, and its figure."""

import math

import pytest
import torch
from drawn import check_layout, words

from workshop_lib.lessons.zero_and_fsdp import figures
from workshop_lib.lessons.zero_and_fsdp.calculator import GPT_2, MODELS
from workshop_lib.lessons.zero_and_fsdp.figures import draw_memory as draw
from workshop_lib.lessons.zero_and_fsdp.figures import memory_answer as answer
from workshop_lib.lessons.zero_and_fsdp.zero_memory import (
    GIB,
    RECIPES,
    SHARDED,
    activation_bytes,
    offloaded,
    plan,
    state_bytes,
)
from workshop_lib.models import torch_cnn
from workshop_lib.training.memory import live_bytes

BF16 = RECIPES["bf16, Adam"]
PSI = 10**9


def total(parameters, ranks, stage, **recipe):
    return sum(state_bytes(parameters, ranks, stage, **recipe).values())


def test_figure_1_of_the_zero_paper():
    gigabytes = [total(7.5e9, 64, stage) / 1e9 for stage in range(4)]
    assert gigabytes == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)
    assert total(10**12, 1024, 3) / 1e9 == pytest.approx(15.6, abs=0.05), "table 1, 1T parameters"


def test_a_stage_divides_its_states_and_no_others():
    whole = {"parameters": 2 * PSI, "gradients": 2 * PSI, "optimizer": 12 * PSI}
    for stage, divided in enumerate([set(), {"optimizer"}, {"optimizer", "gradients"}, set(whole)]):
        found = state_bytes(PSI, 8, stage)
        assert found == {kind: size // 8 if kind in divided else size for kind, size in whole.items()}


@pytest.mark.parametrize("recipe", RECIPES)
def test_shares_make_up_the_whole_and_shrink_with_each_stage(recipe):
    each = RECIPES[recipe]
    assert 64 * total(64 * 1001, 64, 3, **each) == total(64 * 1001, 1, 0, **each)
    for ranks in (1, 2, 7, 64):
        sizes = [total(1_000_003, ranks, stage, **each) for stage in range(4)]
        assert sizes == sorted(sizes, reverse=True)
        assert (len(set(sizes)) == 1) == (ranks == 1)
    assert state_bytes(10, 4, 3, **each)["parameters"] == 3 * each["parameter_bytes"], "rounded up"


@pytest.mark.parametrize(("recipe", "optimizer"), [("fp32, Adam", "Adam"), ("fp32, SGD with momentum", "SGD")])
def test_live_tensors_have_the_size_of_the_formula(recipe, optimizer):
    model = torch_cnn.build(0)
    options = {"momentum": 0.9} if optimizer == "SGD" else {}
    stepping = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1, **options)
    model(torch.zeros(1, 1, 28, 28)).sum().backward()
    stepping.step()
    live = live_bytes(model, stepping)
    counts = sum(state.nbytes for of_one in stepping.state.values() for state in of_one.values() if not state.ndim)
    formula = state_bytes(MODELS["the workshop's CNN"][0], 1, 0, **RECIPES[recipe])
    assert live | {"optimizer": live["optimizer"] - counts} == formula, "without Adam's step counts"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: state_bytes(1000, 2, 4), "stage is 4: ZeRO has the stages 0"),
        (lambda: state_bytes(1000, 0, 1), "ranks is 0: give a whole number"),
        (lambda: state_bytes(math.nan, 2, 1), "parameters is nan"),
        (lambda: activation_bytes(GPT_2, 0, 1), "sequence is 0"),
        (lambda: activation_bytes(GPT_2, 1024, -1), "batch is -1"),
    ],
)
def test_what_makes_no_sense_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_activations_are_those_of_korthikanti_and_checkpointing_keeps_the_inputs_and_one_layer():
    sbh, of_logits = 1024 * GPT_2.hidden, 4 * 1024 * GPT_2.vocabulary
    assert activation_bytes(GPT_2, 1024, 1) == 48 * 34 * sbh + 5 * sbh + of_logits
    assert activation_bytes(GPT_2, 1024, 1, checkpointing=True) == 48 * 2 * sbh + 34 * sbh + 5 * sbh + of_logits
    masks = 48 * 2 * sbh
    in_fp32 = activation_bytes(GPT_2, 512, 2, value_bytes=4)
    assert in_fp32 == 2 * (48 * 34 * sbh - masks) + masks + 9 * sbh + of_logits, "masks stay bytes"


def test_a_stage_offloads_what_it_divides():
    assert offloaded(state_bytes(PSI, 1, 2), 2) == (
        {"parameters": 2 * PSI, "gradients": 0, "optimizer": 0},
        14 * PSI,
    ), "ZeRO-Offload: 2 M bytes on the GPU, 14 M on the host"
    assert [offloaded(state_bytes(PSI, 4, stage), stage)[1] // PSI for stage in SHARDED] == [0, 3, 3.5 // 1, 4]
    for stage in SHARDED:
        states = state_bytes(PSI, 4, stage)
        left, host = offloaded(states, stage)
        assert sum(left.values()) + host == sum(states.values())


def test_the_first_stage_that_fits():
    found = plan(7.5e9, 64, 32 * GIB, BF16, reserve=0)
    assert [at.fits for at in found.stages] == [False, True, True, True]
    assert (found.first_fit, found.ranks_needed) == (1, None)
    assert plan(7.5e9, 64, 32 * GIB, BF16, reserve=0.1).first_fit == 2, "28.8 GiB are usable, 29.2 needed"
    assert answer(found) == "It fits from stage 1 on: 29.2 of 32 GiB a GPU."
    assert "at every stage, even without ZeRO: 112 of 141 GiB" in answer(plan(7.5e9, 8, 141 * GIB, BF16))
    assert "fits at stage 3: " in answer(plan(7.5e9, 64, 13 * GIB, BF16))


@pytest.mark.parametrize(("checkpointing", "fewest"), [(False, 4), (True, 3)])
def test_the_notebooks_question_how_many_gpus_of_40_gb_hold_llama(checkpointing, fewest):
    parameters, shape = MODELS["Llama 7B"]
    activations = activation_bytes(shape, 2048, 1, checkpointing=checkpointing)
    assert plan(parameters, 1, 40 * GIB, BF16, activations=activations).ranks_needed == fewest


@pytest.mark.parametrize(("activations", "reserve"), [(0, 0.1), (10 * GIB, 0.1), (71 * GIB, 0), (0, 0)])
def test_the_ranks_needed_are_enough_and_one_less_is_not(activations, reserve):
    options = {"activations": activations, "reserve": reserve}
    found = plan(70e9, 8, 80 * GIB, BF16, **options)
    assert found.first_fit is None and found.ranks_needed > 8
    assert plan(70e9, found.ranks_needed, 80 * GIB, BF16, **options).first_fit == 3
    assert plan(70e9, found.ranks_needed - 1, 80 * GIB, BF16, **options).first_fit is None
    assert answer(found) == f"It does not fit on 8 GPUs; with stage 3 it would from {found.ranks_needed} GPUs on."


@pytest.mark.parametrize("offload", [False, True])
def test_activations_that_leave_no_room_never_fit(offload):
    found = plan(7e9, 8, 80 * GIB, BF16, activations=73 * GIB, offload=offload)
    assert (found.first_fit, found.ranks_needed) == (None, None)
    assert "fits on no number of GPUs" in answer(found)
    assert "73 GiB alone, and 72 of 80 GiB are usable" in answer(found)


def test_offloading_frees_the_gpu_and_fills_the_host():
    without, with_it = (plan(PSI, 4, 4 * GIB, BF16, offload=offload) for offload in (False, True))
    assert (without.first_fit, with_it.first_fit) == (None, 2)
    assert [at.host_bytes for at in without.stages] == [0, 0, 0, 0]
    assert [at.host_bytes for at in with_it.stages] == [0, 3 * PSI, 3.5 * PSI, 4 * PSI]
    assert answer(with_it).endswith("a GPU, and 3.26 GiB of host memory for each.")


@pytest.mark.parametrize(
    "found",
    [
        plan(7.5e9, 64, 32 * GIB, BF16, activations=2 * GIB),
        plan(70e9, 2, 16 * GIB, BF16, activations=171 * GIB),
        plan(20_434, 2, 141 * GIB, BF16),
    ],
    ids=["fits from stage 2 on", "too much", "next to nothing"],
)
def test_the_figure_has_a_bar_per_stage_and_room_for_its_words(found):
    figure = draw(found, "; ".join(["conditions that take two lines"] * 6))
    axes = figure.axes[0]
    assert answer(found) in words(figure)
    widths = [bar.get_width() for bar in axes.patches]
    totals = [sum(stage.gpu_bytes.values()) for stage in found.stages]
    longest = figures.LONGEST * max(found.gpu_bytes, min(totals))  # what is longer is cut
    for at, total in enumerate(totals):
        assert sum(widths[4 * at : 4 * at + 4]) == pytest.approx(min(total, longest) / GIB, rel=1e-3)
    check_layout(figure)
