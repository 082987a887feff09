"""The calculator of 06: each control changes the answer, and nonsense gets a sentence."""

import base64

import pytest
from controls import changed, quick  # noqa: F401

from lessons.zero_and_fsdp import zero_memory
from lessons.zero_and_fsdp.calculator import MODELS, calculator
from lessons.zero_and_fsdp.figures import memory_answer
from lessons.zero_and_fsdp.zero_memory import GIB, RECIPES, activation_bytes


@pytest.mark.usefixtures("quick")
def test_the_memory_answers_each_change():
    shown = calculator()
    assert shown.parameters.value == "6.74B"
    assert shown.sentence == "It fits from stage 2 on: 51.3 of 80 GiB a GPU."
    more = {"model": "Llama 70B", "ranks": 64, "batch": 8, "sequence": 4096, "checkpointing": True, "offload": True}
    sentences = changed(shown, recipe="bf16, Adam", **more, gpu="H200, 141 GB")
    assert sentences[1] == "It does not fit on 8 GPUs; with stage 3 it would from 36 GPUs on."
    assert "on no number of GPUs" in sentences[4]
    parameters, shape = MODELS["Llama 70B"]
    activations = activation_bytes(shape, 4096, 8, value_bytes=2, checkpointing=True)
    options = {"activations": activations, "offload": True}
    assert sentences[-1] == memory_answer(zero_memory.plan(parameters, 64, 141 * GIB, RECIPES["bf16, Adam"], **options))
    assert not shown.sequence.disabled and shown.parameters.disabled
    assert shown.parameters.value == "69B", "that of the model"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("control", "value", "message"),
    [
        ("ranks", 0, "ranks is 0: give a whole number"),
        ("batch", -1, "batch is -1: give a whole number"),
        pytest.param("ranks", 10**400, "ranks is 1000", id="huge ranks"),
        ("parameters", "many <b>", "parameters is &#x27;many &lt;b&gt;&#x27;: give a number such as"),
        ("parameters", "1e400", "parameters is"),
        ("parameters", "-7B", "parameters is -7000000000"),
    ],
)
def test_nonsense_is_answered_with_a_sentence_and_forgotten(control, value, message):
    shown = calculator()
    if control == "parameters":
        shown.model.value = "other"
    box = getattr(shown, control)
    before, good = (shown.sentence, shown.image.value), box.value
    box.value = value
    assert message in shown.shown_sentence.value and len(shown.sentence) < 150
    assert shown.image.layout.display == "none"
    assert set(shown._repr_mimebundle_()) == {"text/plain"}
    box.value = good
    assert (shown.sentence, shown.image.value) == before and before[1]
    assert shown.image.layout.display is None


@pytest.mark.usefixtures("quick")
def test_a_free_number_of_parameters():
    shown = calculator()
    shown.model.value = "other"
    assert not shown.parameters.disabled and shown.sequence.disabled
    for text, count in [("125m", 125e6), ("1,000 k", 1e6), ("2e9", 2e9)]:
        shown.parameters.value = text
        assert shown.sentence == memory_answer(zero_memory.plan(count, 8, 80 * GIB, RECIPES["fp32, Adam"])), text


def test_without_widgets_the_figure_is_an_image(monkeypatch):
    shown = calculator()
    bundle = shown._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "image/png"}
    assert bundle["text/plain"] == shown.sentence
    assert base64.b64decode(bundle["image/png"]) == shown.image.value
    assert bytes(shown.image.value).startswith(b"\x89PNG")
    monkeypatch.setattr("workshop_lib.notebook.widgets.has_widgets", lambda: True)
    assert "application/vnd.jupyter.widget-view+json" in shown._repr_mimebundle_()
