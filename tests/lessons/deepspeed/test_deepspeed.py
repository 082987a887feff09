"""The exercises of 06b: right answers pass, and wrong ones get the hint that names the mistake."""

from functools import partial

import pytest
from judge.answers import variant, written
from judge.verdicts import Verdicts

from workshop_lib.lessons.deepspeed import judge as check

pytestmark = pytest.mark.usefixtures("healthy")

NOTEBOOK = "06b_deepspeed"
MICRO = '"train_micro_batch_size_per_gpu": micro_batch,'
STEPS = '"gradient_accumulation_steps": mine // micro_batch,'
STAGE = '"zero_optimization": {"stage": stage},'
ALLOWED, UNCLIPPED = '"zero_allow_untested_optimizer": True,', '"gradient_clipping": 0.0,'
LARGEST = "micro_batch = max(m for m in range(1, most + 1) if mine % m == 0)"


def formula(*replacements):
    return partial(variant, NOTEBOOK, "bytes_per_rank", *replacements)


def configured(*replacements):
    return partial(variant, NOTEBOOK, "configuration", *replacements)


class TestDeepspeed(Verdicts):
    check, notebook = check, NOTEBOOK
    names = ("configuration", "bytes_per_rank")
    right = {
        "configuration, global batch and micro-batch": configured((STEPS, '"train_batch_size": global_batch,')),
        "configuration, global batch and steps": configured((MICRO, '"train_batch_size": global_batch,')),
        "configuration, all three": configured((STEPS, f'{STEPS} "train_batch_size": global_batch,')),
        "bytes_per_rank, rounded up": lambda: written(
            "",
            "bytes_per_rank(parameters, ranks, stage)",
            "share = -(-parameters // ranks)",
            "state = {'parameters': 4 * parameters, 'gradients': 4 * parameters, 'optimizer': 8 * parameters}",
            "if stage > 0: state['optimizer'] = 8 * share",
            "if stage > 1: state['gradients'] = 4 * share",
            "if stage > 2: state['parameters'] = 4 * share",
            "return state",
        ),
    }
    wrong = {
        "configuration: JSON": (
            lambda: written("import json", "configuration(*wanted)", "return json.dumps({})"),
            check.DICTIONARY_HINT,
        ),
        "configuration: the global batch on each rank": (
            configured(("mine = global_batch // ranks", "mine = global_batch")),
            check.SAMPLES_HINT,
        ),
        "configuration: a fraction": (configured(("mine // micro_batch", "mine / micro_batch")), check.WHOLE_HINT),
        "configuration: always stage 2": (configured((STAGE, '"zero_optimization": 2,')), check.STAGE_HINT),
        "configuration: the stage isn't nested": (configured((STAGE, '"stage": stage,')), check.STAGE_HINT),
        "configuration: no steps": (configured((STEPS, "")), check.SAMPLES_HINT),
        "configuration: too much at once": (configured((LARGEST, "micro_batch = mine")), check.MEMORY_HINT),
        "configuration: one sample at once": (configured((LARGEST, "micro_batch = 1")), check.FEWER_HINT),
        "configuration: another global batch, too": (
            configured((STEPS, f'{STEPS} "train_batch_size": 64,')),
            check.SAME_HINT,
        ),
        "configuration: not allowed": (configured((ALLOWED, "")), check.UNTESTED_HINT),
        "configuration: clipped": (configured((UNCLIPPED, "")), check.CLIPPING_HINT),
        "bytes: numbers": (formula(("4 *", "1 *"), ("8 *", "2 *")), "each takes 4 bytes"),
        "bytes: a number": (
            lambda: written("", "bytes_per_rank(parameters, ranks, stage)", "return 16 * parameters"),
            "it returned 16000",
        ),
    }
