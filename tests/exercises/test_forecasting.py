"""The exercises of 08c accept the solutions, and reject wrong answers with the hint that names the mistake."""

from functools import partial

from exercises.answers import written
from exercises.verdicts import Verdicts, planted

from workshop_lib.exercises import forecasting as check

NOTEBOOK = "08c_forecasting"
COMMUNICATION = "latency_s + s_per_byte * message_bytes"
BATCH = "smallest_batch(share, message_bytes, t0_s, t1_s, latency_s, s_per_byte)"
STEP = "overlapped_step(forward_s, backward_s, message_s, messages)"
answer = partial(written, "import math\nimport numpy as np")

WRONG = {
    "smallest_batch": {
        "rounded": ([("math.ceil", "round")], "round up"),
        "nothing returned": ([("return ", "")], "`return` the number"),
    },
    "overlapped_step": {
        "the sum of both": ([("max(keeps_up, busy)", "keeps_up + busy")], "none of the known mistakes"),
        "one message too few": ([("messages * message_s", "(messages - 1) * message_s")], "none of the known mistakes"),
        "nothing returned": ([("return ", "")], "`return` the seconds"),
    },
}
ENDLESS = {
    "smallest_batch": {"a loop": ([("return ", "while share: ")], "doesn't end")},
    "overlapped_step": {"a loop": ([("return ", "while messages: ")], "doesn't end")},
}


class TestForecasting(Verdicts):
    check, notebook, names = check, NOTEBOOK, ["smallest_batch", "overlapped_step"]
    right = {
        "by trying": lambda: answer(
            BATCH,
            f"batch, communication_s = 1, {COMMUNICATION}",
            "while communication_s > share * (communication_s + t0_s + t1_s * batch):",
            "    batch += 1",
            "return batch",
        ),
        "as a float": lambda: answer(
            BATCH, f"return max(1.0, np.ceil((({COMMUNICATION}) * (1 / share - 1) - t0_s) / t1_s))"
        ),
        "message after message": lambda: answer(
            STEP,
            "end = forward_s",
            "for j in range(1, messages + 1):",
            "    end = max(end, forward_s + backward_s * j / messages) + message_s",
            "return end",
        ),
    }
    wrong, never_ends = planted(NOTEBOOK, WRONG), planted(NOTEBOOK, ENDLESS)
