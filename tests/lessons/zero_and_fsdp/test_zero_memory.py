"""The memory of ZeRO's stages against the papers' own numbers, and its figure."""

import pytest
from drawn import check_layout, words

from lessons.zero_and_fsdp import figures
from lessons.zero_and_fsdp.calculator import MODELS
from lessons.zero_and_fsdp.figures import draw_memory as draw
from lessons.zero_and_fsdp.figures import memory_answer as answer
from lessons.zero_and_fsdp.zero_memory import GIB, RECIPES, activation_bytes, plan, state_bytes

BF16 = RECIPES["bf16, Adam"]
PSI = 10**9
_, GPT_2 = MODELS["GPT-2 1.5B"]


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
def test_shares_make_up_the_whole(recipe):
    each = RECIPES[recipe]
    assert 64 * total(64 * 1001, 64, 3, **each) == total(64 * 1001, 1, 0, **each)
    assert state_bytes(10, 4, 3, **each)["parameters"] == 3 * each["parameter_bytes"], "rounded up"


def test_activations_are_those_of_korthikanti_and_checkpointing_keeps_the_inputs_and_one_layer():
    sbh, of_logits = 1024 * GPT_2.hidden, 4 * 1024 * GPT_2.vocabulary
    assert activation_bytes(GPT_2, 1024, 1) == 48 * 34 * sbh + 5 * sbh + of_logits
    assert activation_bytes(GPT_2, 1024, 1, checkpointing=True) == 48 * 2 * sbh + 34 * sbh + 5 * sbh + of_logits
    masks = 48 * 2 * sbh
    in_fp32 = activation_bytes(GPT_2, 512, 2, value_bytes=4)
    assert in_fp32 == 2 * (48 * 34 * sbh - masks) + masks + 9 * sbh + of_logits, "masks stay bytes"


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


@pytest.mark.parametrize(("activations", "reserve"), [(10 * GIB, 0.1), (71 * GIB, 0)])
def test_the_ranks_needed_are_enough_and_one_less_is_not(activations, reserve):
    options = {"activations": activations, "reserve": reserve}
    found = plan(70e9, 8, 80 * GIB, BF16, **options)
    assert found.first_fit is None and found.ranks_needed > 8
    assert plan(70e9, found.ranks_needed, 80 * GIB, BF16, **options).first_fit == 3
    assert plan(70e9, found.ranks_needed - 1, 80 * GIB, BF16, **options).first_fit is None
    assert answer(found) == f"It does not fit on 8 GPUs; with stage 3 it would from {found.ranks_needed} GPUs on."


def test_activations_that_leave_no_room_never_fit():
    found = plan(7e9, 8, 80 * GIB, BF16, activations=73 * GIB)
    assert (found.first_fit, found.ranks_needed) == (None, None)
    assert "fits on no number of GPUs" in answer(found)
    assert "73 GiB alone, and 72 of 80 GiB are usable" in answer(found)


def test_offloading_frees_the_gpu_and_fills_the_host():
    without, with_it = (plan(PSI, 4, 4 * GIB, BF16, offload=offload) for offload in (False, True))
    assert (without.first_fit, with_it.first_fit) == (None, 2)
    assert [sum(at.gpu_bytes.values()) // PSI for at in with_it.stages] == [16, 4, 2, 0]
    assert [at.host_bytes for at in with_it.stages] == [0, 3 * PSI, 3.5 * PSI, 4 * PSI]
    assert answer(with_it).endswith("a GPU, and 3.26 GiB of host memory for each.")


@pytest.mark.parametrize(
    "found",
    [plan(7.5e9, 64, 32 * GIB, BF16, activations=2 * GIB), plan(70e9, 2, 16 * GIB, BF16, activations=171 * GIB)],
    ids=["fits from stage 2 on", "too much"],
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
