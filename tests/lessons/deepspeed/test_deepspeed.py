"""The exercises of 06b: right answers pass, and wrong ones get the hint that names the mistake."""

from judge.verdicts import Verdicts

from workshop_lib.lessons.deepspeed import judge as check

MICRO = '"train_micro_batch_size_per_gpu": micro_batch,'
STEPS = '"gradient_accumulation_steps": mine // micro_batch,'
STAGE = '"zero_optimization": {"stage": stage},'
ALLOWED, UNCLIPPED = '"zero_allow_untested_optimizer": True,', '"gradient_clipping": 0.0,'
LARGEST = "micro_batch = max(m for m in range(1, most + 1) if mine % m == 0)"


class TestDeepspeed(Verdicts):
    check, notebook, names = check, check.NOTEBOOK, ["configuration", "bytes_per_rank"]
    right = {
        "configuration": {
            "global batch and micro-batch": [(STEPS, '"train_batch_size": global_batch,')],
            "global batch and steps": [(MICRO, '"train_batch_size": global_batch,')],
            "all three": [(STEPS, f'{STEPS} "train_batch_size": global_batch,')],
        },
        "bytes_per_rank": {
            "rounded up": """
                def bytes_per_rank(parameters, ranks, stage):
                    share = -(-parameters // ranks)
                    state = {"parameters": 4 * parameters, "gradients": 4 * parameters, "optimizer": 8 * parameters}
                    if stage > 0:
                        state["optimizer"] = 8 * share
                    if stage > 1:
                        state["gradients"] = 4 * share
                    if stage > 2:
                        state["parameters"] = 4 * share
                    return state
                """
        },
    }
    wrong = {
        "configuration": {
            "text": ([("return {", "return str({"), ("    }", "    })")], check.DICTIONARY_HINT),
            "the global batch on each rank": (
                [("mine = global_batch // ranks", "mine = global_batch")],
                check.SAMPLES_HINT,
            ),
            "a fraction": ([("mine // micro_batch", "mine / micro_batch")], check.WHOLE_HINT),
            "always stage 2": ([(STAGE, '"zero_optimization": 2,')], check.STAGE_HINT),
            "the stage isn't nested": ([(STAGE, '"stage": stage,')], check.STAGE_HINT),
            "no steps": ([(STEPS, "")], check.SAMPLES_HINT),
            "too much at once": ([(LARGEST, "micro_batch = mine")], check.MEMORY_HINT),
            "one sample at once": ([(LARGEST, "micro_batch = 1")], check.FEWER_HINT),
            "another global batch, too": ([(STEPS, f'{STEPS} "train_batch_size": 64,')], check.SAME_HINT),
            "not allowed": ([(ALLOWED, "")], check.UNTESTED_HINT),
            "clipped": ([(UNCLIPPED, "")], check.CLIPPING_HINT),
        },
        "bytes_per_rank": {
            "numbers": ([("4 *", "1 *"), ("8 *", "2 *")], "each takes 4 bytes"),
            "of another optimizer": ([("8 *", "6 *")], "none of the known mistakes"),
            "a number": (
                """
                def bytes_per_rank(parameters, ranks, stage):
                    return 16 * parameters
                """,
                "it returned 16000. It should `return` a dictionary with the keys 'parameters', 'gradients'",
            ),
        },
    }
