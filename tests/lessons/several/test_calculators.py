"""The calculators of memory and forecasts: each control changes the answer, and nonsense gets a sentence."""

import base64

import pytest

from workshop_lib.lessons.forecasting.calculator import forecaster
from workshop_lib.lessons.forecasting.forecast import Settings, forecast
from workshop_lib.lessons.forecasting.report import answer
from workshop_lib.lessons.zero_and_fsdp import zero_memory
from workshop_lib.lessons.zero_and_fsdp.calculator import MODELS, calculator
from workshop_lib.lessons.zero_and_fsdp.figures import memory_answer
from workshop_lib.lessons.zero_and_fsdp.zero_memory import GIB, RECIPES, activation_bytes
from workshop_lib.machine import catalogue
from workshop_lib.machine.catalogue import ComputeTime
from workshop_lib.notebook.figures import RecordFigure


def picture(figure) -> bytes:
    """In place of a PNG, which takes long to draw: all that the figure says and how long its bars and lines are."""
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    drawn = [[bar.get_width() for bar in axes.patches] for axes in figure.axes]
    lines = [line.get_xydata().tolist() for axes in figure.axes for line in axes.lines]
    return repr(([text.get_text() for text in figure.texts], said, drawn, lines)).encode()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(RecordFigure, "png", picture)


def change(shown, **controls):
    """Set one control after another, of which each must change what is drawn; returns the sentences."""
    sentences = []
    for control, value in controls.items():
        image = shown.image.value
        getattr(shown, control).value = value
        assert shown.image.value not in (b"", image), control
        assert shown.shown_sentence.value == "", "the figure says it"
        sentences.append(shown.sentence)
    return sentences


def test_the_memory_answers_each_change():
    shown = calculator()
    assert shown.parameters.value == "6.74B"
    assert shown.sentence == "It fits from stage 1 on: 43.3 of 80 GiB a GPU."
    more = {"model": "Llama 70B", "ranks": 64, "batch": 8, "sequence": 4096, "checkpointing": True, "offload": True}
    sentences = change(shown, **more, gpu="H200, 141 GB", recipe="fp32, Adam")
    assert sentences[0] == "It does not fit on 8 GPUs; with stage 3 it would from 36 GPUs on."
    assert "on no number of GPUs" in sentences[3]
    parameters, shape = MODELS["Llama 70B"]
    activations = activation_bytes(shape, 4096, 8, value_bytes=4, checkpointing=True)
    options = {"activations": activations, "offload": True}
    assert sentences[-1] == memory_answer(zero_memory.plan(parameters, 64, 141 * GIB, RECIPES["fp32, Adam"], **options))
    assert not shown.sequence.disabled and shown.parameters.disabled
    assert shown.parameters.value == "69B", "that of the model"


def test_the_forecast_answers_each_change():
    cnn, resnet = catalogue.model("workshop-cnn"), catalogue.model("resnet-50")
    shown = forecaster(catalogue.laptop(20e-6, 1e-9, {cnn.name: ComputeTime(1e-3, 1e-4, "measured")}))
    assert shown.overlap.label and not shown.speed.value
    assert shown.machine.value == "laptop" and shown.model.value == "workshop-cnn", "what was measured"
    assert shown.speed.placeholder == "7,619", "32 samples of 0.1 ms each and 1 ms per step"
    assert ("DGX H100", "h100") in shown.machine.options and shown.machine.label == "this machine"
    change(shown, batch=128, backend="mpi")
    shown.machine.value = "thetagpu"
    assert "no speed of workshop-cnn on ThetaGPU" in shown.shown_sentence.value and not shown.image.value
    assert shown.speed.placeholder == "none published", "not that of the machine before"
    change(shown, speed="20,000", overlap="yes", compression=2, network=4, model="resnet-50")
    settings = Settings("mpi", 128, compression=2, network=4, overlap=True)
    machine = catalogue.machine("thetagpu").with_speed(resnet, 20_000)
    assert shown.sentence == answer(forecast(resnet, machine, settings))


@pytest.mark.parametrize(
    ("make", "control", "value", "message"),
    [
        (calculator, "ranks", 0, "ranks is 0: give a whole number"),
        pytest.param(calculator, "ranks", 10**400, "ranks is 1000", id="calculator-huge ranks"),
        (calculator, "parameters", "many <b>", "parameters is &#x27;many &lt;b&gt;&#x27;: give a number such as"),
        (calculator, "parameters", "1e400", "parameters is"),
        (calculator, "parameters", "nan", "parameters is"),
        (calculator, "parameters", "-7B", "parameters is -7000000000"),
        (forecaster, "speed", "fast", "samples/s each is &#x27;fast&#x27;: give a number such as"),
        (forecaster, "batch", 0, "batch_size is 0: give a whole number"),
    ],
)
def test_nonsense_is_answered_with_a_sentence_and_forgotten(make, control, value, message):
    shown = make()
    if control == "parameters":
        shown.model.value = "other"
    if make is forecaster:
        shown.machine.value = "thetagpu"
    box = getattr(shown, control)
    before, good = (shown.sentence, shown.image.value), box.value
    box.value = value
    assert message in shown.shown_sentence.value and len(shown.sentence) < 150
    assert shown.image.layout.display == "none"
    assert set(shown._repr_mimebundle_()) == {"text/plain"}
    box.value = good
    assert (shown.sentence, shown.image.value) == before and before[1]
    assert shown.image.layout.display is None


def test_a_free_number_of_parameters():
    shown = calculator()
    shown.model.value = "other"
    assert not shown.parameters.disabled and shown.sequence.disabled
    for text, count in [("125m", 125e6), ("20434", 20434), ("1,000 k", 1e6), ("2e9", 2e9), ("70B", 70e9)]:
        shown.parameters.value = text
        assert shown.sentence == memory_answer(zero_memory.plan(count, 8, 80 * GIB, RECIPES["bf16, Adam"])), text


def test_without_widgets_the_figure_is_an_image(monkeypatch):
    monkeypatch.undo()  # a real image, once
    shown = calculator()
    bundle = shown._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "image/png"}
    assert bundle["text/plain"] == shown.sentence
    assert base64.b64decode(bundle["image/png"]) == shown.image.value
    assert bytes(shown.image.value).startswith(b"\x89PNG")
    monkeypatch.setattr("workshop_lib.notebook.widgets.has_widgets", lambda: True)
    assert "application/vnd.jupyter.widget-view+json" in shown._repr_mimebundle_()
