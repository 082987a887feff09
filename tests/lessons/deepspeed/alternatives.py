"""Right answers to the exercises of 06b beside the solutions, and wrong ones beside the known mistakes."""

MICRO = '"train_micro_batch_size_per_gpu": micro_batch,'
LARGEST = "micro_batch = max(m for m in range(1, largest_micro_batch + 1) if mine % m == 0)"
STEPS = 'steps = config.get("gradient_accumulation_steps", batch // samples)'
SAVING = "set(saving_ranks) != set(range(ranks))"

RIGHT = {
    "problems": {
        "remainder": [
            (STEPS, 'steps = config.get("gradient_accumulation_steps")'),
            ("samples * steps != batch", "batch % samples or steps and samples * steps != batch"),
        ],
        "per rank": """
            def problems(config, ranks, saving_ranks):
                mine, rest = divmod(config["train_batch_size"], ranks)
                steps = mine / config["train_micro_batch_size_per_gpu"]
                found = set()
                if rest or steps != config.get("gradient_accumulation_steps", max(1, int(steps))):
                    found.add("batch")
                if config.get("gradient_clipping") is None:
                    found.add("clipping")
                if not all(rank in saving_ranks for rank in range(ranks)):
                    found.add("saving")
                return found
            """,
        "count of ranks": [(SAVING, "len(saving_ranks) < ranks")],
        "sorted ranks": [(SAVING, "sorted(saving_ranks) != list(range(ranks))")],
        "as a tuple": [("return found", "return tuple(found)")],
    },
    "configuration": {
        "steps, too": [(MICRO, f'{MICRO} "gradient_accumulation_steps": mine // micro_batch,')],
        "counts down": [(LARGEST, "micro_batch = largest_micro_batch\n    while mine % micro_batch: micro_batch -= 1")],
        "the first of the largest": [
            (LARGEST, "micro_batch = next(m for m in range(largest_micro_batch, 0, -1) if mine % m == 0)")
        ],
        "fewest steps": [
            (
                LARGEST,
                "steps = 1\n    while mine % steps or mine // steps > largest_micro_batch: steps += 1\n"
                "    micro_batch = mine // steps",
            )
        ],
        "from JSON": [
            ("return {", "import json; return json.loads(json.dumps({"),
            ('"gradient_clipping": 0.0,\n    }', '"gradient_clipping": 0, "bf16": {"enabled": False}\n    }))'),
        ],
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
    "problems": {
        "one text": ([("return found", 'return " ".join(found)')], "the words are"),
        "other words": ([('"batch")', '"sizes")')], "the words are"),
        "the first alone": ([("return found", "return found[:1]")], "for your colleague's run, it returns ['batch']"),
        "no steps known": ([(STEPS, 'steps = config["gradient_accumulation_steps"]')], "may be missing"),
        "the colleague's alone": ([("samples * steps != batch", "batch == 128")], "a run without faults"),
    },
    "configuration": {
        "text": ([("return {", "return str({"), ("    }", "    })")], "return a dictionary"),
        "a fraction": (
            [('"train_batch_size": global_batch', '"train_batch_size": global_batch / 1')],
            "divides without",
        ),
        "no global batch": ([('"train_batch_size": global_batch,', "")], "counts the samples of all ranks"),
        "one sample at once": ([(LARGEST, "micro_batch = 1")], "none of the known mistakes"),
        "one step": ([(MICRO, f'{MICRO} "gradient_accumulation_steps": 1,')], "contradict each other"),
        "a stage that isn't nested": ([('{"stage": stage}', "stage")], "the stage is nested"),
    },
    "clip": {"never scales": ([("norm > max_norm", "False")], "change the arrays themselves")},
}
