"""What 06b says about DeepSpeed's defaults is true of the version that is installed."""

import importlib
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch
from needs import needs

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this file


@needs("deepspeed")
def test_what_the_notebook_says_about_deepspeed_is_true_of_the_installed_version():
    importlib.import_module("workshop_lib.training.backends.deepspeed")  # before DeepSpeed, whose variables it sets
    import deepspeed
    from deepspeed.runtime import constants
    from deepspeed.runtime.tensor_parallel.config import TPConfig, TPTrainingConfig
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

    assert constants.GRADIENT_CLIPPING_DEFAULT == 1.0, "the default since 0.19.3"
    assert {torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad} <= set(ZERO_SUPPORTED_OPTIMIZERS)
    assert torch.optim.SGD not in ZERO_SUPPORTED_OPTIMIZERS
    assert "autotp_size" in TPTrainingConfig.model_fields and TPConfig
    assert callable(deepspeed.DeepSpeedEngine.scale)


def trained_by(name: str, folder: Path) -> tuple[float, list[float], list[bool]]:
    """On a rank: an engine's default clipping, some weights after two steps in stage 1, and whether checkpoints load.

    name: whose `backward` is called, "engine" or "loss". folder: the engine saves to a folder in it.
    """
    from lessons.deepspeed import engines

    engines.join()
    import deepspeed

    model = engines.by_hand.perceptron(width=16)
    config = engines.for_a_small_network({"train_micro_batch_size_per_gpu": 64, "zero_optimization": {"stage": 1}})
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for images, labels in engines.micro_batches(engine):
        loss = torch.nn.functional.cross_entropy(engine(images), labels)
        if name == "engine":
            engine.backward(loss)
        else:
            loss.backward()
        engine.step()
    weights = model[1].bias.tolist()
    engine.save_checkpoint(folder / name)
    loaded = [engine.load_checkpoint(place) != (None, None) for place in (folder, folder / name)]
    return engine.gradient_clipping(), weights, loaded


@needs("deepspeed")
@pytest.mark.timeout(120)
def test_a_plain_backward_trains_as_the_engines_does_and_clipping_is_the_default(team, tmp_path):
    by_engine, by_loss = (team.run(trained_by, name, tmp_path, timeout=60) for name in ("engine", "loss"))
    assert by_engine == by_loss
    assert by_engine[0][0] == 1.0
    assert by_engine[0][2] == [False, True], "the folder above a checkpoint has none, and no error says so"
