"""Right answers to the exercises of 06b beside the solutions, and wrong ones beside the known mistakes."""

MICRO = '"train_micro_batch_size_per_gpu": micro_batch,'
STEPS = '"gradient_accumulation_steps": mine // micro_batch,'
LARGEST = "micro_batch = max(m for m in range(1, largest_micro_batch + 1) if mine % m == 0)"

RIGHT = {
    "configuration": {
        "global batch and micro-batch": [(STEPS, '"train_batch_size": global_batch,')],
        "global batch and steps": [(MICRO, '"train_batch_size": global_batch,')],
        "all three": [(STEPS, f'{STEPS} "train_batch_size": global_batch,')],
    },
    "clip": {
        "value by value": [("float((shard**2).sum())", "sum(float(value) ** 2 for value in shard)")],
        "one factor": [
            ("if norm > max_norm:", "if True:"),
            ("shard *= max_norm / norm", "shard *= min(1, max_norm / norm)"),
        ],
    },
}
WRONG = {
    "configuration": {
        "text": ([("return {", "return str({"), ("    }", "    })")], "return a dictionary"),
        "a fraction": ([("mine // micro_batch", "mine / micro_batch")], "divides without a remainder"),
        "no steps": ([(STEPS, "")], "is one of the three missing"),
        "one sample at once": ([(LARGEST, "micro_batch = 1")], "none of the known mistakes"),
        "another global batch, too": ([(STEPS, f'{STEPS} "train_batch_size": 64,')], "contradict each other"),
        "a stage that isn't nested": ([('{"stage": stage}', "stage")], "the stage is nested"),
    },
    "clip": {"never scales": ([("norm > max_norm", "False")], "change the arrays themselves")},
}
